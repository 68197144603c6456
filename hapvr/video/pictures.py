"""The pictures of a stream in display order, each with its time."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import av
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from hapvr.errors import VideoError
from hapvr.video.packets import MAX_REORDERED, PacketTimes, scan_packets, text_of
from hapvr.video.picture_clock import LONG_STEP_S, PictureClock
from hapvr.video.probe import check_size, positive

PAUSE_S = 60.0
"""How many seconds of a pause longer than LONG_STEP_S are sampled."""


class Picture(NamedTuple):
    """A decoded frame."""

    time_s: float
    """when it is shown, in seconds from the file's start"""
    lasts_s: float
    """for how long, by its packet, or else the nominal time"""
    frame: VideoFrame


@dataclass
class Damage:
    """Pictures between good ones that are missing or damaged. Damage at the ends does not count: a
    recording may be cut anywhere, so its ends may need pictures that it does not have."""

    num_pictures: int = 0
    first_s: float = 0.0
    """when the first of them, or the picture before it, is shown"""
    _last_good_s: float = 0.0
    _num_good: int = 0
    _num_unsure: int = 0
    """after the last good one"""

    def add_good(self, time_s: float) -> None:
        if self._num_unsure and self._num_good > MAX_REORDERED:
            self.first_s = self.first_s if self.num_pictures else self._last_good_s
            self.num_pictures += self._num_unsure

        self._num_unsure = 0
        self._num_good += 1
        self._last_good_s = time_s

    def add_damaged(self) -> None:
        self._num_unsure += 1

    def __str__(self) -> str:
        """What the video lacks, in words; "" for nothing."""
        if not self.num_pictures:
            return ""
        are = "picture is" if self.num_pictures == 1 else "pictures are"
        return f"{self.num_pictures} {are} damaged, the first at {self.first_s:.1f} s"


class Pictures:
    """An iterator over all pictures of one stream that can be decoded, in display order. Raises
    VideoError as `open_video` says."""

    def __init__(self, path: Path, container: InputContainer, stream: VideoStream) -> None:
        self._path = path
        self._container = container
        self._stream = stream
        rate = positive(stream.average_rate) or positive(stream.guessed_rate) or 25.0
        self.interval_s = 1 / max(rate, 0.01)
        start = container.start_time
        self.start_s = None if start is None else start / av.time_base
        self.clock = PictureClock(
            start_s=self.start_s, interval_s=self.interval_s, is_broken=self._is_broken
        )
        self.num_declared = stream.frames
        """the number of pictures that the file declares; 0 where it does not"""
        self.ends_early = False
        """whether declared pictures are missing, as far as that is known without timestamps"""
        self.is_damaged = False
        """whether, so far, a packet did not decode or a picture was damaged"""
        self.damage = Damage()
        self._pictures: Iterator[Picture] = self._decode()

    def __iter__(self) -> Iterator[Picture]:
        return self

    def __next__(self) -> Picture:
        return next(self._pictures)

    def put_back(self, picture: Picture) -> None:
        """Put a picture back, to be given again before the others."""
        self._pictures = chain([picture], self._pictures)

    @cached_property
    def packets(self) -> PacketTimes:
        """The packet times, read from the file on first use."""
        return scan_packets(self._path, stream_index=self._stream.index)

    def sampled_s(self, picture: Picture, until_s: float) -> float:
        """For how many seconds a picture that is shown until `until_s` is sampled: a silent pause
        is not worth as many frames as a picture that people talk over."""
        if until_s - picture.time_s <= LONG_STEP_S:
            return LONG_STEP_S
        start_s = self.start_s or 0.0
        has_sound = self.packets.has_sound(picture.time_s + start_s, until_s + start_s)
        return LONG_STEP_S if has_sound else PAUSE_S

    def _is_broken(self, before_s: float, after_s: float) -> bool:
        return self.packets.is_broken(before_s, after_s)

    def _decode(self) -> Iterator[Picture]:
        problem = ""
        decoded = False
        packets = self._container.demux(self._stream)
        while True:
            frames: list[VideoFrame] = []
            try:
                packet = next(packets, None)
                if packet is None:
                    break
                frames = [frame for frame in packet.decode() if isinstance(frame, VideoFrame)]
            except IndexError:  # PyAV does not know streams that begin later: skip their packet
                packets = self._container.demux(self._stream)
            except av.error.FFmpegError as error:
                problem = text_of(error)
                self.is_damaged = True
                self.damage.add_damaged()

            for frame in frames:
                check_size(self._path, frame.width, frame.height)
                decoded = True
                yield self._picture(frame)

        if not decoded:
            reason = "decode_error" if problem else "no_frames"
            raise VideoError(
                reason,
                f"video: {self._path.name}: no frame decodes ({problem or 'empty stream'}); "
                "fetch it again",
            )

    def _picture(self, frame: VideoFrame) -> Picture:
        unit_s = None if frame.time_base is None else float(frame.time_base)
        shown_s = _seconds(frame.pts, unit_s)
        decoded_s = _seconds(frame.dts, unit_s)
        lasts_s = frame.duration * unit_s if frame.duration and unit_s else self.interval_s
        time_s = self.clock.time_of(shown_s, decoded_s)
        if frame.is_corrupt:
            self.is_damaged = True
            self.damage.add_damaged()
        else:
            self.damage.add_good(time_s)

        return Picture(time_s, lasts_s, frame)


def _seconds(stamp: int | None, unit_s: float | None) -> float | None:
    if stamp is None or unit_s is None:
        return None
    return stamp * unit_s
