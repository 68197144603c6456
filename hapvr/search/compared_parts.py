"""Which frames of a query and of a candidate are compared: all of short videos, else the parts that
may show the same."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hapvr.model.settings import COMPARATOR_STEP
from hapvr.scorer.embedded import EmbeddedVideo
from hapvr.scorer.segments import FrameTimes
from hapvr.search.votes import Candidate

WHOLE_FRAMES = 60
"""Sampled frames up to which a query and a video are compared whole, if both are that short."""
PART_FRAMES = 8
"""Sampled frames of query and video around votes that are compared at least."""

Rows = tuple[int, int]
"""First and last + 1 of some frames."""


@dataclass(frozen=True)
class Pair:
    """Frames of the query and of a candidate that are compared."""

    query: Rows
    reference: Rows


@dataclass(frozen=True, eq=False)
class ReadPart:
    """A part of a candidate, and the frames of the query that it is compared with."""

    query: Rows
    video_id: str
    video: EmbeddedVideo


def pairs_of(
    candidate: Candidate, times_s: Sequence[float], *, query: EmbeddedVideo, fps: float
) -> list[Pair]:
    """Which frames of the query are compared with which of a candidate. All with all if both are
    short (`WHOLE_FRAMES`), or no frame voted for the candidate. Otherwise each window makes a pair:
    the part of the query whose frames voted, of at least `PART_FRAMES`, and the part of the
    candidate at the voted offset. Similarities of few frames depend on their number, so parts have
    whole steps of the comparator, and both parts of a pair the same number, unless a video is
    shorter, or its frames are further apart: then it has those of the same time."""
    count = len(times_s)
    if max(count, len(query)) <= WHOLE_FRAMES or not candidate.windows:
        return [Pair((0, len(query)), (0, count))]
    steps = FrameTimes(tuple(times_s)).steps(fps)
    least = PART_FRAMES * steps
    pairs: list[Pair] = []
    for window in candidate.windows:
        voted = round((window.query_end_s - window.query_start_s) * fps) + 1
        length = -(-min(max(voted, least), len(query)) // COMPARATOR_STEP) * COMPARATOR_STEP
        middle_s = (window.query_start_s + window.query_end_s) / 2
        shown = _around(middle_s, length, query.clock.times_s, fps=fps)
        middle_s = (query.clock.times_s[shown[0]] + query.clock.times_s[shown[1] - 1]) / 2
        middle_s += window.offset_s
        if steps == 1:
            part = _around(middle_s, length, times_s, fps=fps)
        else:
            part = _during(middle_s, length / fps, times_s)

        pair = Pair(shown, part)
        if not any(_same(pair, better) for better in pairs):
            pairs.append(pair)

    return pairs


def _around(middle_s: float, num_frames: int, times_s: Sequence[float], *, fps: float) -> Rows:
    """So many rows around a second, moved where the video begins or ends; all rows of a shorter
    video."""
    first = int(np.searchsorted(times_s, middle_s - num_frames / 2 / fps))
    first = max(min(first, len(times_s) - num_frames), 0)
    return first, min(first + num_frames, len(times_s))


def _during(middle_s: float, length_s: float, times_s: Sequence[float]) -> Rows:
    """The rows of so many seconds around a second, and the one before and the one behind them."""
    first = int(np.searchsorted(times_s, middle_s - length_s / 2)) - 1
    last = int(np.searchsorted(times_s, middle_s + length_s / 2)) + 1
    first = max(min(first, len(times_s) - 1), 0)
    return first, max(min(last, len(times_s)), first + 1)


def _same(pair: Pair, other: Pair) -> bool:
    """Whether more than half of both parts of a pair are in another one."""
    return all(
        min(part[1], better[1]) - max(part[0], better[0]) > (part[1] - part[0]) / 2
        for part, better in ((pair.query, other.query), (pair.reference, other.reference))
    )
