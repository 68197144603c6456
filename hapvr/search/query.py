"""A query: the part of a video, or the picture, that is looked for."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from hapvr.errors import ArgumentError, VideoError
from hapvr.scorer.segments import FrameTimes
from hapvr.scorer.videos import SampledFeatures

MOMENT_S = 1.0
"""How far before and after a moment the query goes that is named by one second."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Seconds of a query, from its first frame on. end_s: None for its end. Raises ArgumentError unless 0 <= start < end."""

    start_s: float = 0.0
    end_s: float | None = None

    def __post_init__(self) -> None:
        end = math.inf if self.end_s is None else self.end_s
        if not (math.isfinite(self.start_s) and 0 <= self.start_s < end):
            raise ArgumentError(f"part: from {self.start_s} to {self.end_s} s; wanted 0 <= from < to")

    @staticmethod
    def around(moment_s: float) -> Part:
        """The second before and after a moment. Raises ArgumentError for one that is not finite, or long before 0."""
        return Part(start_s=max(moment_s - MOMENT_S, 0.0), end_s=moment_s + MOMENT_S)


@dataclass(frozen=True, kw_only=True, eq=False)
class Query:
    """A video or picture that can be searched for.

    sha256: of the file, "" from a URL. read_s: how long it took to read. video_id: of a video of the collection, else "".
    """

    name: str
    features: SampledFeatures
    sha256: str = ""
    read_s: float = 0.0
    video_id: str = ""


def thin(video: SampledFeatures, count: int) -> SampledFeatures:
    """At most `count` of the frames, evenly apart, with their own times."""
    if len(video.regions) <= count:
        return video
    rows = np.linspace(0, len(video.regions) - 1, count).round().astype(int)
    times = np.asarray(video.clock.times_s)[rows]
    return SampledFeatures(video.regions[rows.tolist()], FrameTimes(tuple(times.tolist()), video.clock.duration_s))


def cut(video: SampledFeatures, part: Part, *, name: str, fps: float) -> SampledFeatures:
    """The sampled frames of a part, with their own times. Raises VideoError `no_frames` where it has none.

    fps: of the sampling; a frame stands for the 1 / fps seconds from its time on.
    """
    times = np.asarray(video.clock.times_s)
    end = math.inf if part.end_s is None else part.end_s
    rows = np.flatnonzero((times + 1 / fps > part.start_s) & (times < end))
    if not len(rows):
        last = times[-1] + 1 / fps if len(times) else 0.0
        raise VideoError(
            "no_frames",
            f"query: {name} lasts {last:.1f} s and has no frame from {part.start_s:g} s on; name another part",
        )
    first, last = int(rows[0]), int(rows[-1]) + 1
    return SampledFeatures(video.regions[first:last], video.clock.part(first, last))


def printable(text: str) -> str:
    """A text that can be written as UTF-8: bytes of a file's name that are not are written as \\xNN, as in `text_of_path`."""
    return re.sub("[\ud800-\udfff]", lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", text)
