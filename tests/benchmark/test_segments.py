"""Measures of segments: cases computed by hand, and a slow count of instants that follows the definitions."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapvr.benchmark.segments import (
    PREDICTION_SCHEMA,
    SEGMENT_SCHEMA,
    evaluate_segments,
    micro_average_precision,
)
from hapvr.errors import DataError

Row = tuple[str, str, float, float, float, float, float]


def true_table(*rows: tuple) -> pl.DataFrame:
    return pl.DataFrame([row[:6] for row in rows], schema=SEGMENT_SCHEMA, orient="row")


def predictions(*rows: tuple) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=PREDICTION_SCHEMA, orient="row")


def boxes(*rows: tuple) -> np.ndarray:
    return np.array(rows, float).reshape(-1, 4)


def test_micro_average_precision_by_hand() -> None:
    """A perfect answer, one split in two, one after two false pairs, and boxes that lie across from the true ones."""
    true = true_table(("q", "r", 4, 14, 10, 18))
    assert micro_average_precision(true, predictions(("q", "r", 4, 14, 10, 18, 1))) == pytest.approx(1)
    split = predictions(("q", "r", 4, 8, 10, 14, 1), ("q", "r", 8, 14, 14, 18, 2))
    assert micro_average_precision(true, split) == pytest.approx(1)
    late = [(query, reference, 4, 14, 10, 18, score) for query, reference, score in (("p", "r", 3), ("q", "s", 2))]
    assert micro_average_precision(true, predictions(*late, ("q", "r", 4, 14, 10, 18, 1))) == pytest.approx(1 / 3)
    two = true_table(("q", "r", 4, 14, 10, 18), ("q", "r", 20, 28, 21, 29))
    crossed = predictions(("q", "r", 4, 14, 21, 29, 1), ("q", "r", 20, 28, 10, 18, 1))
    assert micro_average_precision(two, crossed) == 0
    assert micro_average_precision(two, predictions()) == 0


def test_evaluate_segments_by_hand() -> None:
    """Three pairs: one found a second late, one missed, one false."""
    true = true_table(("q", "a", 0, 10, 20, 30), ("q", "b", 0, 4, 0, 4))
    found = evaluate_segments(true, predictions(("q", "a", 1, 10, 21, 30, 0.9), ("q", "c", 0, 5, 0, 5, 0.8)), fps=2.0)
    assert found.precision == pytest.approx((1 + 0) / 2)
    assert found.recall == pytest.approx((0.9 * 0.9 + 0) / 2)
    assert found.f1 == pytest.approx(2 * 0.5 * 0.405 / 0.905)
    assert found.micro_ap == pytest.approx(9 / 14)
    assert (found.begin_error, found.end_error) == (2, 0)
    assert (found.within_a_frame, found.found_rate) == (0, 0.5)
    assert (found.num_pairs, found.num_missed_pairs, found.num_false_pairs) == (3, 1, 1)


def test_evaluate_segments_without_predictions_or_truth() -> None:
    """What was not measured is None, and not a number that looks good."""
    nothing = evaluate_segments(true_table(("q", "a", 0, 1, 0, 1)), predictions(), fps=1.0)
    assert (nothing.precision, nothing.recall, nothing.f1, nothing.micro_ap) == (None, 0, None, 0)
    assert nothing.begin_error is None
    false = evaluate_segments(true_table(), predictions(("q", "a", 0, 1, 0, 1, 0.5)), fps=1.0)
    assert (false.precision, false.recall, false.micro_ap, false.num_false_pairs) == (0, None, None, 1)


@pytest.mark.parametrize("times", [(0, 0, 0, 1), (2, 1, 0, 1), (0, math.nan, 0, 1), (0, math.inf, 0, 1)])
def test_segments_that_are_no_stretch_of_time_are_refused(times: tuple[float, ...]) -> None:
    """The pair and its times are named."""
    with pytest.raises(DataError, match=r"predicted segments: 1 are no stretch of time.*of 'q' and 'r'"):
        evaluate_segments(true_table(("q", "r", 0, 1, 0, 1)), predictions(("q", "r", *times, 1)), fps=1.0)


spans = st.tuples(st.integers(0, 9), st.integers(1, 6)).map(lambda span: (span[0], span[0] + span[1]))
rows = st.lists(st.tuples(st.sampled_from("ab"), spans, spans, st.integers(0, 2)), min_size=1, max_size=6)


@given(true=rows, predicted=rows)
def test_measures_equal_a_count_of_instants(true: list, predicted: list) -> None:
    """All times are whole seconds, so that lengths are numbers of seconds that can be counted one by one."""
    wanted, found = (
        [("q", reference, *query, *other, score) for reference, query, other, score in part]
        for part in (true, predicted)
    )
    precisions, recalls = [], []
    for reference in "ab":
        ours, theirs = ([row[2:6] for row in part if row[1] == reference] for part in (found, wanted))
        if ours:
            precisions.append(slow_covered(ours, theirs))
        if theirs:
            recalls.append(slow_covered(theirs, ours))
    result = evaluate_segments(true_table(*wanted), predictions(*found), fps=1.0)
    assert result.precision == pytest.approx(np.mean(precisions))
    assert result.recall == pytest.approx(np.mean(recalls))
    assert result.micro_ap == pytest.approx(slow_micro_ap(wanted, found))


def seconds(box: tuple, axis: int) -> set[int]:
    return set(range(int(box[2 * axis]), int(box[2 * axis + 1])))


def overlap(box: tuple, other: tuple) -> bool:
    return all(seconds(box, axis) & seconds(other, axis) for axis in (0, 1))


def slow_covered(boxes: list[tuple], others: list[tuple]) -> float:
    part = 1.0
    for axis in (0, 1):
        right = total = 0
        for box in boxes:
            near = [seconds(other, axis) for other in others if overlap(box, other)]
            right += len(seconds(box, axis) & set().union(*near))
            total += len(seconds(box, axis))
        part *= right / total
    return part


def slow_micro_ap(true: list[Row], predicted: list[Row]) -> float:
    """The sum of the definition, with sets of (pair, second)."""
    area = recall = 0.0
    for score in sorted({row[6] for row in predicted}, reverse=True):
        seen = [row for row in predicted if row[6] >= score]
        precisions, recalls = [], []
        for axis in (0, 1):
            shown = {(row[1], second) for row in seen for second in seconds(row[2:6], axis)}
            near = {
                (row[1], second)
                for row in true
                if any(row[1] == other[1] and overlap(row[2:6], other[2:6]) for other in seen)
                for second in seconds(row[2:6], axis)
            }
            everything = {(row[1], second) for row in true for second in seconds(row[2:6], axis)}
            precisions.append(len(shown & near) / len(shown))
            recalls.append(len(shown & near) / len(everything))
        now = math.sqrt(recalls[0] * recalls[1])
        area += math.sqrt(precisions[0] * precisions[1]) * (now - recall)
        recall = now
    return area
