"""Similarity to probability: laws, a known curve, thresholds against the data."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hapvr.errors import ArgumentError, DataError
from hapvr.scorer.bundle import read_calibration
from hapvr.scorer.calibration import MIN_PAIRS, fit_calibration
from hapvr.scorer.description import CALIBRATION_FILE
from hapvr.seeding import numpy_rng

similarities = st.lists(st.floats(-1, 1, width=32), min_size=MIN_PAIRS, max_size=60)


@given(matches=similarities, others=similarities)
def test_probability_never_falls_and_stays_in_its_range(
    matches: list[float], others: list[float]
) -> None:
    """Whatever the pairs, a higher similarity is never a lower probability, and all are in [0,
    1]."""
    fitted = fit_calibration(matches, others, source={})
    curve = np.array([fitted.probability(similarity) for similarity in np.linspace(-1, 1, 101)])
    assert ((curve >= 0) & (curve <= 1)).all()
    assert (np.diff(curve) >= 0).all()


@given(matches=similarities, others=similarities)
def test_thresholds_meet_their_precision_on_the_fitted_pairs(
    matches: list[float], others: list[float]
) -> None:
    """A threshold's precision, counted again by hand, is the wanted one or more; no lower
    similarity reaches it."""
    fitted = fit_calibration(matches, others, source={})
    for row in fitted.thresholds:
        precisions = {}
        for candidate in {*matches, *others}:
            hits = sum(value >= candidate for value in matches)
            precisions[candidate] = hits / (hits + sum(value >= candidate for value in others))

        reaching = [
            candidate for candidate, found in precisions.items() if found >= row.precision - 1e-12
        ]
        assert row.similarity == (min(reaching) if reaching else None)
        if row.similarity is not None:
            assert row.found == pytest.approx(precisions[row.similarity])
            assert row.num_matches == sum(value >= row.similarity for value in matches)


def test_fit_recovers_a_known_curve() -> None:
    """Labels drawn from a logistic curve give that curve back within two hundredths."""
    rng = numpy_rng(0, "calibration")
    similarity = rng.uniform(-1, 1, 40_000)
    truth = 1 / (1 + np.exp(-(6 * similarity - 2)))
    is_match = rng.uniform(size=len(similarity)) < truth
    fitted = fit_calibration(similarity[is_match], similarity[~is_match], source={})
    for value in np.linspace(-1, 1, 21):
        assert fitted.probability(value) == pytest.approx(
            1 / (1 + np.exp(-(6 * value - 2))), abs=0.02
        )

    assert fitted.prior == pytest.approx(is_match.mean())


def test_prior_shifts_the_odds_by_bayes() -> None:
    """At another share of matches the odds change by the ratio of the two shares' odds."""
    fitted = fit_calibration(np.linspace(0, 1, 20), np.linspace(-0.5, 0.5, 60), source={})
    before = fitted.probability(0.3)
    after = fitted.probability(0.3, prior=0.5)
    assert after / (1 - after) == pytest.approx(before / (1 - before) * 3)
    with pytest.raises(ArgumentError, match="expected the share of matches"):
        fitted.probability(0.3, prior=1.0)


def test_one_course_multiplies_the_odds() -> None:
    fitted = fit_calibration(np.linspace(0, 1, 20), np.linspace(-0.5, 0.5, 60), source={})
    alone = fitted.probability(0.3)
    with_course = fitted.probability(0.3, one_course=True)
    assert with_course / (1 - with_course) == pytest.approx(alone / (1 - alone) * 35)


@pytest.mark.parametrize("prior", [None, 0.25])
def test_one_course_makes_a_match_of_a_pair_that_alone_is_unsure(prior: float | None) -> None:
    """Whether verdicts rest on the stored threshold or on a share of matches."""
    fitted = fit_calibration(np.linspace(0.4, 1, 20), np.linspace(-0.5, 0.5, 60), source={})
    assert fitted.verdict(0.45, precision=0.95, prior=prior) == "unsure"
    assert fitted.verdict(0.45, precision=0.95, prior=prior, one_course=True) == "match"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slope", -1),
        ("prior", 2),
        ("brier", 1.5),
        ("intercept", np.nan),
        ("frame_threshold", "x"),
        ("thresholds", []),
    ],
)
def test_damaged_values_are_refused(tmp_path: Path, name: str, value: object) -> None:
    """Otherwise the first answer would fail, or be believed."""
    fitted = asdict(
        fit_calibration(
            np.linspace(0, 1, 30), np.linspace(-1, 0.4, 50), source={}, frame_threshold=0.7
        )
    )
    path = tmp_path / CALIBRATION_FILE
    path.write_text(json.dumps(fitted | {name: value}))
    with pytest.raises(
        DataError, match=rf"calibration\.json is damaged \({name}.*fetch the model again"
    ):
        read_calibration(tmp_path)
