"""Sampled frames of a video file, and still pictures as one frame."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from hapvr.errors import VideoError
from hapvr.video.container import VideoProbe, check_size, open_video
from hapvr.video.frames import display_frame

TOLERANCE_S = 6e-4
"""Slack for containers that round timestamps to milliseconds: a frame at 1.0004 s counts as shown at 1 s."""
PICTURE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
PICTURE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp"})


@dataclass
class Sample:
    """What was kept of the frames on display at 0, 1/fps, 2/fps ... seconds.

    size_px: width and height of all frames, that of the first. warning: "" or what seems to be missing from the file.
    """

    probe: VideoProbe
    fps: float
    kept: list[Any] = field(default_factory=list)
    size_px: tuple[int, int] | None = None
    warning: str = ""

    @property
    def timestamps_s(self) -> tuple[float, ...]:
        return tuple(k / self.fps for k in range(len(self.kept)))

    @property
    def frames(self) -> NDArray[np.uint8]:
        """[N, H, W, 3] RGB, N >= 1, where all of each frame is kept."""
        return np.stack(self.kept)


def sample_frames(
    path: Path,
    *,
    fps: float,
    short_side_px: int | None,
    keep: Callable[[NDArray[np.uint8]], Any] = lambda frame: frame,
    max_frames: int | None = None,
) -> Sample:
    """The frames on display at 0, 1/fps, 2/fps ... seconds after the first one (method 1.1).

    short_side_px: the frames' short side after rotation and pixel aspect; None keeps the stored resolution. keep: gets a
    frame [H, W, 3] uint8 RGB and returns what to hold of it; called once for a frame that is shown at several sampling
    times. A video shorter than 1/fps gives one frame; a damaged video gives the frames that can be decoded. With
    max_frames, the file is read only up to the last of these frames. Raises VideoError as `open_video` does.
    """
    with open_video(path) as (probe, frames):
        sample = Sample(probe, fps)
        timed: Iterator[Any] = chain(frames, [None])
        for (time_s, frame), following in pairwise(timed):
            # a frame is shown until the next one starts; the last one at its own time only
            until_s = time_s + 2 * TOLERANCE_S if following is None else following[0]
            due = math.ceil((until_s - TOLERANCE_S) * fps)
            count = min(due, max_frames or due) - len(sample.kept)
            if count > 0:
                shown = display_frame(
                    frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False),
                    pixel_aspect=probe.pixel_aspect,
                    rotation_deg=probe.rotation_deg,
                    short_side_px=short_side_px,
                    size_px=sample.size_px,
                )
                sample.size_px = (shown.shape[1], shown.shape[0])
                sample.kept += [keep(shown)] * count
            if len(sample.kept) == max_frames:
                return sample
    if probe.duration_s is not None and probe.duration_s - time_s > 0.5 + 2 / (probe.fps or 1):
        sample.warning = f"frames end at {time_s:.1f} s of the {probe.duration_s:.1f} s that the file declares"
    return sample


def is_picture(path: Path) -> bool:
    """Whether the name says that the file is a still picture."""
    return path.suffix.lower() in PICTURE_SUFFIXES


def read_picture(path: Path, *, short_side_px: int) -> NDArray[np.uint8]:
    """A picture as one frame, [H, W, 3] uint8 RGB, min(H, W) = short_side_px, turned upright as its EXIF data says.

    Raises VideoError: not_video for another format, too_large, decode_error.
    """
    try:
        with Image.open(path, formats=PICTURE_FORMATS) as image:
            check_size(path, image.width, image.height)
            pixels = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = "not_video" if isinstance(error, UnidentifiedImageError) else "decode_error"
        wanted = f"save it again as {', '.join(PICTURE_FORMATS)}"
        raise VideoError(reason, f"picture: {path.name} cannot be decoded ({error}); {wanted}") from error
    return display_frame(pixels, pixel_aspect=1, rotation_deg=0, short_side_px=short_side_px, size_px=None)
