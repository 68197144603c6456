"""The packets of a video stream, in order; only those that a sample needs are decoded."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import av
from av.container import InputContainer
from av.packet import Packet
from av.video.frame import PictureType, VideoFrame
from av.video.stream import VideoStream

from hapvr.video.packets import MAX_REORDERED
from hapvr.video.picture_clock import LONG_STEP_S, NOTED_STEP_S
from hapvr.video.pictures import Picture
from hapvr.video.probe import check_size, positive
from hapvr.video.sampler import MAX_UNUSED

SKIPPING_CODECS = frozenset({"h264", "mpeg1video", "mpeg2video", "mpeg4"})
"""Decoders that can leave out exactly those pictures that no other needs. The one of HEVC is not
among them: it also leaves out some that pictures of higher temporal layers need."""

MAX_HELD_BYTES = 256 * 2**20
"""The most bytes of packets that are read but not decoded yet: ten seconds at 200 Mbit/s."""
MAX_WITHOUT_KEY_S = 10.0
"""How many seconds a recording that was cut anywhere may have before its first key frame."""
MAX_REORDERED_S = 2.0
"""A larger difference between a packet's times of display and of decoding, beyond that of
MAX_REORDERED pictures, is an error of one of the two clocks."""
ALONE = (PictureType.I, PictureType.NONE)
"""The picture types of a key frame that needs no other frame; some decoders give none."""


class UnsuitedError(Exception):
    """A video that this mode cannot sample, and that is to be sampled more thoroughly."""


class TimedPacket(NamedTuple):
    """A packet of pictures. Times are in seconds from the file's start."""

    packet: Packet[VideoStream]
    time_s: float
    """when its picture is shown"""
    due_s: float
    """when it is decoded: all pictures that are shown before then came before it in the file"""
    lasts_s: float
    is_key: bool


@dataclass
class Held:
    """Packets that are not decoded yet, from a key frame or the last decoded packet on."""

    packets: list[TimedPacket] = field(default_factory=list)
    num_bytes: int = 0

    def add(self, packet: TimedPacket) -> None:
        """Add a packet. Raises UnsuitedError if there are too many."""
        self.packets.append(packet)
        self.num_bytes += packet.packet.size
        if len(self.packets) > MAX_UNUSED or self.num_bytes > MAX_HELD_BYTES:
            raise UnsuitedError("too many pictures between two sampling times")

    def take(self) -> list[TimedPacket]:
        """Take all packets."""
        return self._taken(len(self.packets))

    def take_through(self, last: TimedPacket) -> list[TimedPacket]:
        """Take the packets up to this one; none if it was taken before."""
        for number, packet in enumerate(self.packets):
            if packet is last:
                return self._taken(number + 1)
        return []

    def _taken(self, count: int) -> list[TimedPacket]:
        packets = self.packets[:count]
        self.packets = self.packets[count:]
        self.num_bytes -= sum(packet.packet.size for packet in packets)
        return packets


