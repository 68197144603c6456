"""How well predicted segments of video pairs agree with the true ones: VCSL's measure, and errors of times.

A segment is a box: a stretch of the query and the stretch of the reference that shows the same. Tables of segments have
the columns of SEGMENT_SCHEMA.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hapvr.errors import DataError

Boxes = NDArray[np.float64]
"""[N, 4]: query start, query end, reference start, reference end, in seconds."""
Pair = tuple[str, str]

TIME_COLUMNS = ("query_start_s", "query_end_s", "reference_start_s", "reference_end_s")
SEGMENT_SCHEMA: dict[str, type[pl.DataType]] = {
    "query_id": pl.String,
    "reference_id": pl.String,
    **dict.fromkeys(TIME_COLUMNS, pl.Float64),
}


@dataclass(frozen=True, kw_only=True)
class SegmentMetrics:
    """All but the errors in [0, 1]. None: there was nothing to measure it on.

    precision, recall, f1: VCSL's over pairs, see `evaluate_segments`.
    begin_error, end_error: median distance of the predicted from the true begin and end, in sampled frames, of queries
    and references together. within_a_frame: part of all true segments whose four times are at most one frame off.
    found_rate: part of the true segments that some predicted segment overlaps; the errors are of these.
    num_missed_pairs: with true segments and no predicted one; num_false_pairs: the opposite.
    """

    precision: float | None
    recall: float | None
    f1: float | None
    begin_error: float | None
    end_error: float | None
    within_a_frame: float | None
    found_rate: float | None
    num_pairs: int
    num_true: int
    num_predicted: int
    num_missed_pairs: int
    num_false_pairs: int

    def to_json(self) -> dict[str, float | None]:
        """Plain values by name."""
        return asdict(self)


def evaluate_segments(true: pl.DataFrame, predicted: pl.DataFrame, *, fps: float) -> SegmentMetrics:
    """Compare segments of the pairs that were looked at; a pair with neither true nor predicted segments adds nothing.

    true, predicted: SEGMENT_SCHEMA; fps: sampled frames per second, for the errors.
    VCSL's precision of a pair is a product over both time axes, so that both must be right. On an axis, a predicted segment
    is right where it is covered by true segments that overlap it on both axes; precision is the right length of all
    predicted segments over their length. Recall is the same with the roles changed. precision is the mean over the pairs
    with predicted segments, recall that over the pairs with true ones, f1 the harmonic mean of both (He et al., "A
    Large-scale Comprehensive Dataset and Copy-overlap Aware Evaluation Protocol for Segment-level Video Copy Detection",
    CVPR 2022, section 4).
    Raises DataError for a segment whose times are not finite or that ends before it starts.
    """
    wanted, found = boxes_by_pair(true, what="true segments"), boxes_by_pair(predicted, what="predicted segments")
    empty = np.zeros((0, 4))
    precision = _mean(_covered_part(boxes, wanted.get(pair, empty)) for pair, boxes in found.items())
    recall = _mean(_covered_part(boxes, found.get(pair, empty)) for pair, boxes in wanted.items())
    f1 = None
    if precision is not None and recall is not None:
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    errors = np.array([_errors(box, found.get(pair, empty)) for pair, boxes in wanted.items() for box in boxes])
    errors = errors.reshape(-1, 4) * fps
    missed = np.isnan(errors[:, 0])
    seen = errors[~missed]
    return SegmentMetrics(
        precision=precision,
        recall=recall,
        f1=f1,
        begin_error=float(np.median(seen[:, [0, 2]])) if len(seen) else None,
        end_error=float(np.median(seen[:, [1, 3]])) if len(seen) else None,
        within_a_frame=_mean(np.all(errors <= 1 + 1e-9, axis=1).tolist()),
        found_rate=_mean((~missed).tolist()),
        num_pairs=len(wanted.keys() | found.keys()),
        num_true=len(true),
        num_predicted=len(predicted),
        num_missed_pairs=len(wanted.keys() - found.keys()),
        num_false_pairs=len(found.keys() - wanted.keys()),
    )


def _covered_part(boxes: Boxes, others: Boxes) -> float:
    """Product over both axes of the part of the boxes' summed length that overlapping others cover."""
    starts = np.maximum(boxes[:, None, ::2], others[None, :, ::2])
    ends = np.minimum(boxes[:, None, 1::2], others[None, :, 1::2])
    overlaps = np.all(ends > starts, axis=2)
    part = 1.0
    for axis in (0, 1):
        covered = math.fsum(
            _union_length(np.stack([starts[row, near, axis], ends[row, near, axis]], axis=1))
            for row, near in enumerate(overlaps)
        )
        part *= covered / float((boxes[:, 2 * axis + 1] - boxes[:, 2 * axis]).sum())
    return part


def _union_length(intervals: NDArray[np.float64]) -> float:
    """Seconds that some of the intervals [N, 2] covers."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(intervals.tolist()):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total


def _area(box: NDArray[np.float64], others: Boxes) -> NDArray[np.float64]:
    """Area that a box [4] shares with each of the others, [N]."""
    sides = np.minimum(box[1::2], others[:, 1::2]) - np.maximum(box[::2], others[:, ::2])
    return np.asarray(np.prod(np.maximum(sides, 0), axis=1))


def _errors(box: NDArray[np.float64], predicted: Boxes) -> NDArray[np.float64]:
    """Distances [4] of a true segment's times from those of the predicted one that shares most with it; NaN if none does."""
    areas = _area(box, predicted)
    if not len(areas) or areas.max() <= 0:
        return np.full(4, np.nan)
    return np.asarray(np.abs(predicted[int(areas.argmax())] - box))


def boxes_by_pair(table: pl.DataFrame, *, what: str) -> Mapping[Pair, Boxes]:
    """Segments of each pair, in the table's order. Raises DataError naming a pair whose times are not finite, negative or not ordered."""
    times = table.select(pl.col(TIME_COLUMNS).cast(pl.Float64)).to_numpy().reshape(-1, 4)
    wrong = ~(
        (np.isfinite(times) & (times >= 0)).all(axis=1) & (times[:, 1] > times[:, 0]) & (times[:, 3] > times[:, 2])
    )
    if wrong.any():
        row = int(wrong.argmax())
        query, reference = table.select("query_id", "reference_id").row(row)
        raise DataError(
            f"{what}: {int(wrong.sum())} are no stretch of time, e.g. {times[row].tolist()} of {query!r} and {reference!r}; "
            "wanted a begin before an end in both videos, in seconds"
        )
    rows: dict[Pair, list[int]] = {}
    for number, pair in enumerate(table.select("query_id", "reference_id").iter_rows()):
        rows.setdefault(pair, []).append(number)
    return {pair: np.asarray(times[numbers]) for pair, numbers in rows.items()}


def _mean(values: Iterable[float]) -> float | None:
    found = [float(value) for value in values]
    return sum(found) / len(found) if found else None
