"""Reading files with PyAV: what a video says about itself, its frames in display order, samples of
them; and still pictures as one frame."""

import contextlib
import math
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from hapvr.errors import VideoError
from hapvr.video.frames import display_frame, display_size
from hapvr.video.moving_pictures import USUAL_S, is_moving_webp, webp_frames
from hapvr.video.packets import (
    ARCHIVE_DECODERS,
    DECODERS,
    PacketTimes,
    films,
    is_cut,
    is_whole,
    open_container,
    scan_packets,
    text_of,
)
from hapvr.video.picture_clock import LONG_STEP_S, PictureClock, jumps_said

MAX_PIXELS = 8192 * 8192
"""Frames with more pixels are refused: they are attacks or mistakes, and one of them fills a
worker's memory."""

TOLERANCE_S = 6e-4
"""Slack for containers that round timestamps to milliseconds: a frame at 1.0004 s counts as shown
at 1 s."""

MAX_ROUNDING_S = 0.1
"""By so much, or a frame, a video may seem longer than its footage."""

PAUSE_S = 60.0
"""How much of a pause of more than LONG_STEP_S is sampled."""

MAX_UNUSED, MAX_UNUSED_PER_S = 10_000, 2000
"""Pictures in a row that fall between two sampling times, and as many per second of sampling: a
stream with more, whose clock hardly moves, is not read to its end."""

PICTURE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")


