"""Reading video files with PyAV: what a file says about itself, and its frames in display order on a repaired clock."""

from __future__ import annotations

import contextlib
import math
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import av
from av.container import InputContainer
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from hapvr.errors import VideoError
from hapvr.video.frames import display_size

MAX_PIXELS = 8192 * 8192
"""Frames with more pixels are refused: they are attacks or mistakes, and one of them fills a worker's memory."""

NOMINAL_FPS = 25.0
"""Assumed for streams that state no rate; only used where timestamps are missing or wrong."""

MAX_GAP_S = 600.0
"""A longer step between two frames is a jump of the clock, not a frame that long."""

# Containers of recordings. Left out on purpose: playlists and scripts (hls, dash, concat, sdp), which name other files
# or servers to read, and still pictures. Sound formats are in so that they are not taken for damaged files.
_FORMATS = (
    "3gp,aac,ac3,asf,avi,dv,f4v,flac,flv,gif,gxf,h261,h263,h264,hevc,ivf,m4v,matroska,mjpeg,mov,mp3,mpeg,mpegts,"
    "mpegvideo,mxf,nut,obu,ogg,rm,vc1,wav,webm,wtv,yuv4mpegpipe"
)
# Decoders of what cameras, phones, editors and sites make. FFmpeg has 500 more, each a way in for a hostile file.
_DECODERS = frozenset({
    "apng", "dnxhd", "dvvideo", "flv", "gif", "h263", "h264", "hevc", "libdav1d", "mjpeg", "mpeg1video", "mpeg2video", "mpeg4",
    "msmpeg4", "msmpeg4v1", "msmpeg4v2", "png", "prores", "rawvideo", "theora", "vc1", "vp8", "vp9", "wmv1", "wmv2", "wmv3",
})  # fmt: skip
_COVERS = Disposition.attached_pic | Disposition.timed_thumbnails
"""Streams of this kind are the cover picture of a song."""
# the decoders here are those with which FFmpeg looks into streams when it opens a file
_OPEN_OPTIONS = {
    "format_whitelist": _FORMATS,
    "protocol_whitelist": "file",
    "codec_whitelist": ",".join(sorted(_DECODERS)),
}


@dataclass(frozen=True)
class VideoProbe:
    """What a video's headers and first frame say. Headers may lie.

    duration_s, fps: None where the file does not say. width_px, height_px: as displayed, after rotation and pixel aspect.
    rotation_deg: counter-clockwise.
    """

    duration_s: float | None
    fps: float | None
    width_px: int
    height_px: int
    codec: str
    pixel_aspect: float
    rotation_deg: int


class FileState(NamedTuple):
    """What changes when a file does."""

    path: str
    device: int
    inode: int
    num_bytes: int
    modified_ns: int


