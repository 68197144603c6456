"""How far probabilities can be believed, from searches whose scores are known."""

import numpy as np
import pytest

from bench.calibration import Answer, Query, Search, answers, check
from bench.copy_scores import VIEWS

NUM_CLIPS = 20
CURVE = (26.0, -10.0)
"""Slope and intercept: 0.95 from a score of about 0.5 on."""


def query(clip: int, close: dict[int, float]) -> Query:
    """Which clips look like it, and how much."""
    runs = np.full((len(VIEWS), NUM_CLIPS), 0.1)
    for similar_clip, cosine in close.items():
        runs[:, similar_clip] = cosine
    return Query(clip, "crop", runs, np.zeros(NUM_CLIPS, bool))


def test_a_look_alike_weighs_more_where_originals_are_absent_more_often() -> None:
    """One of the two originals has a look-alike, which is called a match whether it is there or
    not."""
    queries = [query(0, {0: 0.95, 1: 0.9}), query(2, {2: 0.95})]
    row = check(queries, np.ones(NUM_CLIPS, bool), None, CURVE)
    assert row["recall"] == 1
    assert row["precision"] == pytest.approx(2 / 3)
    assert row["precision 1:5"] == pytest.approx(2 / (3 + 5))
    assert row["precision 1:1"] == pytest.approx(2 / (3 + 1))
    assert row["precision 5:1"] == pytest.approx(10 / (15 + 1))
    assert row["absent: match"] == 0.5
    assert row["absent: unsure"] == 0


def test_errors_are_summed_over_the_collection() -> None:
    even = Search(np.array([0.0, 0.0]), np.array([True, False]))
    assert answers([even], (1.0, 0.0)) == [
        Answer(
            hits=0,
            wrong=0,
            best=0.5,
            brier=pytest.approx(0.5),  # type: ignore[arg-type]
            log_loss=pytest.approx(2 * np.log(2)),  # type: ignore[arg-type]
        )
    ]
