"""A calibration on pairs that it was not fitted on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapvr.errors import ArgumentError
from hapvr.scorer.calibration import fit_calibration
from hapvr.scorer.calibration_check import check_calibration, checked_metrics

similarities = st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=10, max_size=60)


@given(similarities, similarities, st.integers(1, 5))
def test_on_the_fitted_pairs_it_says_what_the_fit_said(matches: list[float], others: list[float], repeats: int) -> None:
    """Brier score, precision and recall are the fit's own, also where the other pairs come several times each."""
    fitted = fit_calibration(matches, others, source={})
    check = check_calibration("own", fitted, matches, others * repeats)
    assert check.prior == pytest.approx(len(matches) / (len(matches) + repeats * len(others)))
    assert check.brier == pytest.approx(fitted.brier)
    reached = [row for row in fitted.thresholds if row.similarity is not None]
    assert [row.wanted for row in check.thresholds] == [row.precision for row in reached]
    for found, row in zip(check.thresholds, reached, strict=True):
        assert found.precision == pytest.approx(row.found)
        assert found.recall == pytest.approx(row.recall)


def test_by_hand() -> None:
    """Half of the fit's pairs match; here one of five does: three alarms of 40 weigh as much as 0.75 of ten matches do."""
    fitted = fit_calibration([0.8] * 20, [0.2] * 20, source={})
    check = check_calibration("other", fitted, [0.9] * 6 + [0.1] * 4, [0.85] * 3 + [0.0] * 37)
    row = check.thresholds[-1]
    assert (row.wanted, row.similarity) == (0.99, 0.8)
    assert (row.num_matches, row.num_pairs, row.recall) == (6, 9, 0.6)
    assert row.precision == pytest.approx(0.6 / (0.6 + 3 / 40))
    values = checked_metrics([check])
    assert values["calibration/other/at-0.99/precision"] == row.precision
    assert values["calibration/other/brier"] == check.brier


def test_thresholds_that_no_pair_reaches_have_no_precision() -> None:
    """Recall 0, and nothing for a tracker, which takes no missing values."""
    check = check_calibration("low", fit_calibration([0.8] * 20, [0.2] * 20, source={}), [0.1], [0.0])
    assert {row.precision for row in check.thresholds} == {None}
    assert set(checked_metrics([check])) == {
        "calibration/low/brier",
        *(f"calibration/low/at-{row.wanted:g}/recall" for row in check.thresholds),
    }


@pytest.mark.parametrize(("matches", "others"), [([], [0.1]), ([0.1], []), ([float("nan")], [0.1])])
def test_pairs_of_one_kind_or_not_finite_are_refused(matches: list[float], others: list[float]) -> None:
    """The message names the benchmark."""
    with pytest.raises(ArgumentError, match="check own-test"):
        check_calibration("own-test", fit_calibration([0.8] * 20, [0.2] * 20, source={}), matches, others)
