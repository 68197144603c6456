"""Sampled frames of a video file; of H.264, non-reference frames that are not wanted are skipped.

That is exact by the standard, to the last bit: no picture may refer to one with nal_ref_idc 0.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from hapvr.errors import VideoError
from hapvr.video.container import VideoProbe, iter_frames, iter_packets, open_video, probe_video
from hapvr.video.frames import MAX_GAP_S, TOLERANCE_S, display_frame, frames_due, sampling_times, shown_frames

PYAV = f"pyav {av.__version__}"
PYAV_SELECTED = f"{PYAV}, wanted frames only"

# Containers whose packets say when they are shown.
_TIMED_FORMATS = frozenset({"mp4", "mov", "matroska", "webm"})

SELECTED_CODEC = "h264"
MARGIN_S = 10.0
"""How much later than a packet's decoding time its frame may be shown, in streams that break the rules."""


@dataclass
class Sample:
    """What was kept of the frames on display at 0, 1/fps, 2/fps ... seconds.

    size_px: width and height of all frames, that of the first. warning: "" or what seems to be missing from the file.
    """

    path: Path
    probe: VideoProbe
    fps: float
    short_side_px: int | None
    max_frames: int | None
    keep: Callable[[NDArray[np.uint8]], Any]
    kept: list[Any] = field(default_factory=list)
    size_px: tuple[int, int] | None = None
    decoder: str = ""
    warning: str = ""

    @property
    def timestamps_s(self) -> tuple[float, ...]:
        return tuple(k / self.fps for k in range(len(self.kept)))

    @property
    def frames(self) -> NDArray[np.uint8]:
        """[N, H, W, 3] RGB, N >= 1, where all of each frame is kept."""
        return np.stack(self.kept)

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

    def finish(self, decoder: str, *, end_s: float | None) -> Sample:
        """end_s: time of the file's last frame; None if reading stopped before it."""
        self.decoder, probe = decoder, self.probe
        if end_s is not None and probe.duration_s is not None and probe.duration_s - end_s > 0.5 + 2 / (probe.fps or 1):
            self.warning = f"frames end at {end_s:.1f} s of the {probe.duration_s:.1f} s that the file declares"
        return self


def sample_frames(
    path: Path,
    *,
    fps: float,
    short_side_px: int | None,
    keep: Callable[[NDArray[np.uint8]], Any] = lambda frame: frame,
    max_frames: int | None = None,
    decode_all: bool = False,
) -> Sample:
    """The frames on display at 0, 1/fps, 2/fps ... seconds after the first one (method 1.1).

    short_side_px: the frames' short side after rotation and pixel aspect; None keeps the stored resolution. keep: gets a
    frame [H, W, 3] uint8 RGB and returns what to hold of it; called once for a frame that is shown at several sampling
    times. A video shorter than 1/fps gives one frame; a damaged video gives the frames that can be decoded. With
    max_frames, the file is read only up to the last of these frames. decode_all: decode what is not needed, too; for
    comparison. Raises VideoError as `probe_video` does.
    """
    probe = probe_video(path)
    selects = not decode_all and probe.codec == SELECTED_CODEC and probe.formats & _TIMED_FORMATS
    packets = read_packets(path, until_s=math.inf if max_frames is None else max_frames / fps) if selects else None
    if packets is not None:
        with contextlib.suppress(IncompleteSelectionError):  # if the file is at fault, decoding all of it says so
            return _sample_packets(Sample(path, probe, fps, short_side_px, max_frames, keep), packets)
    return _sample_all(Sample(path, probe, fps, short_side_px, max_frames, keep))


def _sample_packets(sample: Sample, packets: Packets) -> Sample:
    """Decode the frames on display at the sampling times, each once."""
    end_s = packets.times_s[-1]
    times_s = sampling_times(fps=sample.fps, end_s=end_s, max_frames=sample.max_frames)
    indices, counts = np.unique(shown_frames(np.array(packets.times_s), times_s), return_counts=True)
    shown = sorted(packets.pts)
    wanted = [shown[index] for index in indices.tolist()]
    for frame, count in zip(iter_selected(sample.path, packets, wanted), counts.tolist(), strict=True):
        if (frame.width, frame.height) != sample.probe.stored_px:
            raise IncompleteSelectionError
        sample.add(_rgb(frame, sample.path), count)
    return sample.finish(PYAV_SELECTED, end_s=end_s if packets.whole else None)


def _sample_all(sample: Sample) -> Sample:
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


class IncompleteSelectionError(Exception):
    """A wanted frame did not come, or came damaged; decoding all frames can still make the best of the file."""


@dataclass(frozen=True)
class Packets:
    """Packets of a stream with a steady clock, so that packet n in display order is frame n.

    pts: in the order of the file, in the stream's own unit. times_s: in display order, in seconds from the first on. whole:
    whether these are all packets of the file.
    """

    pts: tuple[int, ...]
    times_s: tuple[float, ...]
    whole: bool


def read_packets(path: Path, *, until_s: float = math.inf) -> Packets | None:
    """Packets of a file's main stream, up to those whose frames are shown after `until_s`. Decodes none of them.

    until_s: seconds from the first frame. None unless every packet is undamaged, in order, meant to be shown and on a
    steady clock. Raises VideoError as `open_video` does.
    """
    found: list[int] = []
    last_dts, whole = -math.inf, True
    with open_video(path) as (container, stream):
        unit = stream.time_base
        try:
            for packet in iter_packets(container, stream):
                if packet.size == 0:
                    continue
                # a frame is never shown before its packet's decoding time
                decoded_at = packet.pts if packet.dts is None else packet.dts
                if packet.is_corrupt or packet.is_discard or packet.pts is None or decoded_at is None or unit is None:
                    return None
                if packet.dts is not None:
                    if packet.dts <= last_dts:
                        return None
                    last_dts = packet.dts
                found.append(packet.pts)
                if (decoded_at - found[0]) * unit > until_s + MARGIN_S:
                    whole = False
                    break
        except av.error.FFmpegError:
            return None
        pts = sorted(found)
        times_s = tuple(float((time - pts[0]) * unit) for time in pts if unit is not None)
    if not pts or not all(0 < b - a <= MAX_GAP_S for a, b in itertools.pairwise(times_s)):
        return None
    return Packets(tuple(found), times_s, whole)


def iter_selected(path: Path, packets: Packets, wanted: Collection[int]) -> Iterator[VideoFrame]:
    """The frames with these pts, in display order. Decodes no non-reference frame that is not wanted.

    packets: of an H.264 file, as `read_packets` gave them. Raises IncompleteSelectionError if one of the frames does not
    come or is damaged, or if the file is not the same any more.
    """
    missing = set(wanted)
    last = max(index for index, pts in enumerate(packets.pts) if pts in missing)
    with open_video(path) as (container, stream):
        decoder = stream.codec_context
        source = (packet for packet in iter_packets(container, stream) if packet.size)
        try:
            for pts in packets.pts[: last + 1]:
                packet = next(source, None)
                if packet is None or packet.pts != pts:
                    raise IncompleteSelectionError
                decoder.skip_frame = "DEFAULT" if pts in missing else "NONREF"
                yield from _found(packet.decode(), missing)
            yield from _found(decoder.decode(None), missing)  # pictures that wait for their turn
        except av.error.FFmpegError as error:
            raise IncompleteSelectionError from error
    if missing:
        raise IncompleteSelectionError


def _found(frames: list[VideoFrame], missing: set[int]) -> Iterator[VideoFrame]:
    for frame in frames:
        if frame.pts in missing and not frame.is_corrupt:
            missing.discard(frame.pts)
            yield frame