def check_file(path: Path) -> FileState:
    """The state of a regular file with at least one byte; pipes and devices would block forever.

    Raises VideoError: missing_file, empty_file or not_video.
    """
    reason, problem = "missing_file", ""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        problem = f"cannot be read: {_text(error)}; check its name and permissions, or fetch it again"
    else:
        if not stat.S_ISREG(status.st_mode):
            reason, problem = "not_video", "is not a regular file; wanted a video file"
        elif status.st_size == 0:
            reason, problem = "empty_file", "has 0 bytes; fetch it again"
        elif not os.access(path, os.R_OK):
            problem = "may not be read by this user; check its permissions"
    if problem:
        raise VideoError(reason, f"video: {path} {problem}")
    return FileState(str(path.absolute()), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@contextlib.contextmanager
def open_video(path: Path) -> Iterator[tuple[VideoProbe, Iterator[tuple[float, VideoFrame]]]]:
    """What the file says of its largest video stream (the first of equals), and (time in seconds, frame) in display order.

    Time is 0 at the first frame. Where timestamps are missing, run backwards or jump, the nominal time between frames is
    taken. Damaged packets are skipped; it ends when no more can be read. Decoding has one thread.

    Raises VideoError: missing_file, empty_file, not_video, no_video_stream, unsupported_codec, no_frames if the stream is
    empty, decode_error if there were packets and all failed; too_large, at any frame, for one above MAX_PIXELS.
    """
    check_file(path)
    try:
        container = av.open(f"file:{path}", metadata_errors="replace", options=_OPEN_OPTIONS)
    except (av.error.FFmpegError, ValueError) as error:
        raise VideoError("not_video", f"video: {path.name} is in no known format ({_text(error)})") from error
    with container:
        streams = [
            stream
            for stream in container.streams.video
            if stream.codec_context is not None and not stream.disposition & _COVERS
        ]
        if not streams:
            kinds = ", ".join(sorted({other.type for other in container.streams})) or "nothing"
            raise VideoError("no_video_stream", f"video: {path.name} has no readable video stream, only: {kinds}")
        stream = max(streams, key=lambda one: one.codec_context.width * one.codec_context.height)
        name = stream.codec_context.name
        if name not in _DECODERS:
            problem = f"its codec {name} is none of those that are decoded; convert it, for example to H.264"
            raise VideoError("unsupported_codec", f"video: {path.name}: {problem}")
        check_size(path, stream.codec_context.width, stream.codec_context.height)
        stream.thread_type = "NONE"
        stream.codec_context.options = {"codec_whitelist": name}
        frames = _timed_frames(path, container, stream)
        first = next(frames)
        yield _probe(container, stream, first[1]), chain([first], frames)


def probe_video(path: Path) -> VideoProbe:
    """What the file says of its main video stream. The first frame is decoded, so a file that passes has at least one.

    Raises VideoError as `open_video` does.
    """
    with open_video(path) as (probe, _):
        return probe


def _probe(container: InputContainer, stream: VideoStream, first: VideoFrame) -> VideoProbe:
    aspect = float(stream.sample_aspect_ratio or 1)
    rotation_deg = int(round(first.rotation / 90) * 90)
    width_px, height_px = display_size(
        first.width, first.height, pixel_aspect=aspect, rotation_deg=rotation_deg, short_side_px=None
    )
    return VideoProbe(
        duration_s=_duration_s(container, stream),
        fps=_positive(stream.average_rate) or _positive(stream.guessed_rate),
        width_px=width_px,
        height_px=height_px,
        codec=stream.codec_context.name,
        pixel_aspect=aspect,
        rotation_deg=rotation_deg,
    )


def _timed_frames(path: Path, container: InputContainer, stream: VideoStream) -> Iterator[tuple[float, VideoFrame]]:
    interval_s = 1 / (_positive(stream.average_rate) or NOMINAL_FPS)
    time_s, previous_raw_s, found, problems = 0.0, None, False, list[str]()
    for frame in _decoded(container, stream, problems):
        check_size(path, frame.width, frame.height)
        if found:
            step_s = -1.0 if frame.time is None or previous_raw_s is None else frame.time - previous_raw_s
            time_s += step_s if 0 <= step_s <= MAX_GAP_S else interval_s
        previous_raw_s, found = frame.time, True
        yield time_s, frame
    if not found:
        reason, problem = ("decode_error", problems[-1]) if problems else ("no_frames", "empty stream")
        raise VideoError(reason, f"video: {path.name}: no frame decodes ({problem}); fetch it again")


def _decoded(container: InputContainer, stream: VideoStream, problems: list[str]) -> Iterator[VideoFrame]:
    """All frames that can be decoded; what goes wrong is appended to `problems`."""
    packets = container.demux(stream)
    while True:
        try:
            if (packet := next(packets, None)) is None:
                return
            yield from (frame for frame in packet.decode() if isinstance(frame, VideoFrame))
        except IndexError:  # PyAV does not know streams that begin later: skip their packet
            packets = container.demux(stream)
        except av.error.FFmpegError as error:
            problems.append(_text(error))


def _duration_s(container: InputContainer, stream: VideoStream) -> float | None:
    if stream.duration is not None and stream.time_base is not None:
        return _positive(stream.duration * stream.time_base)
    return _positive(container.duration / av.time_base) if container.duration is not None else None


def _positive(value: Fraction | float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) and value > 0 else None


def check_size(path: Path, width_px: int, height_px: int) -> None:
    """Raise VideoError too_large for pictures of more than MAX_PIXELS."""
    if width_px * height_px > MAX_PIXELS:
        size = f"{width_px} x {height_px} px; at most {MAX_PIXELS} px are decoded"
        raise VideoError("too_large", f"video: {path.name}: frames of {size}")


def _text(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
