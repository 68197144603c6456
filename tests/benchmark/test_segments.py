"""Measures of segments: cases computed by hand, and a slow count of instants that follows the definitions."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapvr.benchmark.segments import SEGMENT_SCHEMA, evaluate_segments
from hapvr.errors import DataError


def table(*rows: tuple) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SEGMENT_SCHEMA, orient="row")


def test_evaluate_segments_by_hand() -> None:
    """Three pairs: one found a second late, one missed, one false."""
    true = table(("q", "a", 0, 10, 20, 30), ("q", "b", 0, 4, 0, 4))
    found = evaluate_segments(true, table(("q", "a", 1, 10, 21, 30), ("q", "c", 0, 5, 0, 5)), fps=2.0)
    assert found.precision == pytest.approx((1 + 0) / 2)
    assert found.recall == pytest.approx((0.9 * 0.9 + 0) / 2)
    assert found.f1 == pytest.approx(2 * 0.5 * 0.405 / 0.905)
    assert (found.begin_error, found.end_error) == (2, 0)
    assert (found.within_a_frame, found.found_rate) == (0, 0.5)
    assert (found.num_pairs, found.num_missed_pairs, found.num_false_pairs) == (3, 1, 1)


def test_evaluate_segments_without_predictions_or_truth() -> None:
    """What was not measured is None, and not a number that looks good."""
    nothing = evaluate_segments(table(("q", "a", 0, 1, 0, 1)), table(), fps=1.0)
    assert (nothing.precision, nothing.recall, nothing.f1) == (None, 0, None)
    assert nothing.begin_error is None
    false = evaluate_segments(table(), table(("q", "a", 0, 1, 0, 1)), fps=1.0)
    assert (false.precision, false.recall, false.num_false_pairs) == (0, None, 1)


@pytest.mark.parametrize("times", [(0, 0, 0, 1), (2, 1, 0, 1), (0, math.nan, 0, 1), (0, math.inf, 0, 1)])
def test_segments_that_are_no_stretch_of_time_are_refused(times: tuple[float, ...]) -> None:
    """The pair and its times are named."""
    with pytest.raises(DataError, match=r"predicted segments: 1 are no stretch of time.*of 'q' and 'r'"):
        evaluate_segments(table(("q", "r", 0, 1, 0, 1)), table(("q", "r", *times)), fps=1.0)


spans = st.tuples(st.integers(0, 9), st.integers(1, 6)).map(lambda span: (span[0], span[0] + span[1]))
rows = st.lists(st.tuples(st.sampled_from("ab"), spans, spans), min_size=1, max_size=6)


@given(true=rows, predicted=rows)
def test_measures_equal_a_count_of_instants(true: list, predicted: list) -> None:
    """All times are whole seconds, so that lengths are numbers of seconds that can be counted one by one."""
    wanted, found = (
        [("q", reference, *query, *other) for reference, query, other in part] for part in (true, predicted)
    )
    precisions, recalls = [], []
    for reference in "ab":
        ours, theirs = ([row[2:6] for row in part if row[1] == reference] for part in (found, wanted))
        if ours:
            precisions.append(slow_covered(ours, theirs))
        if theirs:
            recalls.append(slow_covered(theirs, ours))
    result = evaluate_segments(table(*wanted), table(*found), fps=1.0)
    assert result.precision == pytest.approx(np.mean(precisions))
    assert result.recall == pytest.approx(np.mean(recalls))


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
