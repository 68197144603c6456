"""Sampling that decodes key frames, and more only where they are far apart. Each kept frame has the
time at which it is shown."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hapvr.video.decode import Decoding, is_webp_film, open_stream
from hapvr.video.ending import ending_of
from hapvr.video.pictures import Picture, Pictures
from hapvr.video.probe import VideoProbe, probe_of
from hapvr.video.sampler import TOLERANCE_S, Display, Wanted, read_text
from hapvr.video.stream_reader import (
    SKIPPING_CODECS,
    Held,
    StreamReader,
    TimedPacket,
    UnsuitedError,
)

MIN_GAP_S = 3.5
"""Key frames that follow sooner are skipped: each costs as much as ten other frames, and in streams
with one every two seconds it shows little that is new."""
MAX_GAP_S = 10.5
"""Where kept frames would be further apart, one more is decoded. Encoders put a key frame every 250
frames unless told otherwise, which is 10.4 s at 24 frames a second: such a file needs no more."""
MIN_KEPT = 4
"""A video that would have fewer frames is so short that decoding all of it costs little."""
FILMS_OF_PICTURES = frozenset({"apng", "gif"})
"""Containers of short films without sound, where nothing can be saved."""


class SparseSample(NamedTuple):
    """The sample of a video that was not decoded in full."""

    probe: VideoProbe
    kept: list[Any]
    times_s: list[float]
    missing: str


def sample_key_frames(
    path: Path,
    *,
    wanted: Wanted,
    archive_codecs: bool,
    progress: Callable[[float], None],
) -> SparseSample:
    """The frames of a video by mode `key_frames`.

    Raises: UnsuitedError for a video that this mode cannot sample; VideoError as `open_stream`.
    """
    if is_webp_film(path):
        raise UnsuitedError("a WebP film")
    decoding = Decoding(
        archive_codecs=archive_codecs,
        unsmoothed_px=None if wanted.short_side_px is None else 2 * wanted.short_side_px,
    )
    with open_stream(path, decoding) as (container, stream):
        if container.format.name in FILMS_OF_PICTURES:
            raise UnsuitedError("a film of pictures")
        reader = StreamReader(path, container, stream)
        reader.leave_out_unneeded(stream.codec_context.name in SKIPPING_CODECS)
        pictures = KeyFrames(reader, 1 / wanted.fps).all()
        first = next(pictures, None)
        if first is None or reader.last is None:
            raise UnsuitedError("no picture decodes")
        probe = probe_of(container, stream, first.frame)
        sample = EverySample(probe, wanted)
        for picture in itertools.chain([first], pictures):
            progress(picture.time_s)
            sample.take(picture)
            if sample.is_full:
                break
        else:
            last = Picture(reader.last.time_s, reader.last.lasts_s, picture.frame)
            ending = ending_of(path, probe, last, Pictures(path, container, stream))
            sample.missing = ending.missing

    if len(sample.kept) < MIN_KEPT:
        raise UnsuitedError("too few key frames")
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
        """Take the next picture; the sample is full once there is one more than wanted."""
        if len(self.kept) == self._wanted.max_frames:
            self.is_full = True
            self.missing = read_text(self.times_s[-1] + 1 / self._wanted.fps - self.times_s[0])
            return

        self.kept.append(self._wanted.keep(self._display.shown_soon(picture.frame)))
        self.times_s.append(picture.time_s)


class KeyFrames:
    """Key frames at least MIN_GAP_S apart, or one per period where all frames are key frames; and
    one more frame wherever there would be none for MAX_GAP_S."""

    def __init__(self, reader: StreamReader, period_s: float) -> None:
        self._reader = reader
        self._period_s = period_s
        self._held = Held()
        """packets from the last key frame on, or after those decoded for a frame between key
        frames"""
        self._is_open = False
        """whether the decoder can go on from what it decoded last"""
        self._last: Picture | None = None
        """the frame kept last, with the time under which it was kept"""
        self._is_between = False
        """whether that frame was not a key frame"""
        self._gap_s = period_s
        """the least distance from it to the next key frame that is kept"""

    def all(self) -> Iterator[Picture]:
        """All kept frames, each with the time at which it is shown."""
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
        """The frames kept between key frames, up to `due_s`; all packets up to then were read."""
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
        """The newest picture, or the last one once more if it stays, so that no gap exceeds
        MAX_GAP_S."""
        while self._last is not None and until_s >= self._last.time_s + MAX_GAP_S:
            if newest is not None and newest.time_s > self._last.time_s:
                picture = newest
            else:
                picture = self._last._replace(time_s=self._last.time_s + MAX_GAP_S)

            yield self._kept(picture, is_key=False)