@dataclass(frozen=True)
class VideoProbe:
    """What a video's headers and first frame say. Headers may lie. duration_s: when the picture
    ends, from the file's start; fps: both None where the file does not say; of_picture: whether the
    duration is surely the picture's, and not that of longer sound. container: FFmpeg's name of the
    format. width_px, height_px: as displayed, after rotation and pixel aspect. rotation_deg:
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
    container: str = ""


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
            f"cannot be read: {text_of(error)}; check its name and permissions, or fetch it again"
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


class Picture(NamedTuple):
    """A decoded frame. time_s: when it is shown, in seconds from the file's start; lasts_s: how
    long, as its packet says, or the nominal time."""

    time_s: float
    lasts_s: float
    frame: VideoFrame


class Pictures:
    """An iterator over all pictures of one stream that can be decoded, in display order. Raises
    VideoError as `open_video` says."""

    def __init__(self, path: Path, container: InputContainer, stream: VideoStream) -> None:
        self._path = path
        self._container = container
        self._stream = stream
        rate = _positive(stream.average_rate) or _positive(stream.guessed_rate) or 25.0
        self.interval_s = 1 / max(rate, 0.01)
        start = container.start_time
        self.start_s = None if start is None else start / av.time_base
        self.clock = PictureClock(
            start_s=self.start_s, interval_s=self.interval_s, is_broken=self._is_broken
        )
        self.num_declared = stream.frames
        """pictures that the file has as it says; 0 where it does not"""
        self.ends_early = False
        """whether declared pictures did not come, as far as that is known without timestamps"""
        self.is_damaged = False
        """whether a packet did not decode, or a picture came out damaged, so far"""
        self._pictures: Iterator[Picture] = self._decode()

    def __iter__(self) -> Iterator[Picture]:
        return self

    def __next__(self) -> Picture:
        return next(self._pictures)

    def put_back(self, picture: Picture) -> None:
        """Give this picture again, before the others."""
        self._pictures = chain([picture], self._pictures)

    @cached_property
    def packets(self) -> PacketTimes:
        """Read from the file when they are first asked for."""
        return scan_packets(self._path, stream_index=self._stream.index)

    def sampled_s(self, picture: Picture, until_s: float) -> float:
        """For how long a picture that is shown until then is sampled: a pause is not worth as many
        frames as a picture that people talk about."""
        if until_s - picture.time_s <= LONG_STEP_S:
            return LONG_STEP_S
        start_s = self.start_s or 0.0
        has_sound = self.packets.has_sound(picture.time_s + start_s, until_s + start_s)
        return LONG_STEP_S if has_sound else PAUSE_S

    def _is_broken(self, before_s: float, after_s: float) -> bool:
        return self.packets.is_broken(before_s, after_s)

    def _decode(self) -> Iterator[Picture]:
        problem = ""
        decoded = False
        packets = self._container.demux(self._stream)
        while True:
            frames: list[VideoFrame] = []
            try:
                packet = next(packets, None)
                if packet is None:
                    break
                frames = [frame for frame in packet.decode() if isinstance(frame, VideoFrame)]
            except IndexError:  # PyAV does not know streams that begin later: skip their packet
                packets = self._container.demux(self._stream)
            except av.error.FFmpegError as error:
                problem = text_of(error)
                self.is_damaged = True
            for frame in frames:
                check_size(self._path, frame.width, frame.height)
                decoded = True
                yield self._picture(frame)
        if not decoded:
            reason = "decode_error" if problem else "no_frames"
            raise VideoError(
                reason,
                f"video: {self._path.name}: no frame decodes ({problem or 'empty stream'}); "
                "fetch it again",
            )

    def _picture(self, frame: VideoFrame) -> Picture:
        self.is_damaged |= frame.is_corrupt
        unit_s = None if frame.time_base is None else float(frame.time_base)
        shown_s, decoded_s = (
            None if stamp is None or unit_s is None else stamp * unit_s
            for stamp in (frame.pts, frame.dts)
        )
        lasts_s = frame.duration * unit_s if frame.duration and unit_s else self.interval_s
        return Picture(self.clock.time_of(shown_s, decoded_s), lasts_s, frame)


class WebPPictures(Pictures):
    """The frames of a WebP film, which FFmpeg does not read."""

    def __init__(self, path: Path, image: Image.Image) -> None:
        self._path = path
        self._image = image
        self.interval_s = USUAL_S
        self.start_s = 0.0
        self.clock = PictureClock(
            start_s=0.0, interval_s=USUAL_S, is_broken=lambda before_s, after_s: False
        )
        self.num_declared = getattr(image, "n_frames", 1)
        self.is_damaged = False
        self.ends_early = False
        self._pictures = self._decode()

    @cached_property
    def packets(self) -> PacketTimes:
        return PacketTimes()

    def _decode(self) -> Iterator[Picture]:
        time_s = 0.0
        num_decoded = 0
        for lasts_s, pixels in webp_frames(self._path, self._image):
            frame = VideoFrame.from_ndarray(pixels, format="rgb24")
            yield Picture(self.clock.time_of(time_s, None), lasts_s, frame)
            time_s += lasts_s
            num_decoded += 1
        self.ends_early = num_decoded < self.num_declared


@contextlib.contextmanager
def _open_webp(path: Path) -> Iterator[tuple[VideoProbe, Pictures]]:
    """As `open_video`."""
    try:
        image = Image.open(path, formats=["WEBP"])
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        said = f"video: {path.name} cannot be decoded ({error}); fetch it again"
        raise VideoError("decode_error", said) from error
    with image:
        check_size(path, image.width, image.height)
        probe = VideoProbe(
            duration_s=None,
            of_picture=True,
            fps=None,
            width_px=image.width,
            height_px=image.height,
            codec="webp",
            pixel_aspect=1.0,
            rotation_deg=0,
            mirrored=False,
            container="webp",
        )
        pictures = WebPPictures(path, image)
        pictures.put_back(next(pictures))
        yield probe, pictures


@contextlib.contextmanager
def open_video(
    path: Path, *, threads: int = 1, archive_codecs: bool = False
) -> Iterator[tuple[VideoProbe, Pictures]]:
    """What the file says of its video, and the pictures of it. The video is the largest stream that
    is no still picture, the first of equals.

    Times are those of the file's own clock, from the file's start as players count: the first
    picture may come later than the sound. Where timestamps are missing or the clock is broken, the
    nominal time between frames is taken, see `PictureClock`; where those of display run backwards
    more often than those of decoding, the latter count. Damaged packets are skipped; it ends when
    no more can be read.

    Raises VideoError: missing_file, empty_file, not_video, no_video_stream, unsupported_codec,
    no_frames if the stream is empty, decode_error if there were packets and all failed; too_large,
    at any frame, for one above MAX_PIXELS."""
    check_file(path)
    with path.open("rb") as file:
        head = file.read(32)
    if is_moving_webp(head):
        with _open_webp(path) as opened:
            yield opened
        return
    decoders = DECODERS | ARCHIVE_DECODERS if archive_codecs else DECODERS
    try:
        container = open_container(path, decoders)
    except (av.error.FFmpegError, ValueError) as error:
        # a drive or network may come back
        reason = "decode_error" if isinstance(error, OSError) else "not_video"
        said = f"video: {path.name} is in no known format ({text_of(error)})"
        raise VideoError(reason, said) from error
    with container:
        stream = container.streams[films(path, container)[0]]
        assert isinstance(stream, VideoStream)
        name = stream.codec_context.name
        if name not in decoders:
            problem = f"its codec {name} is none of those that are decoded; "
            if name in ARCHIVE_DECODERS:
                problem += "set sampling.archive_codecs, or "
            problem += "convert it, for example to H.264"
            raise VideoError("unsupported_codec", f"video: {path.name}: {problem}")
        width_px, height_px = stream.codec_context.width, stream.codec_context.height
        check_size(path, width_px, height_px)
        _set_threads(stream, min(threads, MAX_PIXELS // max(width_px * height_px, 1)))
        stream.codec_context.options = {"codec_whitelist": name}
        pictures = Pictures(path, container, stream)
        first = next(pictures)
        pictures.put_back(first)
        yield _probe(container, stream, first.frame), pictures


def _set_threads(stream: VideoStream, threads: int) -> None:
    """Each thread holds a picture: the larger they are, the fewer threads."""
    if threads < 2:
        stream.thread_type = "NONE"
        return
    stream.thread_type = "FRAME"
    stream.codec_context.thread_count = threads


def probe_video(path: Path, *, archive_codecs: bool = False) -> VideoProbe:
    """What `open_video` gives of the file, and raises. The first frame is decoded, so a file that
    passes has at least one."""
    with open_video(path, archive_codecs=archive_codecs) as (probe, _):
        return probe


class Samples(NamedTuple):
    """Sampled frames, and what was kept of each. times_s: when each is shown, in seconds from the
    file's start; missing: what seems to be missing from the file or was not read, or "";
    clock_note: what was wrong with the file's clock, or ""."""

    probe: VideoProbe
    frames: list[Any]
    times_s: list[float]
    missing: str
    clock_note: str


