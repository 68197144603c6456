"""Thorough sampling that decodes no more than it needs: the pictures on display at the sampling
times, and those from which these are predicted. Its frames and times are the same as if every
picture were decoded; where that is not certain, every picture of the file is decoded instead.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from hapvr.video.decode import Decoding, is_webp_film, open_stream
from hapvr.video.ending import ending_of
from hapvr.video.picture_clock import LONG_STEP_S, PictureClock
from hapvr.video.pictures import Picture, Pictures
from hapvr.video.probe import probe_of
from hapvr.video.sampler import Sampler, Wanted, number_due, stands_still
from hapvr.video.sparse import FILMS_OF_PICTURES, SparseSample
from hapvr.video.stream_reader import (
    SKIPPING_CODECS,
    Held,
    StreamReader,
    TimedPacket,
    UnsuitedError,
)

CODECS = frozenset(
    {
        "dnxhd",
        "h264",
        "hevc",
        "libdav1d",
        "mjpeg",
        "mpeg1video",
        "mpeg2video",
        "mpeg4",
        "prores",
        "vp8",
        "vp9",
    }
)
"""Decoders that can begin in the middle of a file, at a key frame."""


class ShownPicture(NamedTuple):
    """A picture, and when it disappears."""

    picture: Picture
    until_s: float


class _Awaited(NamedTuple):
    """A picture that the decoder has not delivered yet."""

    stamp: int
    time_s: float
    until_s: float


class NeededPictures:
    """The first picture of a stream and those on display at its sampling times, in order."""

    def __init__(
        self,
        reader: StreamReader,
        clock: PictureClock,
        *,
        fps: float,
        skips: bool,
        progress: Callable[[float], None],
    ) -> None:
        """
        skips: whether the decoder leaves out pictures that no other needs, see SKIPPING_CODECS
        progress: is told the time of each picture that is decoded
        """
        self._reader = reader
        self._clock = clock
        self._fps = fps
        self._skips = skips
        self._progress = progress
        self._num_read = 0
        self._num_unused = 0
        """pictures in a row that are not needed"""
        self._held = Held()
        """packets in the order of decoding, from the last decoded one on"""
        self._unordered: list[tuple[float, int, TimedPacket]] = []
        """packets before which others may still be shown, as a heap by their times"""
        self._awaited = deque[_Awaited]()
        self._early: dict[int, Picture] = {}
        """pictures that the decoder delivered before it was known whether they are needed"""
        self._first_s: float | None = None
        self._last: TimedPacket | None = None
        """the packet that is shown last, of those whose order is known"""
        self._last_s = 0.0
        """its time by the clock"""

    def all_but_last(self) -> Iterator[ShownPicture]:
        """The needed pictures that another picture follows; the decoder may hold some back."""
        for packet in self._reader.packets():
            if self._num_read and packet.packet.has_sidedata("new_extradata"):
                raise UnsuitedError("the stream changes")
            self._num_read += 1
            self._held.add(packet)
            # an edit list hides pictures that others need
            if not packet.packet.is_discard:
                heapq.heappush(self._unordered, (packet.time_s, self._num_read, packet))
            while self._unordered and self._unordered[0][0] < packet.due_s:
                yield from self._order(heapq.heappop(self._unordered)[2])

        while self._unordered:
            yield from self._order(heapq.heappop(self._unordered)[2])

    @property
    def last(self) -> TimedPacket:
        """The packet of the last picture, after `all_but_last`, at the time of the clock."""
        if self._last is None:
            raise UnsuitedError("no picture is shown")
        return self._last._replace(time_s=self._last_s)

    def end(self, end_s: float) -> Iterator[ShownPicture]:
        """The remaining needed pictures; the last picture disappears at `end_s`."""
        yield from self._show(end_s)
        yield from self._drain()

    def _order(self, packet: TimedPacket) -> Iterator[ShownPicture]:
        """Take the next packet in the order of display. It decides whether the one before it is
        needed."""
        last = self._last
        if last is not None and not 0 < packet.time_s - last.time_s <= LONG_STEP_S:
            raise UnsuitedError("pictures do not follow one another")
        time_s = self._clock.time_of(self._reader.stamp_s(packet), None)
        yield from self._show(time_s)
        if self._first_s is None:
            self._first_s = time_s
        self._last = packet
        self._last_s = time_s

    def _show(self, until_s: float) -> Iterator[ShownPicture]:
        """Show the last picture, which disappears at `until_s`, if it is needed."""
        if self._last is None or self._first_s is None:
            return
        due_before = number_due(self._last_s, self._first_s, self._fps)
        is_due = number_due(until_s, self._first_s, self._fps) > due_before
        self._num_unused = 0 if is_due else self._num_unused + 1
        if stands_still(self._num_unused, self._fps):
            raise UnsuitedError("the clock stands still")
        if is_due or self._last_s == self._first_s:
            yield from self._decode_to(self._last, until_s)

    def _decode_to(self, wanted: TimedPacket, until_s: float) -> Iterator[ShownPicture]:
        """Decode what a picture needs, from the last key frame on. Earlier packets that were not
        decoded are skipped."""
        packets = self._held.take_through(wanted)
        keys = [
            number
            for number, packet in enumerate(packets)
            if packet.is_key and packet.time_s <= wanted.time_s
        ]
        if keys and keys[-1] > 0:
            yield from self._drain()
            packets = packets[keys[-1] :]
            self._reader.begin_at(packets[0])

        stamp = _stamp(wanted)
        self._awaited.append(_Awaited(stamp, self._last_s, until_s))
        early = self._early.get(stamp)
        self._early = {key: picture for key, picture in self._early.items() if key > stamp}
        if early is not None:
            yield from self._matched([early])
        for packet in packets:
            self._reader.leave_out_unneeded(self._skips and packet.time_s < wanted.time_s)
            yield from self._matched(self._reader.decode([packet]))

    def _drain(self) -> Iterator[ShownPicture]:
        """The awaited pictures that the decoder still holds."""
        yield from self._matched(self._reader.drain())
        if self._awaited:
            raise UnsuitedError("a picture does not come out of the decoder")

    def _matched(self, pictures: Iterable[Picture]) -> Iterator[ShownPicture]:
        """The awaited pictures among these; later ones are put aside."""
        for picture in pictures:
            self._progress(picture.time_s)
            stamp = picture.frame.pts
            if self._awaited and stamp == self._awaited[0].stamp:
                awaited = self._awaited.popleft()
                yield ShownPicture(picture._replace(time_s=awaited.time_s), awaited.until_s)
            elif stamp is not None and self._last is not None and stamp > _stamp(self._last):
                self._early[stamp] = picture


def _stamp(packet: TimedPacket) -> int:
    stamp = packet.packet.pts
    assert stamp is not None  # the reader refuses packets without
    return stamp


def sample_needed(
    path: Path,
    *,
    wanted: Wanted,
    threads: int,
    archive_codecs: bool,
    progress: Callable[[float], None],
) -> SparseSample:
    """The thorough sample of a video.

    Raises: UnsuitedError for a video whose pictures must all be decoded; VideoError as
        `open_stream`.
    """
    if is_webp_film(path):
        raise UnsuitedError("a WebP film")
    decoding = Decoding(threads=threads, archive_codecs=archive_codecs)
    with open_stream(path, decoding) as (container, stream):
        codec = stream.codec_context.name
        if container.format.name in FILMS_OF_PICTURES or codec not in CODECS:
            raise UnsuitedError("its key frames may need others")
        pictures = Pictures(path, container, stream)
        needed = NeededPictures(
            StreamReader(path, container, stream),
            pictures.clock,
            fps=wanted.fps,
            skips=codec in SKIPPING_CODECS,
            progress=progress,
        )
        shown = needed.all_but_last()
        first = next(shown, None)
        if first is None:
            raise UnsuitedError("so short that the decoder holds all of it back")
        probe = probe_of(container, stream, first.picture.frame)
        sampler = Sampler(probe, wanted)
        _fill(sampler, pictures, itertools.chain([first], shown))
        if not sampler.is_full:
            last = Picture(needed.last.time_s, needed.last.lasts_s, first.picture.frame)
            ending = ending_of(path, probe, last, pictures)
            sampler.missing = ending.missing
            _fill(sampler, pictures, needed.end(ending.end_s))

    return SparseSample(probe, sampler.kept, sampler.times_s, sampler.missing)


def _fill(sampler: Sampler, pictures: Pictures, shown: Iterable[ShownPicture]) -> None:
    """Show pictures to a sampler until it is full."""
    for picture, until_s in shown:
        sampler.show(picture, until_s=until_s, longest_s=pictures.sampled_s(picture, until_s))
        if sampler.is_full:
            return
