"""Which pictures of a video are kept, as they are displayed, and when each is shown."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from hapvr.video.frames import display_frame, display_size
from hapvr.video.pictures import Picture
from hapvr.video.probe import VideoProbe

TOLERANCE_S = 6e-4
"""Tolerance for containers that round timestamps to milliseconds: a frame at 1.0004 s counts as
shown at 1 s."""

MAX_UNUSED = 10_000
"""The most pictures in a row between two sampling times: a stream with more, whose clock hardly
moves, is not read to its end."""
MAX_UNUSED_PER_S = 2000
"""The same per second between sampling times, where that is more."""

Keep = Callable[[NDArray[np.uint8]], Any]
"""Takes a frame [H, W, 3] uint8 RGB and returns what is kept of it."""


class Wanted(NamedTuple):
    """What a sample should contain."""

    fps: float
    """frames per second of the video"""
    short_side_px: int | None
    """of the frames, after rotation and pixel aspect; None keeps the stored resolution"""
    keep: Keep
    max_frames: int | None = None
    """only the first ones of the video"""


class Display:
    """Makes frames as a viewer sees them, all of the first one's size."""

    def __init__(self, probe: VideoProbe, short_side_px: int | None) -> None:
        self._probe = probe
        self._short_side_px = short_side_px
        self._size_px: tuple[int, int] | None = None

    def shown(self, frame: VideoFrame, *, pixel_aspect: float | None = None) -> NDArray[np.uint8]:
        """[H, W, 3] RGB. pixel_aspect: of the frame, None: as the file says."""
        pixels = frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
        if self._probe.mirrored:
            pixels = pixels[:, ::-1]
        shown = display_frame(
            pixels,
            pixel_aspect=self._probe.pixel_aspect if pixel_aspect is None else pixel_aspect,
            rotation_deg=self._probe.rotation_deg,
            short_side_px=self._short_side_px,
            size_px=self._size_px,
        )
        self._size_px = (shown.shape[1], shown.shape[0])
        return shown

    def shown_soon(self, frame: VideoFrame) -> NDArray[np.uint8]:
        """As `shown`, but scaled before its colours are computed, in a tenth of the time: each
        pixel is the mean of those it covers."""
        if self._short_side_px is None or min(frame.width, frame.height) < 2 * self._short_side_px:
            return self.shown(frame)
        width_px, height_px = display_size(
            frame.width,
            frame.height,
            pixel_aspect=self._probe.pixel_aspect,
            rotation_deg=self._probe.rotation_deg,
            short_side_px=self._short_side_px,
        )
        if self._probe.rotation_deg % 180:
            width_px, height_px = height_px, width_px
        small = frame.reformat(width_px, height_px, format="rgb24", interpolation="AREA")
        return self.shown(small, pixel_aspect=1.0)


class Sampler:
    """Takes pictures in order and keeps those on display at the sampling times."""

    def __init__(self, probe: VideoProbe, wanted: Wanted) -> None:
        self._wanted = wanted
        self._display = Display(probe, wanted.short_side_px)
        self._first_s: float | None = None
        self._next = 0
        self._num_unused = 0
        self.kept: list[Any] = []
        self.times_s: list[float] = []
        self.missing = ""
        self.is_full = False

    def show(self, picture: Picture, *, until_s: float, longest_s: float) -> None:
        """Take a picture that is shown until `until_s`, and sampled for at most `longest_s`. The
        sampler `is_full` once more frames are due than wanted, or the clock stands still."""
        fps = self._wanted.fps
        if self._first_s is None:
            self._first_s = picture.time_s
        due = number_due(until_s, self._first_s, fps)
        numbers = self._limited(
            range(self._next, min(due, self._next + math.ceil(longest_s * fps)))
        )
        if numbers:
            kept = self._wanted.keep(self._display.shown(picture.frame))
            self.kept += [kept] * len(numbers)
            self.times_s += [self._first_s + number / fps for number in numbers]

        self._next = max(self._next, due)
        self._num_unused = 0 if numbers else self._num_unused + 1
        if self.is_full:
            read_s = self.times_s[-1] + 1 / fps - self._first_s
            self.missing = read_text(read_s)
        elif stands_still(self._num_unused, fps):
            self.is_full = True
            self.missing = f"the clock stands still at {picture.time_s:.1f} s; the rest is not read"

    def _limited(self, numbers: range) -> range:
        """As many of the due sampling times as may still be kept; the sampler is full if these are
        not all."""
        if self._wanted.max_frames is None:
            return numbers
        left = self._wanted.max_frames - len(self.kept)
        if len(numbers) > left:
            self.is_full = True
        return numbers[:left]


def number_due(time_s: float, first_s: float, fps: float) -> int:
    """How many sampling times there are before a time. first_s: time of the first picture."""
    return math.ceil((time_s - first_s - TOLERANCE_S) * fps)


def stands_still(num_unused: int, fps: float) -> bool:
    """Whether a clock hardly moves, since so many pictures in a row were not due."""
    return num_unused > max(MAX_UNUSED, MAX_UNUSED_PER_S / fps)


def read_text(read_s: float) -> str:
    """What a video lacks of which only the first seconds were read, in words."""
    return f"the first {read_s:g} s were read; see sampling.max_frames"