def sample_frames(  # noqa: PLR0913  # how to sample, and how to decode
    path: Path,
    *,
    fps: float,
    short_side_px: int | None,
    keep: Callable[[NDArray[np.uint8]], Any] = lambda frame: frame,
    max_frames: int | None = None,
    threads: int = 1,
    archive_codecs: bool = False,
    progress: Callable[[float], None] = lambda seconds: None,
) -> Samples:
    """The frames on display at 0, 1/fps, 2/fps ... seconds after the first one (method 1.1), all of
    the first one's size.

    short_side_px: the frames' short side after rotation and pixel aspect; None keeps the stored
    resolution. keep: gets a frame [H, W, 3] uint8 RGB and returns what to hold of it; called once
    for a frame that is shown at several sampling times. A frame that stays for more than
    LONG_STEP_S is sampled so long, or for PAUSE_S where there is no sound beside it. A video
    shorter than 1/fps gives one frame; a damaged video gives the frames that can be decoded. With
    max_frames, the file is read only up to the frame after these. threads: of the decoder; damage
    is decoded by one, so that it looks the same on every machine. archive_codecs: also
    those of ARCHIVE_DECODERS. progress: is told the time of each picture. Raises VideoError as
    `open_video` does."""
    for number in sorted({threads, 1}, reverse=True):
        with open_video(path, threads=number, archive_codecs=archive_codecs) as opened:
            probe, pictures = opened
            sampler = _Sampler(
                probe, fps=fps, short_side_px=short_side_px, keep=keep, max_frames=max_frames
            )
            timed: Iterator[Picture | None] = chain(pictures, [None])
            for picture, following in pairwise(timed):
                if picture is None or (pictures.is_damaged and number > 1):
                    break
                progress(picture.time_s)
                if following is not None:
                    until_s = following.time_s
                else:
                    until_s = _end_of(path, probe, picture, pictures, sampler)
                longest_s = pictures.sampled_s(picture, until_s)
                sampler.show(picture, until_s=until_s, longest_s=longest_s)
                if sampler.is_full:
                    break
            if not pictures.is_damaged or number == 1:
                note = jumps_said(pictures.clock.jumps)
                return Samples(probe, sampler.kept, sampler.times_s, sampler.missing, note)
    raise AssertionError("one thread ends the loop")


class _Sampler:
    """Takes pictures in order and keeps those on display at the sampling times."""

    def __init__(
        self,
        probe: VideoProbe,
        *,
        fps: float,
        short_side_px: int | None,
        keep: Callable[[NDArray[np.uint8]], Any],
        max_frames: int | None,
    ) -> None:
        self._probe = probe
        self._fps = fps
        self._short_side_px = short_side_px
        self._keep = keep
        self._max_frames = max_frames
        self._size_px: tuple[int, int] | None = None
        self._first_s: float | None = None
        self._next = 0
        self._num_unused = 0
        self.kept: list[Any] = []
        self.times_s: list[float] = []
        self.missing = ""
        self.is_full = False

    def show(self, picture: Picture, *, until_s: float, longest_s: float) -> None:
        """A picture that is shown until then, and sampled for so long. Sampling ends, `is_full`,
        where more frames are due than wanted, or where the clock does not move on."""
        if self._first_s is None:
            self._first_s = picture.time_s
        due = math.ceil((until_s - self._first_s - TOLERANCE_S) * self._fps)
        wanted = range(self._next, min(due, self._next + math.ceil(longest_s * self._fps)))
        if self._max_frames is not None and len(wanted) > self._max_frames - len(self.kept):
            wanted = wanted[: self._max_frames - len(self.kept)]
            self.is_full = True
        if wanted:
            kept = self._keep(self._displayed(picture.frame))
            self.kept += [kept] * len(wanted)
            self.times_s += [self._first_s + number / self._fps for number in wanted]
        self._next = max(self._next, due)
        self._num_unused = 0 if wanted else self._num_unused + 1
        if self.is_full:
            read_s = self.times_s[-1] + 1 / self._fps - self._first_s
            self.missing = f"the first {read_s:g} s were read; see sampling.max_frames"
        elif self._num_unused > max(MAX_UNUSED, MAX_UNUSED_PER_S / self._fps):
            self.is_full = True
            self.missing = f"the clock stands still at {picture.time_s:.1f} s; the rest is not read"

    def _displayed(self, frame: VideoFrame) -> NDArray[np.uint8]:
        pixels = frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
        shown = display_frame(
            pixels[:, ::-1] if self._probe.mirrored else pixels,
            pixel_aspect=self._probe.pixel_aspect,
            rotation_deg=self._probe.rotation_deg,
            short_side_px=self._short_side_px,
            size_px=self._size_px,
        )
        self._size_px = (shown.shape[1], shown.shape[0])
        return shown


