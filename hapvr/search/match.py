"""What a search answers: matches with their segments, and how much of both videos they cover."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hapvr.scorer.segments import Segment


@dataclass(frozen=True, kw_only=True)
class Match:
    """A video of the collection that may show footage of the query.

    rank: from 1. similarity in [-1, 1], as `hapvr score` gives for the compared parts of query and reference.
    probability: of a match, in [0, 1], for the prior of the answer; None from a model without calibration. segments: the
    longest and surest first. query_covered, reference_covered: parts of both that segments cover, in [0, 1]; None where
    no segments were looked for. votes: of the shortlist, 0 if the whole video led to it. mark: "match" where somebody
    marked the pair, else "".
    """

    query: str
    reference: str
    rank: int
    similarity: float
    probability: float | None
    segments: tuple[Segment, ...] = ()
    query_covered: float | None = None
    reference_covered: float | None = None
    votes: float = 0.0
    mark: str = ""

    @property
    def offset_s(self) -> float | None:
        """Time in the reference less time in the query at the beginning of the first segment."""
        return self.segments[0].reference_start_s - self.segments[0].query_start_s if self.segments else None


@dataclass(frozen=True, kw_only=True)
class SearchAnswer:
    """What one query gives. Without an error, no match means that nothing was found.

    seconds: of the searched part of the query. prior: share of matches for which the probabilities hold. compared: how
    many videos were scored of those that the collection has. warnings: what speaks against believing the answer.
    timings_s: where the time went. error: why there is no answer; empty if there is one.
    """

    query: str
    matches: tuple[Match, ...] = ()
    seconds: float = 0.0
    prior: float | None = None
    compared: int = 0
    videos: int = 0
    warnings: tuple[str, ...] = ()
    timings_s: dict[str, float]
    error: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class FrameMatrix:
    """values: similarity [T, T'] of frames, in [-1, 1], 1 for the same picture. query_times_s, reference_times_s: of the
    T and T' frames. threshold: the value from which on two frames count as the same in segments. segments: of the whole."""

    query_times_s: tuple[float, ...]
    reference_times_s: tuple[float, ...]
    values: NDArray[np.float64]
    threshold: float
    segments: tuple[Segment, ...]


def covered(spans: Iterable[tuple[float, float]], seconds: float) -> float:
    """Part of a video of so many seconds that lies in one of the spans, in [0, 1]."""
    total, end = 0.0, 0.0
    for start, stop in sorted(spans):
        total += max(stop - max(start, end), 0.0)
        end = max(end, stop)
    return min(total / seconds, 1.0) if seconds > 0 else 0.0


def coverage(segments: Sequence[Segment], *, query_s: float, reference_s: float) -> tuple[float, float]:
    """Parts of the query and of the reference that the segments cover, each in [0, 1]."""
    return (
        covered(((one.query_start_s, one.query_end_s) for one in segments), query_s),
        covered(((one.reference_start_s, one.reference_end_s) for one in segments), reference_s),
    )
