"""Sampled frames of a video file: PyAV, decoding no more than is needed of H.264, and decord where it is exact for other
codecs. The only module that imports decord.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import av
import numpy as np
from numpy.typing import NDArray

from hapvr.errors import VideoError
from hapvr.video.container import VideoProbe, iter_frames, open_video, probe_video
from hapvr.video.frames import TOLERANCE_S, display_frame, frames_due, sampling_times, shown_frames
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


@dataclass
class Sample(Generic[Kept]):
    """What was kept of the frames on display at 0, 1/fps, 2/fps ... seconds.

    size_px: width and height of all frames, that of the first. warning: "" or what seems to be missing from the file.
    """

    path: Path
    probe: VideoProbe
    fps: float
    short_side_px: int | None
    max_frames: int | None
    keep: Callable[[NDArray[np.uint8]], Kept]
    kept: list[Kept] = field(default_factory=list)
    size_px: tuple[int, int] | None = None
    decoder: str = ""
    warning: str = ""

    @property
    def timestamps_s(self) -> tuple[float, ...]:
        return tuple(k / self.fps for k in range(len(self.kept)))

    def add(self, stored: NDArray[np.uint8], count: int) -> None:
        """The next frame, on display at this many sampling times."""
        frame = display_frame(
            stored,
            pixel_aspect=self.probe.pixel_aspect,
            rotation_deg=self.probe.rotation_deg,
            short_side_px=self.short_side_px,
            size_px=self.size_px,
        )
        self.size_px = (frame.shape[1], frame.shape[0])
        self.kept += [self.keep(frame)] * count

    def finish(self, decoder: str, *, end_s: float | None) -> Sample[Kept]:
        """end_s: time of the file's last frame; None if reading stopped before it."""
        self.decoder, probe = decoder, self.probe
        if end_s is not None and probe.duration_s is not None and probe.duration_s - end_s > 0.5 + 2 / (probe.fps or 1):
            self.warning = f"frames end at {end_s:.1f} s of the {probe.duration_s:.1f} s that the file declares"
        return self


@dataclass(frozen=True)
class SampledFrames:
    """frames: [N, H, W, 3] uint8 RGB, N >= 1, on display at timestamps_s [N]. warning: as of `Sample`."""

    frames: NDArray[np.uint8]
    timestamps_s: NDArray[np.float64]
    decoder: str
    warning: str


def sample_frames(
    path: Path,
    *,
    fps: float,
    short_side_px: int | None,
    max_frames: int | None = None,
    decoder: Decoder = "auto",
) -> SampledFrames:
    """The frames on display at 0, 1/fps, 2/fps ... seconds after the first one (method 1.1).

    short_side_px: the frames' short side after rotation and pixel aspect; None keeps the stored resolution. A video
    shorter than 1/fps gives one frame; a damaged video gives the frames that can be decoded. With max_frames, the file
    is read only up to the last of these frames. Raises VideoError as `probe_video` does.
    """
    sample = sample_video(
        path, fps=fps, short_side_px=short_side_px, keep=lambda frame: frame, max_frames=max_frames, decoder=decoder
    )
    return SampledFrames(np.stack(sample.kept), np.array(sample.timestamps_s), sample.decoder, sample.warning)


def sample_video(
    path: Path,
    *,
    fps: float,
    short_side_px: int | None,
    keep: Callable[[NDArray[np.uint8]], Kept],
    max_frames: int | None = None,
    decoder: Decoder = "auto",
) -> Sample[Kept]:
    """Do as `sample_frames`, but keep `keep(frame)` of each frame: memory then holds one decoded frame at a time.

    keep: gets [H, W, 3] uint8 RGB; called once for a frame that is shown at several sampling times.
    """
    probe = probe_video(path)
    selects = probe.codec == SELECTED_CODEC
    timed = decoder == "auto" and bool(probe.formats & _TIMED_FORMATS) and (selects or _decord_reads(probe))
    packets = read_packets(path, until_s=math.inf if max_frames is None else max_frames / fps) if timed else None
    if packets is not None and (selects or packets.whole):
        try:
            return _sample_packets(Sample(path, probe, fps, short_side_px, max_frames, keep), packets)
        except (IncompleteSelectionError, RuntimeError, IndexError):
            pass  # if the file is at fault, decoding all of it says so
    return _sample_all(Sample(path, probe, fps, short_side_px, max_frames, keep))


def _decord_reads(probe: VideoProbe) -> bool:
    return (
        DECORD_VERSION is not None
        and probe.rotation_deg == 0
        and probe.num_video_streams == 1
        and probe.codec in _DECORD_CODECS
        and probe.pixel_format == "yuv420p"
    )


def _sample_packets(sample: Sample[Kept], packets: Packets) -> Sample[Kept]:
    """Decode the frames on display at the sampling times, each once."""
    end_s = packets.times_s[-1]
    times_s = sampling_times(fps=sample.fps, end_s=end_s, max_frames=sample.max_frames)
    indices, counts = np.unique(shown_frames(np.array(packets.times_s), times_s), return_counts=True)
    selects = sample.probe.codec == SELECTED_CODEC
    if selects:
        wanted = [packets.pts[index] for index in indices.tolist()]
        frames = (_rgb(frame, sample.path) for frame in iter_selected(sample.path, packets, wanted))
    else:
        frames = _decord_frames(sample.path, packets, indices.tolist())
    width_px, height_px = sample.probe.stored_px
    for stored, count in zip(frames, counts.tolist(), strict=True):
        if stored.shape != (height_px, width_px, 3):
            raise IncompleteSelectionError
        sample.add(stored, count)
    return sample.finish(PYAV_SELECTED if selects else DECORD, end_s=end_s if packets.whole else None)


def _decord_frames(path: Path, packets: Packets, indices: list[int]) -> Generator[NDArray[np.uint8], None, None]:
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


def _sample_all(sample: Sample[Kept]) -> Sample[Kept]:
    """Decode all frames, up to the last one that is wanted."""
    with open_video(sample.path) as (container, stream):
        timed = iter_frames(sample.path, container, stream)
        time_s, frame = next(timed)
        while True:
            following = next(timed, None)
            # a frame is shown until the next one starts; the last one at its own time only
            until_s = time_s + 2 * TOLERANCE_S if following is None else following[0]
            count = frames_due(fps=sample.fps, until_s=until_s, max_frames=sample.max_frames) - len(sample.kept)
            if count > 0:
                sample.add(_rgb(frame, sample.path), count)
            if len(sample.kept) == sample.max_frames:
                return sample.finish(PYAV, end_s=None)
            if following is None:
                return sample.finish(PYAV, end_s=time_s)
            time_s, frame = following


def _rgb(frame: av.VideoFrame, path: Path) -> NDArray[np.uint8]:
    try:
        return frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
    except (av.error.FFmpegError, ValueError) as error:
        raise VideoError(
            "decode_error",
            f"video: {path.name}: a {frame.format.name} frame cannot be shown as RGB ({error}); convert it",
        ) from error
