"""Reading files with PyAV: what a video says about itself, its frames in display order on a
repaired clock, samples of them; and still pictures as one frame."""

import contextlib
import math
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from av.container import InputContainer
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from hapvr.errors import VideoError
from hapvr.video.frames import display_frame, display_size

MAX_PIXELS = 8192 * 8192
"""Frames with more pixels are refused: they are attacks or mistakes, and one of them fills a
worker's memory."""

TOLERANCE_S = 6e-4
"""Slack for containers that round timestamps to milliseconds: a frame at 1.0004 s counts as shown
at 1 s."""

# Containers of recordings. Left out on purpose: playlists and scripts (hls, dash, concat, sdp),
# which name other files or servers to read, and still pictures. Sound formats are in so that they
# are not taken for damaged files.
_FORMATS = (
    "3gp,aac,ac3,asf,avi,dv,f4v,flac,flv,gif,gxf,h261,h263,h264,hevc,ivf,m4v,matroska,mjpeg,mov,mp3,mpeg,mpegts,"
    "mpegvideo,mxf,nut,obu,ogg,rm,vc1,wav,webm,wtv,yuv4mpegpipe"
)
# Decoders of what cameras, phones, editors and sites make. FFmpeg has 500 more, each a way in for a
# hostile file.
_DECODERS = frozenset(
    {
        "apng",
        "dnxhd",
        "dvvideo",
        "flv",
        "gif",
        "h263",
        "h264",
        "hevc",
        "libdav1d",
        "mjpeg",
        "mpeg1video",
        "mpeg2video",
        "mpeg4",
        "msmpeg4",
        "msmpeg4v1",
        "msmpeg4v2",
        "png",
        "prores",
        "rawvideo",
        "theora",
        "vc1",
        "vp8",
        "vp9",
        "wmv1",
        "wmv2",
        "wmv3",
    }
)
_PARTS = Disposition.attached_pic | Disposition.timed_thumbnails | Disposition.dependent
"""Streams of this kind are the cover picture of a song, or a tile of a phone's photo."""
# the decoders here are those with which FFmpeg looks into streams when it opens a file
_OPEN_OPTIONS = {
    "format_whitelist": _FORMATS,
    "protocol_whitelist": "file",
    "codec_whitelist": ",".join(sorted(_DECODERS)),
}
PICTURE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")


@dataclass(frozen=True)
class VideoProbe:
    """What a video's headers and first frame say. Headers may lie. duration_s, fps: None where the
    file does not say; of_picture: whether the duration is surely the picture's, and not that of
    longer sound. width_px, height_px: as displayed, after rotation and pixel aspect. rotation_deg:
    counter-clockwise; mirrored: left and right are exchanged before it."""

    duration_s: float | None
    of_picture: bool
    fps: float | None
    width_px: int
    height_px: int
    codec: str
    pixel_aspect: float
    rotation_deg: int
    mirrored: bool


class FileState(NamedTuple):
    """What changes when a file does."""

    path: str
    device: int
    inode: int
    num_bytes: int
    modified_ns: int


def check_file(path: Path) -> FileState:
    """The state of a regular file of a byte or more; pipes and devices block. Raises VideoError:
    missing_file, empty_file or not_video."""
    reason, problem = "missing_file", ""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        problem = (
            f"cannot be read: {_text(error)}; check its name and permissions, or fetch it again"
        )
    else:
        if not stat.S_ISREG(status.st_mode):
            reason, problem = "not_video", "is not a regular file; wanted a video file"
        elif status.st_size == 0:
            reason, problem = "empty_file", "has 0 bytes; fetch it again"
        elif not os.access(path, os.R_OK):
            problem = "may not be read by this user; check its permissions"
    if problem:
        raise VideoError(reason, f"video: {path} {problem}")
    return FileState(
        str(path.absolute()), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    )


