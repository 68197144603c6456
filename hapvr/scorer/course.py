"""Whether aligned frames of two videos follow the same course. Whatever was done to its pictures, a
copy resembles its original more or less, just as the original resembles itself more or less; two
takes of one scene look alike throughout."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hapvr.scorer.embedded import EmbeddedVideo
from hapvr.scorer.segments import Segment
from hapvr.scorer.steady_parts import is_less_alike, is_one_scene

MIN_AGREEMENT = 0.6
"""The least correlation at which two videos have the same course, and not only the same look."""
MIN_FRAMES = 4
"""Fewer frames have no course; their pictures must be NEAR_IDENTICAL instead."""
MAX_FRAMES = 64
"""The most aligned frames that are compared."""
NEAR_IDENTICAL = 0.95
"""Mean similarity of aligned frames from which on they are the same pictures, whatever their
course; other takes of one person in one room reach 0.949."""
LOG_ODDS = math.log(35)
"""What one course adds to the log-odds of a match. Of 1,286 pairs that have a probability of 0.01
or more without it, 91 % of the copies have one course and 1 of 73 others (`bench.duplicates`; one
more is counted, to be careful)."""
LEAST_PROBABILITY = 0.01
"""The least probability of videos that are aligned to test their course. Less probable ones would
be unlikely even with one course, and it was not measured how many of them are copies."""


class FrameComparer(Protocol):
    """Compares the frames of two videos, see `hapvr.scorer.scorer.VideoScorer`."""

    def relative_similarity(
        self, query: EmbeddedVideo, reference: EmbeddedVideo
    ) -> NDArray[np.float64]: ...


@dataclass(frozen=True, kw_only=True)
class CommonCourse:
    """How alike the aligned frames of two stretches with the same course are."""

    of_query: float
    """mean similarity in [-1, 1]: how much of the query's frames the others show"""
    of_reference: float
    """the other way round"""


def course_of_segment(
    scorer: FrameComparer, query: EmbeddedVideo, reference: EmbeddedVideo, segment: Segment
) -> CommonCourse | None:
    """What the frames of a common part of two videos have in common; None where their course
    differs."""
    shown = rows_between(query.clock.times_s, segment.query_start_s, segment.query_end_s)
    same = rows_between(reference.clock.times_s, segment.reference_start_s, segment.reference_end_s)
    return common_course(scorer, query.part(*shown), reference.part(*same))


def shown_parts(
    scorer: FrameComparer,
    query: EmbeddedVideo,
    parts: Iterable[Segment],
    has_one_course: Callable[[Segment], bool],
) -> list[Segment]:
    """Common parts of a query and another video, in order, without other moments of the same scene.

    One that is less alike than another that shows the same of the query must have one course with
    it, as the same footage has that was edited in another way. Another moment may have one, too, so
    the part is not certain if the query shows one scene.

    has_one_course: whether the frames of a part follow one
    """
    shown: list[Segment] = []
    for part in parts:
        if not any(is_less_alike(part, other) for other in shown):
            shown.append(part)
        elif has_one_course(part):
            rows = rows_between(query.clock.times_s, part.query_start_s, part.query_end_s)
            of_query = query.part(*rows)
            own = scorer.relative_similarity(of_query, of_query)
            shown.append(replace(part, certain=not is_one_scene(own, part.score)))

    return shown


def rows_between(times_s: Sequence[float], start_s: float, end_s: float) -> tuple[int, int]:
    """The places of the first frame at or after `start_s`, and of the first at or after `end_s`; at
    least one frame is between."""
    first, last = np.searchsorted(times_s, (start_s, end_s)).tolist()
    first = min(first, len(times_s) - 1)
    return first, max(last, first + 1)


def common_course(
    scorer: FrameComparer, query: EmbeddedVideo, reference: EmbeddedVideo
) -> CommonCourse | None:
    """As `course_of_segment`, for videos of which all frames are in the common part. At another
    speed, frames are taken evenly apart."""
    count = min(len(query), len(reference), MAX_FRAMES)
    first = query.take(_evenly(len(query), count))
    second = reference.take(_evenly(len(reference), count))
    forth = scorer.relative_similarity(first, second)
    back = scorer.relative_similarity(second, first)
    of_first = scorer.relative_similarity(first, first)
    of_second = scorer.relative_similarity(second, second)
    if not same_course((forth + back.T) / 2, (of_first + of_second) / 2):
        return None
    return CommonCourse(
        of_query=float(np.diag(forth).mean()), of_reference=float(np.diag(back).mean())
    )


def same_course(cross: NDArray[np.float64], own: NDArray[np.float64]) -> bool:
    """Whether aligned frames are of the same footage, by their similarities [N, N] with each other
    and, on average, among themselves, whose correlation is Mantel's (1967) between two distance
    matrices."""
    diagonal = float(np.diag(cross).mean())
    if len(cross) < MIN_FRAMES or diagonal >= NEAR_IDENTICAL or min(cross.std(), own.std()) < 1e-6:
        return diagonal >= NEAR_IDENTICAL

    return float(np.corrcoef(cross.ravel(), own.ravel())[0, 1]) >= MIN_AGREEMENT


def _evenly(num_frames: int, count: int) -> list[int]:
    """`count` places among the frames, evenly apart."""
    places: list[int] = np.linspace(0, num_frames - 1, count).round().astype(int).tolist()
    return places
