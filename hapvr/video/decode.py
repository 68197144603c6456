"""Sampled frames of a video file: PyAV, decoding no more than is needed of H.264, and decord where it is exact for other
codecs. The only module that imports decord.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import av
import numpy as np
from numpy.typing import NDArray

from hapvr.errors import VideoError
from hapvr.video.container import (
    MAX_PIXELS,
    StreamFacts,
    TimedFrame,
    VideoProbe,
    iter_frames,
    open_video,
    read_facts,
)
from hapvr.video.geometry import display_frame
from hapvr.video.sampling import TOLERANCE_S, check_sampling, frames_due, sampling_times, shown_frames
from hapvr.video.selection import CODEC as SELECTED_CODEC
from hapvr.video.selection import IncompleteSelectionError, Packets, iter_selected, read_packets

Decoder = Literal["auto", "pyav"]
Kept = TypeVar("Kept")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


DECORD_VERSION = _installed("decord")
"""None where it is not installed; PyAV then reads everything, to the same pixels."""

DECORD = f"decord {DECORD_VERSION}"
PYAV = f"pyav {av.__version__}"
PYAV_SELECTED = f"{PYAV}, wanted frames only"

# Containers whose packets say when they are shown.
_TIMED_FORMATS = frozenset({"mp4", "mov", "matroska", "webm"})
# decord 0.6 garbles rotated frames, numbers frames wrongly where packets are dropped or out of order, chooses its
# stream by other rules, and fails on newer codecs. It reads H.264 too, in twice the time of PyAV's wanted frames.
_DECORD_CODECS = frozenset({"hevc", "vp8", "vp9", "mpeg4"})
_DECORD_PIXEL_FORMATS = frozenset({"yuv420p", "yuvj420p"})


@dataclass(frozen=True)
class SampledFrames:
    """Frames on display at timestamps_s.

    frames: [N, H, W, 3] uint8 RGB, N >= 1. timestamps_s: [N]. warning: "" or what seems to be missing from the file.
    """

    frames: NDArray[np.uint8]
    timestamps_s: NDArray[np.float64]
    decoder: str
    warning: str


@dataclass(frozen=True)
class Sample(Generic[Kept]):
    """What was kept of each sampled frame, with the frames' size in pixels."""

    kept: tuple[Kept, ...]
    timestamps_s: tuple[float, ...]
    width_px: int
    height_px: int
    decoder: str
    warning: str
    probe: VideoProbe


def probe_video(path: Path, *, max_pixels: int = MAX_PIXELS) -> VideoProbe:
    """What the file says of its main video stream. The first frame is decoded, so a file that passes has at least one.

    Raises VideoError: missing_file, empty_file, not_video, no_video_stream, no_frames, decode_error or too_large.
    """
    return read_facts(path, max_pixels=max_pixels).probe


def sample_frames(
    path: Path,
    *,
    fps: float,
    short_side_px: int | None,
    max_frames: int | None = None,
    max_pixels: int = MAX_PIXELS,
    decoder: Decoder = "auto",
) -> SampledFrames:
    """The frames on display at 0, 1/fps, 2/fps ... seconds after the first one (method 1.1).

    short_side_px: the frames' short side after rotation and pixel aspect; None keeps the stored resolution. A video
    shorter than 1/fps gives one frame; a damaged video gives the frames that can be decoded. With max_frames, the file
    is read only as far as these frames need. Raises ArgumentError, and VideoError as `probe_video` does.
    """
    sample = sample_video(
        path,
        fps=fps,
        short_side_px=short_side_px,
        keep=lambda frame: frame,
        max_frames=max_frames,
        max_pixels=max_pixels,
        decoder=decoder,
    )
    return SampledFrames(
        frames=np.stack(sample.kept),
        timestamps_s=np.array(sample.timestamps_s),
        decoder=sample.decoder,
        warning=sample.warning,
    )


def sample_video(
    path: Path,
    *,
    fps: float,
    short_side_px: int | None,
    keep: Callable[[NDArray[np.uint8]], Kept],
    max_frames: int | None = None,
    max_pixels: int = MAX_PIXELS,
    decoder: Decoder = "auto",
) -> Sample[Kept]:
    """Do as `sample_frames`, but keep `keep(frame)` of each frame: memory then holds one decoded frame at a time.

    keep: gets [H, W, 3] uint8 RGB; called once for a frame that is shown at several sampling times.
    """
    check_sampling(fps=fps, max_frames=max_frames)
    plan = _Plan(path, read_facts(path, max_pixels=max_pixels), fps, short_side_px, max_frames, max_pixels)
    selects = plan.facts.probe.codec == SELECTED_CODEC
    timed = decoder == "auto" and bool(plan.facts.formats & _TIMED_FORMATS) and (selects or _decord_reads(plan.facts))
    until_s = math.inf if max_frames is None else max_frames / fps
    packets = read_packets(path, until_s=until_s) if timed else None
    if packets is None or not (selects or packets.whole):
        return _sample_pyav(plan, keep)
    try:
        return _sample_indexed(plan, packets, keep, selects=selects)
    except (DecordFailed, RuntimeError, IndexError, IncompleteSelectionError, _UnexpectedFrameError):
        return _sample_pyav(plan, keep)  # if the file is at fault, this says so