@contextlib.contextmanager
def open_video(path: Path) -> Iterator[tuple[VideoProbe, Iterator[tuple[float, VideoFrame]]]]:
    """What the file says of its largest video stream (the first of equals), and (time in seconds,
    frame) in display order.

    Time is 0 at the first frame. Where timestamps are missing or jump, the nominal time between
    frames is taken; where those of display run backwards more often than those of decoding, the
    latter count. Damaged packets are skipped; it ends when no more can be read. Decoding has one
    thread.

    Raises VideoError: missing_file, empty_file, not_video, no_video_stream, unsupported_codec,
    no_frames if the stream is empty, decode_error if there were packets and all failed; too_large,
    at any frame, for one above MAX_PIXELS."""
    check_file(path)
    try:
        container = av.open(f"file:{path}", metadata_errors="replace", options=_OPEN_OPTIONS)
    except (av.error.FFmpegError, ValueError) as error:
        reason = (
            "decode_error" if isinstance(error, OSError) else "not_video"
        )  # a drive or network may come back
        raise VideoError(
            reason, f"video: {path.name} is in no known format ({_text(error)})"
        ) from error
    with container:
        decodable = (one for one in container.streams.video if one.codec_context is not None)
        streams = [one for one in decodable if not one.disposition & _PARTS]
        if not streams:
            kinds = ", ".join(sorted({other.type for other in container.streams})) or "nothing"
            raise VideoError(
                "no_video_stream",
                f"video: {path.name} has {kinds}, but no moving picture; save a photo as JPEG",
            )
        stream = max(streams, key=lambda one: one.codec_context.width * one.codec_context.height)
        name = stream.codec_context.name
        if name not in _DECODERS:
            problem = (
                f"its codec {name} is none of those that are decoded; convert it, for "
                "example to H.264"
            )
            raise VideoError("unsupported_codec", f"video: {path.name}: {problem}")
        check_size(path, stream.codec_context.width, stream.codec_context.height)
        stream.thread_type = "NONE"
        stream.codec_context.options = {"codec_whitelist": name}
        frames = _timed_frames(path, container, stream)
        first = next(frames)
        yield _probe(container, stream, first[1]), chain([first], frames)


def probe_video(path: Path) -> VideoProbe:
    """What `open_video` gives of the file, and raises. The first frame is decoded, so a file that
    passes has at least one."""
    with open_video(path) as (probe, _):
        return probe


def sample_frames(
    path: Path,
    *,
    fps: float,
    short_side_px: int | None,
    keep: Callable[[NDArray[np.uint8]], Any] = lambda frame: frame,
    max_frames: int | None = None,
) -> tuple[VideoProbe, list[Any], str]:
    """The frames on display at 0, 1/fps, 2/fps ... seconds after the first one (method 1.1), all of
    the first one's size.

    Returns what the file says of itself, what is kept of each frame, and "" or what seems to be
    missing from the file or was not read.

    short_side_px: the frames' short side after rotation and pixel aspect; None keeps the stored
    resolution. keep: gets a frame [H, W, 3] uint8 RGB and returns what to hold of it; called once
    for a frame that is shown at several sampling times. A video shorter than 1/fps gives one frame;
    a damaged video gives the frames that can be decoded. With max_frames, the file is read only up
    to the frame after these. Raises VideoError as `open_video` does."""
    kept: list[Any] = []
    size_px = None
    with open_video(path) as (probe, frames):
        timed: Iterator[Any] = chain(frames, [None])
        for (time_s, frame), following in pairwise(timed):
            # a frame is shown until the next one starts; the last one at its own time only
            until_s = time_s + 2 * TOLERANCE_S if following is None else following[0]
            due = math.ceil((until_s - TOLERANCE_S) * fps)
            count = min(due, max_frames or due) - len(kept)
            if count > 0:
                pixels = frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
                shown = display_frame(
                    pixels[:, ::-1] if probe.mirrored else pixels,
                    pixel_aspect=probe.pixel_aspect,
                    rotation_deg=probe.rotation_deg,
                    short_side_px=short_side_px,
                    size_px=size_px,
                )
                size_px = (shown.shape[1], shown.shape[0])
                kept += [keep(shown)] * count
            if max_frames is not None and due > max_frames:
                return (
                    probe,
                    kept,
                    f"the first {max_frames / fps:g} s were read; see sampling.max_frames",
                )
    slack_s = 0.5 + 2 / (probe.fps or 1)
    ends_s = (probe.duration_s or 0) - slack_s
    if time_s < ends_s and (probe.of_picture or _last_time_s(path) < ends_s):
        return (
            probe,
            kept,
            f"frames end at {time_s:.1f} s of the {probe.duration_s:.1f} s that the file declares",
        )
    return probe, kept, ""


