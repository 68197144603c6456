"""The wanted frames of an H.264 file without decoding all of it: skips non-reference frames and groups without a wanted
frame.

Exact by the standard, to the last bit: no picture may refer to one with nal_ref_idc 0, nor to one before an IDR picture.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import av
from av.video.frame import VideoFrame

from hapvr.video.container import iter_packets, open_video
from hapvr.video.frames import MAX_GAP_S

CODEC = "h264"

MARGIN_S = 10.0
"""How much later than a packet's decoding time its frame may be shown, in streams that break the rules."""

_SLICE, _IDR_SLICE = 1, 5


class IncompleteSelectionError(Exception):
    """A wanted frame did not come, or came damaged; decoding all frames can still make the best of the file."""


@dataclass(frozen=True)
class Packets:
    """Packets of a stream with a steady clock, so that packet n in display order is frame n.

    pts: in display order, in the stream's own unit. times_s: the same in seconds from the first on. groups: the same
    in the order of the file; in H.264 all but the first begin at an IDR picture, where decoding can begin afresh. whole:
    whether these are all packets of the file.
    """

    pts: tuple[int, ...]
    times_s: tuple[float, ...]
    groups: tuple[tuple[int, ...], ...]
    whole: bool


def read_packets(path: Path, *, until_s: float = math.inf) -> Packets | None:
    """Packets of the main video stream, up to those whose frames are shown after `until_s`. Decodes none of them.

    until_s: seconds from the first frame. None unless every packet is undamaged, in order, meant to be shown and on a
    steady clock. Raises VideoError as `open_video` does.
    """
    groups: list[list[int]] = [[]]
    last_dts: int | None = None
    first_pts: int | None = None
    whole = True
    with open_video(path) as (container, stream):
        length_bytes = _length_bytes(stream.codec_context.extradata) if stream.codec_context.name == CODEC else 0
        try:
            for packet in iter_packets(container, stream):
                if packet.size == 0:
                    continue
                if packet.is_corrupt or packet.is_discard or packet.pts is None:
                    return None
                if packet.dts is not None:
                    if last_dts is not None and packet.dts <= last_dts:
                        return None
                    last_dts = packet.dts
                first_pts = packet.pts if first_pts is None else min(first_pts, packet.pts)
                # a frame is never shown before its packet's decoding time
                decoded_at = packet.pts if packet.dts is None else packet.dts
                if stream.time_base and (decoded_at - first_pts) * stream.time_base > until_s + MARGIN_S:
                    whole = False
                    break
                if packet.is_keyframe and groups[-1] and length_bytes and _is_idr(bytes(packet), length_bytes):
                    groups.append([])
                groups[-1].append(packet.pts)
        except av.error.FFmpegError:
            return None
        pts = sorted(itertools.chain.from_iterable(groups))
        if not pts or stream.time_base is None:
            return None
        times_s = tuple(float((time - pts[0]) * stream.time_base) for time in pts)
    if not all(0 < b - a <= MAX_GAP_S for a, b in itertools.pairwise(times_s)):
        return None
    return Packets(tuple(pts), times_s, tuple(tuple(group) for group in groups), whole)


def iter_selected(path: Path, packets: Packets, wanted: Collection[int]) -> Iterator[VideoFrame]:
    """The frames with these pts, in display order.

    packets: of an H.264 file, as `read_packets` gave them. Raises IncompleteSelectionError if one of the frames does not
    come or is damaged, or if the file is not the same any more.
    """
    missing = set(wanted)
    with open_video(path) as (container, stream):
        decoder = stream.codec_context
        source = (packet for packet in iter_packets(container, stream) if packet.size)
        try:
            for group in packets.groups:
                wanted_here = left = len(missing.intersection(group))
                for pts in group:
                    packet = next(source, None)
                    if packet is None or packet.pts != pts:
                        raise IncompleteSelectionError
                    if left:
                        decoder.skip_frame = "DEFAULT" if pts in missing else "NONREF"
                        left -= pts in missing
                        yield from _found(packet.decode(), missing)
                if wanted_here:
                    # pictures that wait for their turn; nothing after this refers to what came before
                    yield from _found(decoder.decode(None), missing)
                    decoder.flush_buffers()
        except av.error.FFmpegError as error:
            raise IncompleteSelectionError from error
    if missing:
        raise IncompleteSelectionError


def _found(frames: list[VideoFrame], missing: set[int]) -> Iterator[VideoFrame]:
    for frame in frames:
        if frame.pts in missing:
            if frame.is_corrupt:
                raise IncompleteSelectionError
            missing.discard(frame.pts)
            yield frame


def _length_bytes(extradata: bytes | None) -> int:
    """How many bytes give a unit's length, by an AVCDecoderConfigurationRecord (ISO/IEC 14496-15, 5.3.3); 0 for other data."""
    return (extradata[4] & 3) + 1 if extradata and len(extradata) > 4 and extradata[0] == 1 else 0


def _is_idr(packet: bytes, length_bytes: int) -> bool:
    """Whether the first picture of a packet is an IDR picture (nal_unit_type 5, ITU-T H.264 7.4.1)."""
    at = 0
    while at + length_bytes < len(packet):
        unit_type = packet[at + length_bytes] & 0x1F
        if _SLICE <= unit_type <= _IDR_SLICE:
            return unit_type == _IDR_SLICE
        at += length_bytes + int.from_bytes(packet[at : at + length_bytes])
    return False
