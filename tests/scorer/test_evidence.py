"""The model of evidence: never falling, chosen by groups, and honest about what it does not know."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from hapvr.errors import ArgumentError, DamagedError
from hapvr.scorer.description import EVIDENCE_FILE, complete_bundle, read_evidence
from hapvr.scorer.evidence import FEATURES, EvidenceModel, fit_evidence
from hapvr.scorer.logistic import fit_logistic, log_loss, sigmoid
from hapvr.seeding import numpy_rng

GROUPS = np.arange(2000) // 50
TRUE = np.array([3.0, 0.0, 2.0, *[0.0] * (len(FEATURES) - 3)])


def drawn(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features, of which two tell matches from others, and one is lower for matches."""
    rng = numpy_rng(seed, "evidence")
    features = rng.normal(size=(len(GROUPS), len(FEATURES)))
    is_match = rng.uniform(size=len(GROUPS)) < sigmoid(features @ TRUE - 2)
    features[:, 1] -= is_match
    return features, is_match


@pytest.fixture(scope="module")
def model() -> EvidenceModel:
    return fit_evidence(*drawn(), GROUPS, source={"benchmark": "drawn"})


def test_weights_are_those_that_made_the_data_and_never_negative(model: EvidenceModel) -> None:
    weights = np.array(list(model.weights.values()))
    assert (weights >= 0).all()
    assert weights[1] == 0
    np.testing.assert_allclose(weights[[0, 2]], [3, 2], rtol=0.25)
    features, _ = drawn()
    assert (model.log_odds(features + np.eye(len(FEATURES))[0]) > model.log_odds(features)).all()


def test_no_other_weights_that_are_not_negative_have_less_loss() -> None:
    """The optimum against small steps in every direction that is allowed, on standardised inputs."""
    features, is_match = drawn()
    inputs, target = (features - features.mean(0)) / features.std(0), is_match.astype(float)
    weights, intercept = fit_logistic(inputs, target, penalty=1.0)

    def loss(tried: np.ndarray, constant: float) -> float:
        return log_loss(inputs @ tried + constant, target) + float(tried @ tried) / 2

    least = loss(weights, intercept)
    for place in range(len(weights)):
        for step in (1e-3, -1e-3):
            tried = np.maximum(weights + step * np.eye(len(weights))[place], 0)
            assert loss(tried, intercept) >= least - 1e-9
    assert loss(weights, intercept + 1e-3) >= least - 1e-9


def test_probabilities_hold_on_other_data(model: EvidenceModel) -> None:
    """In every tenth; with another share of matches once it is given."""
    features, is_match = drawn(1)
    for kept, prior in ((np.ones(len(is_match), bool), None), (~is_match | (np.arange(len(is_match)) % 4 == 0), None)):
        share = None if kept.all() else float(is_match[kept].mean())
        stated = np.array([model.probability(one, prior=share or prior) for one in model.log_odds(features[kept])])
        for low in np.arange(0, 1, 0.2):
            some = (stated >= low) & (stated < low + 0.2)
            assert abs(stated[some].mean() - is_match[kept][some].mean()) < 0.15


def test_too_little_to_fit_on_is_said() -> None:
    features, is_match = drawn()
    for rows, groups in ((slice(None), GROUPS % 4), (slice(0, 40), GROUPS)):
        with pytest.raises(ArgumentError, match="wanted 5 videos and 10 of each"):
            fit_evidence(features[rows], is_match[rows], groups[rows], source={})


def test_a_bundle_keeps_it_and_a_damaged_one_is_refused(model: EvidenceModel, tmp_path: Path) -> None:
    complete_bundle(tmp_path, evidence=model, card="")
    assert read_evidence(tmp_path) == model
    for broken in (
        {**asdict(model), "weights": dict.fromkeys(FEATURES, -1.0)},
        {**asdict(model), "weights": {"similarity": 1.0}},
        asdict(replace(model, prior=1.0)),
    ):
        (tmp_path / EVIDENCE_FILE).write_text(json.dumps(broken))
        with pytest.raises(DamagedError, match=EVIDENCE_FILE):
            read_evidence(tmp_path)