def _last_time_s(path: Path) -> float:
    """Time of the last packet of any stream."""
    last_s = 0.0
    broken = contextlib.suppress(av.error.FFmpegError, IndexError)
    with (
        broken,
        av.open(f"file:{path}", metadata_errors="replace", options=_OPEN_OPTIONS) as container,
    ):
        for packet in container.demux():
            last_s = max(last_s, float((packet.pts or 0) * (packet.time_base or 0)))
    return last_s


def read_picture(path: Path, *, short_side_px: int) -> NDArray[np.uint8]:
    """A picture as one frame, [H, W, 3] uint8 RGB, min(H, W) = short_side_px, turned upright as its
    EXIF data says. Raises VideoError: not_video for another format, too_large, decode_error."""
    try:
        with Image.open(path, formats=PICTURE_FORMATS) as image:
            check_size(path, image.width, image.height)
            if image.format != "MPO" and getattr(
                image, "is_animated", False
            ):  # MPO: a photo with its depth or preview
                raise VideoError(
                    "not_video", f"picture: {path.name} is animated; save it as GIF or MP4"
                )
            pixels = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = "not_video" if isinstance(error, UnidentifiedImageError) else "decode_error"
        wanted = f"save it again as {', '.join(PICTURE_FORMATS)}"
        raise VideoError(
            reason, f"picture: {path.name} cannot be decoded ({error}); {wanted}"
        ) from error
    return display_frame(pixels, short_side_px=short_side_px)


def _probe(container: InputContainer, stream: VideoStream, first: VideoFrame) -> VideoProbe:
    duration_s: Fraction | float | None = (
        None if container.duration is None else container.duration / av.time_base
    )
    track = re.fullmatch(r"(\d+):(\d+):(\d+(?:\.\d*)?)", stream.metadata.get("DURATION", ""))
    own = stream.duration is not None and container.format.name != "asf"  # which gives the file's
    of_picture = own or track is not None or len(container.streams) == 1
    if "matroska" in container.format.name:  # there all are times of the end
        hours, minutes, seconds = map(float, track.groups()) if track else (0, 0, duration_s or 0)
        duration_s = 3600 * hours + 60 * minutes + seconds - max(first.time or 0, 0)
    elif stream.duration is not None and stream.time_base is not None:
        duration_s = stream.duration * stream.time_base
    aspect = float(stream.sample_aspect_ratio or 1)
    mirrored = _is_mirrored(first)
    # FFmpeg has no angle for some
    rotation_deg = (
        round(first.rotation / 90 + 2 * mirrored) * 90 if abs(first.rotation) <= 360 else 0
    )
    size = display_size(first.width, first.height, pixel_aspect=aspect, rotation_deg=rotation_deg)
    fps = _positive(stream.average_rate) or _positive(stream.guessed_rate)
    return VideoProbe(
        _positive(duration_s),
        of_picture,
        fps,
        *size,
        stream.codec_context.name,
        aspect,
        rotation_deg,
        mirrored,
    )


