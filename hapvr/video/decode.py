"""Opens files with PyAV: what a video says about itself, and all its pictures in display order."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import av
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from PIL import Image

from hapvr.errors import VideoError
from hapvr.video.moving_pictures import USUAL_S, is_moving_webp, webp_frames
from hapvr.video.packets import (
    ARCHIVE_DECODERS,
    DECODERS,
    PacketTimes,
    films,
    open_container,
    text_of,
)
from hapvr.video.picture_clock import PictureClock
from hapvr.video.pictures import Damage, Picture, Pictures
from hapvr.video.probe import MAX_PIXELS, VideoProbe, check_file, check_size, probe_of


class WebPPictures(Pictures):
    """The frames of a WebP film, a format that FFmpeg does not read."""

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
        self.damage = Damage()
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
        raise VideoError(
            "decode_error", f"video: {path.name} cannot be decoded ({error}); fetch it again"
        ) from error

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


@dataclass(frozen=True)
class Decoding:
    """How a stream is decoded."""

    threads: int = 1
    archive_codecs: bool = False
    """whether the ARCHIVE_DECODERS are allowed, too"""
    unsmoothed_px: int | None = None
    """short side from which on the edges of blocks are not smoothed, since pictures are then made
    so small that nobody sees it; None: they are always smoothed"""


@contextlib.contextmanager
def open_stream(path: Path, decoding: Decoding) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The opened file, and the stream that is its video: the largest that is neither a still
    picture nor much shorter than another; among equals the first.

    Raises: VideoError not_video, no_video_stream, unsupported_codec, decode_error, too_large.
    """
    decoders = DECODERS | ARCHIVE_DECODERS if decoding.archive_codecs else DECODERS
    try:
        container = open_container(path, decoders)
    except (av.error.FFmpegError, ValueError) as error:
        # a drive or network may come back
        reason = "decode_error" if isinstance(error, OSError) else "not_video"
        raise VideoError(
            reason, f"video: {path.name} is in no known format ({text_of(error)})"
        ) from error

    with container:
        stream = container.streams[films(path, container)[0]]
        assert isinstance(stream, VideoStream)
        _check_codec(path, stream.codec_context.name, decoders)
        check_size(path, stream.codec_context.width, stream.codec_context.height)
        _prepare(stream, decoding)
        yield container, stream


def _check_codec(path: Path, name: str, decoders: frozenset[str]) -> None:
    """Raises VideoError unsupported_codec."""
    if name in decoders:
        return
    advice = "convert it, for example to H.264"
    if name in ARCHIVE_DECODERS:
        advice = f"set sampling.archive_codecs, or {advice}"
    raise VideoError(
        "unsupported_codec",
        f"video: {path.name}: its codec {name} is none of those that are decoded; {advice}",
    )


def _prepare(stream: VideoStream, decoding: Decoding) -> None:
    """Set up the decoder. Each thread holds a picture, so larger pictures get fewer threads."""
    context = stream.codec_context
    options = {"codec_whitelist": context.name}
    least_px = decoding.unsmoothed_px
    if least_px is not None and min(context.width, context.height) >= least_px:
        options["skip_loop_filter"] = "all"
    context.options = options
    threads = min(decoding.threads, MAX_PIXELS // max(context.width * context.height, 1))
    if threads < 2:
        stream.thread_type = "NONE"
        return

    stream.thread_type = "FRAME"
    context.thread_count = threads


def is_webp_film(path: Path) -> bool:
    """Whether `open_video` reads a file without FFmpeg.

    Raises: VideoError missing_file, empty_file, unwritten_file, not_video.
    """
    check_file(path)
    with path.open("rb") as file:
        return is_moving_webp(file.read(32))


@contextlib.contextmanager
def open_video(
    path: Path, *, threads: int = 1, archive_codecs: bool = False
) -> Iterator[tuple[VideoProbe, Pictures]]:
    """What the file says of its video, see `open_stream`, and the video's pictures.

    Times follow the file's own clock, from the file's start as players count: the first picture may
    come later than the sound. Where timestamps are missing or the clock is broken, the nominal time
    between frames is used, see `PictureClock`; where display times run backwards more often than
    decoding times, the latter are used. Damaged packets are skipped; the iteration ends when no
    more can be read.

    Raises: VideoError missing_file, empty_file, not_video, no_video_stream, unsupported_codec,
    no_frames if the stream is empty, decode_error if there were packets and all failed; too_large,
    at any frame, for one above MAX_PIXELS.
    """
    if is_webp_film(path):
        with _open_webp(path) as opened:
            yield opened
        return

    decoding = Decoding(threads=threads, archive_codecs=archive_codecs)
    with open_stream(path, decoding) as (container, stream):
        pictures = Pictures(path, container, stream)
        first = next(pictures)
        pictures.put_back(first)
        yield probe_of(container, stream, first.frame), pictures


def probe_video(path: Path, *, archive_codecs: bool = False) -> VideoProbe:
    """The `VideoProbe` that `open_video` gives; raises as it does. The first frame is decoded, so a
    file that passes has at least one."""
    with open_video(path, archive_codecs=archive_codecs) as (probe, _):
        return probe
