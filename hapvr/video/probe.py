"""What a file's headers and its first frame say about its video, and which files are refused before
they are opened."""

import math
import os
import stat
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from hapvr.errors import VideoError
from hapvr.files import MAX_UNWRITTEN, is_unwritten, open_regular
from hapvr.video.frames import display_size
from hapvr.video.packets import tag_s, text_of

MAX_PIXELS = 8192 * 8192
"""Frames with more pixels are refused: they are attacks or mistakes, and a single one fills a
worker's memory."""


@dataclass(frozen=True)
class VideoProbe:
    """What a video's headers and first frame say. Headers may lie."""

    duration_s: float | None
    """when the picture ends, in seconds from the file's start; None where the file does not say"""
    of_picture: bool
    """whether this is surely the picture's duration, and not that of longer sound"""
    fps: float | None
    """None where the file does not say"""
    width_px: int
    """as displayed, after rotation and pixel aspect, like the height"""
    height_px: int
    codec: str
    pixel_aspect: float
    rotation_deg: int
    """counter-clockwise"""
    mirrored: bool
    """whether left and right are exchanged before the rotation"""
    container: str = ""
    """FFmpeg's name of the format"""


class FileState(NamedTuple):
    """Values that change when a file does."""

    path: str
    device: int
    inode: int
    num_bytes: int
    modified_ns: int


def check_file(path: Path) -> FileState:
    """The state of a regular file that is not empty. Others are refused: pipes and devices block,
    and reading parts that were never written takes as long as if they existed.

    Raises: VideoError missing_file, empty_file, unwritten_file or not_video.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        advice = "check its name and permissions, or fetch it again"
        raise VideoError(
            "missing_file", f"video: {path} cannot be read: {text_of(error)}; {advice}"
        ) from error

    if not stat.S_ISREG(status.st_mode):
        raise VideoError("not_video", f"video: {path} is not a regular file; expected a video file")
    if status.st_size == 0:
        raise VideoError("empty_file", f"video: {path} has 0 bytes; fetch it again")
    if not os.access(path, os.R_OK):
        raise VideoError(
            "missing_file", f"video: {path} may not be read by this user; check its permissions"
        )

    if status.st_size > MAX_UNWRITTEN and _is_unwritten(path):
        raise VideoError(
            "unwritten_file",
            f"video: {path} has {status.st_size} bytes, of which only {512 * status.st_blocks} "
            "were written, as in a running download; let it end",
        )

    return FileState(
        str(path.absolute()), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    )


def _is_unwritten(path: Path) -> bool:
    """As `is_unwritten`. Raises VideoError missing_file for a file that cannot be opened."""
    try:
        with open_regular(path) as file:
            return is_unwritten(file)
    except OSError as error:
        raise VideoError(
            "missing_file", f"video: {path} cannot be read: {text_of(error)}; fetch it again"
        ) from error


def check_size(path: Path, width_px: int, height_px: int) -> None:
    """Raise VideoError too_large for pictures of more than MAX_PIXELS."""
    if width_px * height_px > MAX_PIXELS:
        size = f"frames of {width_px} x {height_px} px"
        raise VideoError(
            "too_large", f"video: {path.name}: {size}; at most {MAX_PIXELS} px are decoded"
        )


def probe_of(container: InputContainer, stream: VideoStream, first: VideoFrame) -> VideoProbe:
    duration_s, of_picture = _declared_end(container, stream)
    aspect = float(stream.sample_aspect_ratio or 1)
    mirrored = _is_mirrored(first)
    # FFmpeg has no angle for some
    rotation_deg = (
        round(first.rotation / 90 + 2 * mirrored) * 90 if abs(first.rotation) <= 360 else 0
    )
    width_px, height_px = display_size(
        first.width, first.height, pixel_aspect=aspect, rotation_deg=rotation_deg
    )
    return VideoProbe(
        duration_s=duration_s,
        of_picture=of_picture,
        fps=positive(stream.average_rate) or positive(stream.guessed_rate),
        width_px=width_px,
        height_px=height_px,
        codec=stream.codec_context.name,
        pixel_aspect=aspect,
        rotation_deg=rotation_deg,
        mirrored=mirrored,
        container=container.format.name,
    )


def _declared_end(container: InputContainer, stream: VideoStream) -> tuple[float | None, bool]:
    """When the picture ends by the headers, in seconds from the file's start, or None; and whether
    that is surely the picture's end, and not that of longer sound."""
    start_s = (container.start_time or 0) / av.time_base
    track_s = tag_s(stream.metadata.get("DURATION", ""))
    own = stream.duration is not None and container.format.name != "asf"  # which gives the file's
    of_picture = own or track_s is not None or len(container.streams) == 1
    end_s: float | None = None
    if container.duration is not None:
        end_s = container.duration / av.time_base
    if "matroska" in container.format.name:  # there all are times of the end
        if track_s is not None:
            end_s = track_s

        end_s = None if end_s is None else end_s - start_s
    elif stream.duration is not None and stream.time_base is not None:
        begins = stream.start_time or 0
        late_s = max(float(begins * stream.time_base) - start_s, 0.0)
        end_s = late_s + float(stream.duration * stream.time_base)

    return positive(end_s), of_picture


def _is_mirrored(frame: VideoFrame) -> bool:
    """Whether the frame's display matrix exchanges left and right, in addition to any rotation."""
    try:
        matrix: Any = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:  # it has side data of a kind that PyAV does not know
        return False

    if not matrix:
        return False
    (a, b), (c, d) = np.frombuffer(matrix, np.int32).reshape(3, 3)[:2, :2].tolist()
    return bool(a * d < b * c)


def positive(value: Fraction | float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) and value > 0 else None