def _end_of(
    path: Path, probe: VideoProbe, last: Picture, pictures: Pictures, sampler: _Sampler
) -> float:
    """When the last picture goes. Where the file declares a later end than its packets show, the
    picture stays until then in a whole file, and the end is missing from another."""
    # a little less: a video of ten seconds has ten sampling times, whatever its container rounds
    rounding_s = min(pictures.interval_s, MAX_ROUNDING_S)
    packets_end_s = last.time_s + max(last.lasts_s - rounding_s, 2 * TOLERANCE_S)
    shift_s = (pictures.clock.last_stamp_s or last.time_s) - last.time_s  # of a broken clock
    if pictures.ends_early:
        sampler.missing = f"frames end at {last.time_s:.1f} s, before the last one"
        return packets_end_s
    slack_s = 0.5 + 2 / (probe.fps or 1)
    declared_s = (probe.duration_s or 0.0) - shift_s
    if last.time_s + last.lasts_s >= declared_s - slack_s:
        if is_cut(path, format_name=probe.container):
            sampler.missing = (
                f"frames end at {last.time_s:.1f} s, and the file at a part of its bytes"
            )
        return packets_end_s
    start_s = pictures.start_s or 0.0
    packets = pictures.packets
    if not probe.of_picture and packets.last_s - start_s >= declared_s + shift_s - slack_s:
        return packets_end_s  # it is the sound that lasts longer
    last_packet_s = (packets.last_picture_s or 0.0) - start_s - shift_s
    if last_packet_s <= last.time_s + slack_s and is_whole(
        path,
        format_name=probe.container,
        num_pictures=pictures.num_declared,
        packets=packets,
    ):
        return max(packets_end_s, declared_s - rounding_s)
    sampler.missing = (
        f"frames end at {last.time_s:.1f} s of the {probe.duration_s:.1f} s that the file declares"
    )
    return packets_end_s


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
        fps=_positive(stream.average_rate) or _positive(stream.guessed_rate),
        width_px=width_px,
        height_px=height_px,
        codec=stream.codec_context.name,
        pixel_aspect=aspect,
        rotation_deg=rotation_deg,
        mirrored=mirrored,
        container=container.format.name,
    )


def _declared_end(container: InputContainer, stream: VideoStream) -> tuple[float | None, bool]:
    """When the picture ends as headers say, in seconds from the file's start, or None; and whether
    that is surely the picture's end, and not that of longer sound."""
    start_s = (container.start_time or 0) / av.time_base
    track = re.fullmatch(r"(\d+):(\d+):(\d+(?:\.\d*)?)", stream.metadata.get("DURATION", ""))
    own = stream.duration is not None and container.format.name != "asf"  # which gives the file's
    of_picture = own or track is not None or len(container.streams) == 1
    end_s: float | None = None
    if container.duration is not None:
        end_s = container.duration / av.time_base
    if "matroska" in container.format.name:  # there all are times of the end
        if track is not None:
            hours, minutes, seconds = map(float, track.groups())
            end_s = 3600 * hours + 60 * minutes + seconds
        end_s = None if end_s is None else end_s - start_s
    elif stream.duration is not None and stream.time_base is not None:
        begins = stream.start_time or 0
        late_s = max(float(begins * stream.time_base) - start_s, 0.0)
        end_s = late_s + float(stream.duration * stream.time_base)
    return _positive(end_s), of_picture


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


def _positive(value: Fraction | float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) and value > 0 else None


def check_size(path: Path, width_px: int, height_px: int) -> None:
    """Raise VideoError too_large for pictures of more than MAX_PIXELS."""
    if width_px * height_px > MAX_PIXELS:
        said = f"frames of {width_px} x {height_px} px; at most {MAX_PIXELS} px are decoded"
        raise VideoError("too_large", f"video: {path.name}: {said}")
