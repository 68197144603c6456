"""Sampling that decodes a part of a video's frames: those that other frames need, or key frames
alone. What it keeps is shown at the times that it says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hapvr.video.decode import Decoding, is_webp_film, open_stream
from hapvr.video.ending import Ending, ending_of
from hapvr.video.pictures import Picture, Pictures
from hapvr.video.probe import VideoProbe, probe_of
from hapvr.video.sampler import TOLERANCE_S, Display, Wanted, read_text
from hapvr.video.settings import SamplingMode
from hapvr.video.stream_reader import Held, StreamReader, TimedPacket, UnsuitedError

MIN_GAP_S = 3.5
"""Key frames that follow sooner are left out: each costs as much as ten other frames, and streams
that have one every two seconds show little new in it."""
MAX_GAP_S = 10.5
"""Where kept frames would be further apart, one more is decoded. Encoders put a key frame every 250
frames unless told otherwise, which is 10.4 s at 24 frames a second: a file made so needs none."""
MIN_KEPT = 4
"""A video that would have fewer frames is so short that all it costs to decode it is little."""
NEAR_SHARE = 0.25
"""By so much of the time between two sampling times, a key frame may be before or after one of them
and stand for it."""
FILMS_OF_PICTURES = frozenset({"apng", "gif"})
"""Containers of short films without sound, in which nothing is to be saved."""


class SparseSample(NamedTuple):
    """What `sample_sparsely` found of a video."""

    probe: VideoProbe
    kept: list[Any]
    times_s: list[float]
    missing: str


def sample_sparsely(
    path: Path,
    *,
    wanted: Wanted,
    mode: SamplingMode,
    threads: int,
    archive_codecs: bool,
    progress: Callable[[float], None],
) -> SparseSample:
    """The frames of a video by mode `quick` or `key_frames`.

    Raises: UnsuitedError for a video that this mode cannot sample; VideoError as `open_stream`.
    """
    if is_webp_film(path):
        raise UnsuitedError("a WebP film")
    is_quick = mode == "quick"
    decoding = Decoding(
        threads=threads if is_quick else 1,
        archive_codecs=archive_codecs,
        needed_only=True,
        unsmoothed_px=None if wanted.short_side_px is None else 2 * wanted.short_side_px,
    )
    with open_stream(path, decoding) as (container, stream):
        if container.format.name in FILMS_OF_PICTURES:
            raise UnsuitedError("a film of pictures")
        reader = StreamReader(path, container, stream)
        period_s = 1 / wanted.fps
        pictures = (
            near_pictures(reader, period_s) if is_quick else KeyFrames(reader, period_s).all()
        )
        first = next(pictures, None)
        if first is None or reader.last is None:
            raise UnsuitedError("no picture decodes")
        probe = probe_of(container, stream, first.frame)
        sample = NearestSample(probe, wanted) if is_quick else EverySample(probe, wanted)
        for picture in itertools.chain([first], pictures):
            progress(picture.time_s)
            sample.take(picture)
            if sample.is_full:
                break
        else:
            last = Picture(reader.last.time_s, reader.last.lasts_s, picture.frame)
            sample.end(ending_of(path, probe, last, Pictures(path, container, stream)))
    if not is_quick and len(sample.kept) < MIN_KEPT:
        raise UnsuitedError("too few key frames", instead="quick")
    return SparseSample(probe, sample.kept, sample.times_s, sample.missing)


class EverySample:
    """Keeps every picture, at the time at which it is shown."""

    def __init__(self, probe: VideoProbe, wanted: Wanted) -> None:
        self._wanted = wanted
        self._display = Display(probe, wanted.short_side_px)
        self.kept: list[Any] = []
        self.times_s: list[float] = []
        self.missing = ""
        self.is_full = False

    def take(self, picture: Picture) -> None:
        """The next picture; the sample is full where there is one more than wanted."""
        self._keep(picture, [picture.time_s])

    def end(self, ending: Ending) -> None:
        """After the last picture."""
        self.missing = ending.missing

    def _keep(self, picture: Picture, times_s: Sequence[float]) -> None:
        """A picture that is shown at some times."""
        most = self._wanted.max_frames
        if most is not None and len(self.kept) + len(times_s) > most:
            times_s = times_s[: most - len(self.kept)]
            self.is_full = True
        if times_s:
            kept = self._wanted.keep(self._display.shown_soon(picture.frame))
            self.kept += [kept] * len(times_s)
            self.times_s += times_s
        if self.is_full:
            self.missing = read_text(self.times_s[-1] + 1 / self._wanted.fps - self.times_s[0])


class NearestSample(EverySample):
    """Keeps, of pictures in order, the one that is nearest to each sampling time, at its own time;
    again at the later sampling times of a picture that stays."""

    def __init__(self, probe: VideoProbe, wanted: Wanted) -> None:
        super().__init__(probe, wanted)
        self._period_s = 1 / wanted.fps
        self._first_s: float | None = None
        self._next = 0
        self._waiting: Picture | None = None

    def take(self, picture: Picture) -> None:
        """The next picture; it decides about the one before it."""
        before = self._waiting
        if before is None:
            self._first_s = picture.time_s
        else:
            middle_s = (before.time_s + picture.time_s) / 2
            # a picture that stays is at most half of a period early
            self._show(before, until_s=max(middle_s, picture.time_s - self._period_s / 2))
        self._waiting = picture

    def end(self, ending: Ending) -> None:
        self.missing = ending.missing
        if self._waiting is not None:
            self._show(self._waiting, until_s=ending.end_s)

    def _show(self, picture: Picture, *, until_s: float) -> None:
        first_s = self._first_s or 0.0
        due = math.ceil((until_s - first_s - TOLERANCE_S) * self._wanted.fps)
        times_s = [first_s + number * self._period_s for number in range(self._next, due)]
        self._next = max(self._next, due)
        if times_s and abs(picture.time_s - times_s[0]) <= self._period_s / 2:
            times_s[0] = picture.time_s
        self._keep(picture, times_s)


def near_pictures(reader: StreamReader, period_s: float) -> Iterator[Picture]:
    """Pictures near the sampling times, one period apart, and others. What lies between the last
    sampling time before a key frame and that key frame is not decoded."""
    held = Held()
    slack_s = NEAR_SHARE * period_s
    first_s: float | None = None
    goal_s = -math.inf
    for packet in reader.packets():
        if first_s is None:
            first_s = packet.time_s
        if packet.is_key:
            if packet.due_s >= goal_s + slack_s:
                yield from reader.decode(held.take())
            held.take()
            yield from reader.drain()
            reader.begin_at(packet)
        held.add(packet)
        reached_s = packet.due_s - slack_s
        if packet.is_key:
            reached_s = max(reached_s, packet.time_s + slack_s)
        # a key frame that is near enough, or all that is needed to show what is near
        if reached_s >= goal_s:
            yield from reader.decode(held.take(until_s=goal_s))
            goal_s = first_s + (math.floor((reached_s - first_s) / period_s) + 1) * period_s
    if reader.last is not None and reader.last.time_s + reader.last.lasts_s > goal_s:
        yield from reader.decode(held.take())
    yield from reader.drain()


class KeyFrames:
    """Key frames at least MIN_GAP_S apart, or one a period where all frames are key frames; and one
    more wherever there would be none for MAX_GAP_S."""

    def __init__(self, reader: StreamReader, period_s: float) -> None:
        self._reader = reader
        self._period_s = period_s
        self._held = Held()
        """from the last key frame on, or behind what was decoded for a frame between key frames"""
        self._is_open = False
        """whether the decoder goes on from what it decoded last"""
        self._last: Picture | None = None
        """what was kept last, at the time at which it was kept"""
        self._is_between = False
        """whether that was no key frame"""
        self._gap_s = period_s
        """how far from it the next key frame may be kept"""

    def all(self) -> Iterator[Picture]:
        """Each with the time at which it is shown."""
        for packet in self._reader.packets():
            if packet.is_key:
                yield from self._until(packet.due_s)
                self._leave()
                if self._is_wanted(packet):
                    yield self._kept(self._reader.alone(packet), is_key=True)
            elif self._gap_s < MIN_GAP_S and not self._is_between:
                self._gap_s = MIN_GAP_S
            self._held.add(packet)
            yield from self._until(packet.due_s)

    def _is_wanted(self, key: TimedPacket) -> bool:
        if self._last is None:
            return True
        return key.time_s >= self._last.time_s + self._gap_s - TOLERANCE_S

    def _leave(self) -> None:
        """Forget what lies before a key frame."""
        self._held.take()
        if self._is_open:
            for _ in self._reader.drain():
                pass
            self._is_open = False

    def _kept(self, picture: Picture, *, is_key: bool) -> Picture:
        self._last = picture
        self._is_between = not is_key
        self._gap_s = self._period_s
        return picture

    def _until(self, due_s: float) -> Iterator[Picture]:
        """What is kept between key frames, up to a time up to which all packets are there."""
        if self._last is None or due_s < self._last.time_s + MAX_GAP_S:
            return
        packets = self._held.take()
        if packets and not self._is_open:
            self._reader.begin_at(packets[0])
            self._is_open = True
        newest: Picture | None = None
        for picture in self._reader.decode(packets):
            yield from self._filled(newest, picture.time_s)
            newest = picture
        yield from self._filled(newest, due_s)

    def _filled(self, newest: Picture | None, until_s: float) -> Iterator[Picture]:
        """The newest picture, or once more the last one where it stays, so that no more than
        MAX_GAP_S are left."""
        while self._last is not None and until_s >= self._last.time_s + MAX_GAP_S:
            if newest is not None and newest.time_s > self._last.time_s:
                picture = newest
            else:
                picture = self._last._replace(time_s=self._last.time_s + MAX_GAP_S)
            yield self._kept(picture, is_key=False)