@dataclass(frozen=True)
class _Plan:
    path: Path
    facts: StreamFacts
    fps: float
    short_side_px: int | None
    max_frames: int | None
    max_pixels: int

    def display(self, stored: NDArray[np.uint8], size_px: tuple[int, int] | None) -> NDArray[np.uint8]:
        return display_frame(
            stored,
            pixel_aspect=self.facts.pixel_aspect,
            rotation_deg=self.facts.rotation_deg,
            short_side_px=self.short_side_px,
            size_px=size_px,
        )


class DecordFailed(Exception):
    """decord cannot read a file."""


class _UnexpectedFrameError(Exception):
    """Frames came in another number or shape than the file holds."""


def _decord_reads(facts: StreamFacts) -> bool:
    return (
        DECORD_VERSION is not None
        and facts.rotation_deg == 0
        and facts.num_video_streams == 1
        and facts.probe.codec in _DECORD_CODECS
        and facts.pixel_format in _DECORD_PIXEL_FORMATS
    )


def _sample_indexed(
    plan: _Plan, packets: Packets, keep: Callable[[NDArray[np.uint8]], Kept], *, selects: bool
) -> Sample[Kept]:
    """Decode the frames on display at the sampling times, each once."""
    end_s = packets.times_s[-1]
    times_s = sampling_times(fps=plan.fps, end_s=end_s, max_frames=plan.max_frames)
    shown = shown_frames(np.array(packets.times_s), times_s).tolist()
    indices = list(dict.fromkeys(shown))
    frames = _selected_frames(plan, packets, indices) if selects else _decord_frames(plan, packets, indices)
    kept: dict[int, Kept] = {}
    size_px: tuple[int, int] | None = None
    for index, stored in zip(indices, frames, strict=True):
        if stored.shape != (plan.facts.stored_px[1], plan.facts.stored_px[0], 3):
            raise _UnexpectedFrameError
        frame = plan.display(stored, size_px)
        size_px = (frame.shape[1], frame.shape[0])
        kept[index] = keep(frame)
    decoder = PYAV_SELECTED if selects else DECORD
    return _sample(
        plan, [kept[index] for index in shown], size_px, decoder=decoder, end_s=end_s if packets.whole else None
    )


def _selected_frames(plan: _Plan, packets: Packets, indices: list[int]) -> Iterator[NDArray[np.uint8]]:
    for frame in iter_selected(plan.path, packets, [packets.pts[index] for index in indices]):
        yield _rgb(frame, plan.path)


def _decord_frames(plan: _Plan, packets: Packets, indices: list[int]) -> Iterator[NDArray[np.uint8]]:
    import decord as untyped  # only where it is installed, and a file needs it

    decord: Any = untyped
    decord.logging.set_level(decord.logging.QUIET)
    try:
        reader = decord.VideoReader(str(plan.path), ctx=decord.cpu(0), num_threads=1)
        if len(reader) != len(packets.pts):
            raise _UnexpectedFrameError
        for index in indices:
            yield reader[index].asnumpy()
    except decord.DECORDError as error:
        raise DecordFailed from error


def _sample_pyav(plan: _Plan, keep: Callable[[NDArray[np.uint8]], Kept]) -> Sample[Kept]:
    kept: list[Kept] = []
    size_px: tuple[int, int] | None = None
    with open_video(plan.path) as (container, stream):
        timed = iter_frames(plan.path, container, stream, max_pixels=plan.max_pixels)
        current: TimedFrame = next(timed)
        while True:
            following = next(timed, None)
            # a frame is shown until the next one starts; the last one at its own time only
            until_s = current.time_s + 2 * TOLERANCE_S if following is None else following.time_s
            count = frames_due(fps=plan.fps, until_s=until_s, max_frames=plan.max_frames) - len(kept)
            if count > 0:
                frame = plan.display(_rgb(current.frame, plan.path), size_px)
                size_px = (frame.shape[1], frame.shape[0])
                kept.extend([keep(frame)] * count)
            if len(kept) == plan.max_frames:
                return _sample(plan, kept, size_px, decoder=PYAV, end_s=None)
            if following is None:
                return _sample(plan, kept, size_px, decoder=PYAV, end_s=current.time_s)
            current = following


def _rgb(frame: av.VideoFrame, path: Path) -> NDArray[np.uint8]:
    try:
        return frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
    except (av.error.FFmpegError, ValueError) as error:
        raise VideoError(
            "decode_error",
            f"video: {path.name}: a {frame.format.name} frame cannot be shown as RGB ({error}); convert it",
        ) from error


def _sample(
    plan: _Plan, kept: list[Kept], size_px: tuple[int, int] | None, *, decoder: str, end_s: float | None
) -> Sample[Kept]:
    """end_s: time of the file's last frame; None if reading stopped before it."""
    if size_px is None:
        raise VideoError("no_frames", f"video: {plan.path.name}: no frame was sampled; fetch the file again")
    probe = plan.facts.probe
    warning = ""
    if end_s is not None and probe.duration_s is not None and probe.duration_s - end_s > 0.5 + 2 / (probe.fps or 1):
        warning = f"frames end at {end_s:.1f} s of the {probe.duration_s:.1f} s that the file declares"
    return Sample(
        kept=tuple(kept),
        timestamps_s=tuple(k / plan.fps for k in range(len(kept))),
        width_px=size_px[0],
        height_px=size_px[1],
        decoder=decoder,
        warning=warning,
        probe=probe,
    )
