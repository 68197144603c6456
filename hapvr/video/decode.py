"""Sampled frames of a video file: PyAV, decoding no more than is needed of H.264, and decord where it is exact for other
codecs. The only module that imports decord.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import av
import numpy as np
from numpy.typing import NDArray

from hapvr.errors import VideoError
from hapvr.video.container import (
    MAX_PIXELS,
    StreamMetadata,
    TimedFrame,
    VideoProbe,
    iter_frames,
    open_video,
    read_metadata,
)
from hapvr.video.geometry import display_frame
from hapvr.video.sampling import TOLERANCE_S, check_sampling, frames_due, sampling_times, shown_frames
from hapvr.video.selection import CODEC as SELECTED_CODEC
from hapvr.video.selection import IncompleteSelectionError, Packets, iter_selected, read_packets

Decoder = Literal["auto", "pyav"]
Kept = TypeVar("Kept")

try:
    DECORD_VERSION: str | None = version("decord")
except PackageNotFoundError:
    DECORD_VERSION = None
"""None where it is not installed; PyAV then reads everything, to the same pixels."""

DECORD = f"decord {DECORD_VERSION}"
PYAV = f"pyav {av.__version__}"
PYAV_SELECTED = f"{PYAV}, wanted frames only"

# Containers whose packets say when they are shown.
_TIMED_FORMATS = frozenset({"mp4", "mov", "matroska", "webm"})
# decord 0.6 garbles rotated frames, numbers frames wrongly where packets are dropped or out of order, chooses its stream
# by other rules, fails on newer codecs, gives other frames of HEVC with open groups, and other pixels of MPEG-4.
_DECORD_CODECS = frozenset({"vp8", "vp9"})


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
    return read_metadata(path, max_pixels=max_pixels).probe


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
    is read only up to the last of these frames. Raises ArgumentError, and VideoError as `probe_video` does.
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
    metadata = read_metadata(path, max_pixels=max_pixels)
    samples = _Samples(path, metadata, fps, short_side_px, max_frames, keep)
    selects = metadata.probe.codec == SELECTED_CODEC
    timed = decoder == "auto" and bool(metadata.formats & _TIMED_FORMATS) and (selects or _decord_reads(metadata))
    packets = read_packets(path, until_s=math.inf if max_frames is None else max_frames / fps) if timed else None
    if packets is not None and (selects or packets.whole):
        try:
            return _sample_packets(samples, packets)
        except (IncompleteSelectionError, RuntimeError, IndexError):
            samples = _Samples(path, metadata, fps, short_side_px, max_frames, keep)
    return _sample_all(samples, max_pixels)  # if the file is at fault, this says so


@dataclass
class _Samples(Generic[Kept]):
    """What is sampled of a file, and what was kept of it so far."""

    path: Path
    metadata: StreamMetadata
    fps: float
    short_side_px: int | None
    max_frames: int | None
    keep: Callable[[NDArray[np.uint8]], Kept]
    kept: list[Kept] = field(default_factory=list)
    size_px: tuple[int, int] | None = None

    def add(self, stored: NDArray[np.uint8], count: int) -> None:
        """The next frame, on display at this many sampling times; all have the size of the first."""
        frame = display_frame(
            stored,
            pixel_aspect=self.metadata.pixel_aspect,
            rotation_deg=self.metadata.rotation_deg,
            short_side_px=self.short_side_px,
            size_px=self.size_px,
        )
        self.size_px = (frame.shape[1], frame.shape[0])
        self.kept += [self.keep(frame)] * count

    def finish(self, decoder: str, *, end_s: float | None) -> Sample[Kept]:
        """end_s: time of the file's last frame; None if reading stopped before it."""
        if self.size_px is None:
            raise VideoError("no_frames", f"video: {self.path.name}: no frame was sampled; fetch the file again")
        probe, warning = self.metadata.probe, ""
        if end_s is not None and probe.duration_s is not None and probe.duration_s - end_s > 0.5 + 2 / (probe.fps or 1):
            warning = f"frames end at {end_s:.1f} s of the {probe.duration_s:.1f} s that the file declares"
        times_s = tuple(k / self.fps for k in range(len(self.kept)))
        return Sample(tuple(self.kept), times_s, *self.size_px, decoder, warning, probe)


def _decord_reads(metadata: StreamMetadata) -> bool:
    return (
        DECORD_VERSION is not None
        and metadata.rotation_deg == 0
        and metadata.num_video_streams == 1
        and metadata.probe.codec in _DECORD_CODECS
        and metadata.pixel_format == "yuv420p"
    )


def _sample_packets(samples: _Samples[Kept], packets: Packets) -> Sample[Kept]:
    """Decode the frames on display at the sampling times, each once."""
    end_s = packets.times_s[-1]
    times_s = sampling_times(fps=samples.fps, end_s=end_s, max_frames=samples.max_frames)
    indices, counts = np.unique(shown_frames(np.array(packets.times_s), times_s), return_counts=True)
    selects = samples.metadata.probe.codec == SELECTED_CODEC
    frames = (_selected_frames if selects else _decord_frames)(samples.path, packets, indices.tolist())
    width_px, height_px = samples.metadata.stored_px
    for stored, count in zip(frames, counts.tolist(), strict=True):
        if stored.shape != (height_px, width_px, 3):
            raise IncompleteSelectionError
        samples.add(stored, count)
    return samples.finish(PYAV_SELECTED if selects else DECORD, end_s=end_s if packets.whole else None)


def _selected_frames(path: Path, packets: Packets, indices: list[int]) -> Iterator[NDArray[np.uint8]]:
    for frame in iter_selected(path, packets, [packets.pts[index] for index in indices]):
        yield _rgb(frame, path)


def _decord_frames(path: Path, packets: Packets, indices: list[int]) -> Iterator[NDArray[np.uint8]]:
    import decord as untyped  # only where it is installed, and a file needs it

    decord: Any = untyped
    decord.logging.set_level(decord.logging.QUIET)
    try:
        reader = decord.VideoReader(str(path), ctx=decord.cpu(0), num_threads=1)
        if len(reader) != len(packets.pts):
            raise IncompleteSelectionError
        for index in indices:
            yield reader[index].asnumpy()
    except decord.DECORDError as error:
        raise IncompleteSelectionError from error


def _sample_all(samples: _Samples[Kept], max_pixels: int) -> Sample[Kept]:
    """Decode all frames, up to the last one that is wanted."""
    with open_video(samples.path) as (container, stream):
        timed = iter_frames(samples.path, container, stream, max_pixels=max_pixels)
        current: TimedFrame = next(timed)
        while True:
            following = next(timed, None)
            # a frame is shown until the next one starts; the last one at its own time only
            until_s = current.time_s + 2 * TOLERANCE_S if following is None else following.time_s
            count = frames_due(fps=samples.fps, until_s=until_s, max_frames=samples.max_frames) - len(samples.kept)
            if count > 0:
                samples.add(_rgb(current.frame, samples.path), count)
            if len(samples.kept) == samples.max_frames:
                return samples.finish(PYAV, end_s=None)
            if following is None:
                return samples.finish(PYAV, end_s=current.time_s)
            current = following


def _rgb(frame: av.VideoFrame, path: Path) -> NDArray[np.uint8]:
    try:
        return frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
    except (av.error.FFmpegError, ValueError) as error:
        raise VideoError(
            "decode_error",
            f"video: {path.name}: a {frame.format.name} frame cannot be shown as RGB ({error}); convert it",
        ) from error