class StreamReader:
    """Reads one stream once. Raises UnsuitedError at any sign that the clock is broken, that the
    stream is damaged, or that key frames need other frames: such videos are left to sampling by
    every picture, which can tell what is wrong."""

    def __init__(self, path: Path, container: InputContainer, stream: VideoStream) -> None:
        if container.start_time is None or stream.time_base is None:
            raise UnsuitedError("the file has no clock")
        self._path = path
        self._container = container
        self._stream = stream
        self._start_s = container.start_time / av.time_base
        self._unit_s = float(stream.time_base)
        """the unit of the timestamps of packets and frames"""
        rate = positive(stream.average_rate) or positive(stream.guessed_rate) or 25.0
        self._interval_s = 1 / max(rate, 0.01)
        self._shown_s = float("-inf")
        self._is_restarted = False
        self.last: TimedPacket | None = None
        """the packet whose picture is shown last, of those that were read"""

    def stamp_s(self, packet: TimedPacket) -> float:
        """When its picture is shown by the file's own clock."""
        return (packet.packet.pts or 0) * self._unit_s

    def packets(self) -> Iterator[TimedPacket]:
        """All packets from the first key frame on."""
        due_s = None
        seen_key = False
        for packet in self._demuxed():
            timed = self._timed(packet, before_s=due_s)
            due_s = timed.due_s
            seen_key |= timed.is_key
            if self.last is None or timed.time_s > self.last.time_s:
                self.last = timed
            if seen_key:
                yield timed
            elif timed.time_s > MAX_WITHOUT_KEY_S:
                raise UnsuitedError("no key frame where the video begins")

    def decode(self, packets: Iterable[TimedPacket]) -> Iterator[Picture]:
        """The pictures that the decoder delivers, which may be those of earlier packets."""
        for timed in packets:
            try:
                frames = timed.packet.decode()
            except (av.error.FFmpegError, IndexError) as error:
                raise UnsuitedError("a packet does not decode") from error

            yield from self._pictures(frames)

    def drain(self) -> Iterator[Picture]:
        """The pictures that the decoder still holds; the next packet must be a key frame."""
        context = self._stream.codec_context
        try:
            frames = context.decode(None)
        except av.error.FFmpegError as error:
            raise UnsuitedError("a packet does not decode") from error

        yield from self._pictures(frames)
        context.flush_buffers()
        self._is_restarted = True

    def leave_out_unneeded(self, leaves_out: bool) -> None:
        """Choose whether the decoder leaves out pictures that no other needs."""
        self._stream.codec_context.skip_frame = "NONREF" if leaves_out else "DEFAULT"

    def begin_at(self, key: TimedPacket) -> None:
        """Drop pictures that are shown before this key frame: they may need frames that the decoder
        has not seen."""
        self._shown_s = max(self._shown_s, key.time_s - self._interval_s / 2)

    def alone(self, key: TimedPacket) -> Picture:
        """The picture of a key frame, decoded alone."""
        self.begin_at(key)
        pictures = list(itertools.chain(self.decode([key]), self.drain()))
        if not pictures:
            raise UnsuitedError("a key frame gives no picture")
        return pictures[-1]

    def _demuxed(self) -> Iterator[Packet[VideoStream]]:
        packets = self._container.demux(self._stream)
        while True:
            try:
                packet = next(packets, None)
            except (av.error.FFmpegError, IndexError) as error:
                raise UnsuitedError("a part of the file cannot be read") from error

            if packet is None:
                return
            if packet.size:
                yield packet

    def _timed(self, packet: Packet[VideoStream], *, before_s: float | None) -> TimedPacket:
        """before_s: when the packet before it is decoded."""
        if packet.pts is None:
            raise UnsuitedError("packets have no times")
        if packet.is_corrupt:
            raise UnsuitedError("a packet is damaged")
        time_s = packet.pts * self._unit_s - self._start_s
        due_s = time_s
        if packet.dts is not None:
            due_s = packet.dts * self._unit_s - self._start_s
        elif before_s is not None:
            due_s = before_s

        step_s = due_s - (0.0 if before_s is None else before_s)
        reordered_s = MAX_REORDERED * self._interval_s + MAX_REORDERED_S
        if not -NOTED_STEP_S < step_s <= LONG_STEP_S or abs(time_s - due_s) > reordered_s:
            raise UnsuitedError("the file's clock jumps")
        lasts_s = packet.duration * self._unit_s if packet.duration else self._interval_s
        return TimedPacket(packet, time_s, due_s, lasts_s, packet.is_keyframe)

    def _pictures(self, frames: Iterable[object]) -> Iterator[Picture]:
        """The pictures that are shown after the last one."""
        for frame in frames:
            if not isinstance(frame, VideoFrame):
                continue
            check_size(self._path, frame.width, frame.height)
            if frame.pts is None:
                raise UnsuitedError("pictures have no times")
            if frame.is_corrupt:
                raise UnsuitedError("a picture is damaged")
            time_s = max(frame.pts * self._unit_s - self._start_s, 0.0)
            is_alone = frame.pict_type in ALONE
            if time_s <= self._shown_s:
                self._is_restarted &= not is_alone
                continue
            if self._is_restarted and not is_alone:
                raise UnsuitedError("its key frames cannot be decoded alone")
            self._is_restarted = False
            self._shown_s = time_s
            lasts_s = frame.duration * self._unit_s if frame.duration else self._interval_s
            yield Picture(time_s, lasts_s, frame)