def _is_mirrored(frame: VideoFrame) -> bool:
    """Whether the frame's display matrix exchanges left and right, in addition to any rotation."""
    try:
        found: Any = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:  # it has data of a kind that PyAV does not know
        return False
    (a, b), (c, d) = (
        np.frombuffer(found, np.int32).reshape(3, 3)[:2, :2].tolist() if found else ((1, 0), (0, 1))
    )
    return bool(a * d < b * c)


def _timed_frames(
    path: Path, container: InputContainer, stream: VideoStream
) -> Iterator[tuple[float, VideoFrame]]:
    """Time and frame of all that can be decoded."""
    rate = _positive(stream.average_rate) or _positive(stream.guessed_rate) or 25.0
    interval_s = 1 / max(rate, 0.01)  # taken where timestamps are missing or wrong
    time_s, problem, decoded = 0.0, "", False
    # each by the clock of display and by that of decoding: the time now, and that of the last frame
    # with a known timestamp
    times_s, reached_s, last_s, backwards = (
        np.zeros(2),
        np.zeros(2),
        np.full(2, np.nan),
        np.zeros(2, int),
    )
    packets = container.demux(stream)
    while True:
        try:
            if (packet := next(packets, None)) is None:
                break
            frames = [frame for frame in packet.decode() if isinstance(frame, VideoFrame)]
        except IndexError:  # PyAV does not know streams that begin later: skip their packet
            packets, frames = container.demux(stream), []
        except av.error.FFmpegError as error:
            problem, frames = _text(error), []
        for frame in frames:
            check_size(path, frame.width, frame.height)
            unit_s = float(frame.time_base or "nan")
            clocks_s = np.array(
                [np.nan if one is None else one * unit_s for one in (frame.pts, frame.dts)]
            )
            if decoded:
                steps_s = clocks_s - last_s
                backwards += steps_s < 0
                # a step of more than ten minutes is a jump of the clock, not a frame that long
                usual = (steps_s >= 0) & (steps_s <= 600)
                times_s = np.where(usual, reached_s + steps_s, times_s + interval_s)
            known, decoded = ~np.isnan(clocks_s), True
            last_s, reached_s = (
                np.where(known, clocks_s, last_s),
                np.where(known, times_s, reached_s),
            )
            time_s = max(time_s, float(times_s[int(backwards[0] > backwards[1])]))
            yield time_s, frame
    if not decoded:
        reason = "decode_error" if problem else "no_frames"
        raise VideoError(
            reason,
            f"video: {path.name}: no frame decodes ({problem or 'empty stream'}); fetch it again",
        )


def _positive(value: Fraction | float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) and value > 0 else None


def check_size(path: Path, width_px: int, height_px: int) -> None:
    """Raise VideoError too_large for pictures of more than MAX_PIXELS."""
    if width_px * height_px > MAX_PIXELS:
        said = f"frames of {width_px} x {height_px} px; at most {MAX_PIXELS} px are decoded"
        raise VideoError("too_large", f"video: {path.name}: {said}")


def _text(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def open_container(path: Path) -> InputContainer:
    """The file, opened with the formats and decoders that are allowed; it opens no other file."""
    return av.open(f"file:{path}", metadata_errors="replace", options=_OPEN_OPTIONS)


def main_stream(container: InputContainer) -> VideoStream | None:
    """The video stream that `open_video` reads: the largest one that is no cover picture."""
    decodable = (one for one in container.streams.video if one.codec_context is not None)
    moving = (one for one in decodable if not one.disposition & _PARTS)
    return max(
        moving, key=lambda one: one.codec_context.width * one.codec_context.height, default=None
    )


def restrict_decoder(stream: VideoStream) -> None:
    """Decode with one thread, and with no other decoder than the stream's, which must be one of
    those that are allowed. Raises VideoError unsupported_codec."""
    name = stream.codec_context.name
    if name not in _DECODERS:
        raise VideoError("unsupported_codec", f"video: the codec {name} is not decoded")
    stream.thread_type = "NONE"
    stream.codec_context.options = {"codec_whitelist": name}
