"""The model of evidence: never falling, chosen by groups, and honest about what it does not
know."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from hapvr.errors import ArgumentError, DamagedError
from hapvr.scorer.bundle import EVIDENCE_FILE, SCORER_FILE, complete_bundle, read_evidence
from hapvr.scorer.calibration import fit_logistic, sigmoid
from hapvr.scorer.evidence import FEATURES, TYPICAL, EvidenceModel, fit_evidence
from hapvr.seeding import numpy_rng

TRUE = np.array([3.0, 0.0])
Searches = list[tuple[np.ndarray, np.ndarray]]


def drawn(seed: int = 0, count: int = 40) -> Searches:
    """So many searches of 50 candidates each; the first feature tells matches from others, and the
    second is lower for matches."""
    rng, searches = numpy_rng(seed, "evidence"), []
    for _ in range(count):
        features = rng.normal(size=(50, len(FEATURES)))
        is_match = rng.uniform(size=50) < sigmoid(features @ TRUE - 2)
        features[:, 1] -= is_match
        features[:, 0] += 5 * rng.normal()  # some queries look like everything
        searches.append((features, is_match))
    return searches


def fitted(searches: Searches, names: list[str]) -> EvidenceModel:
    """By the whole picture alone."""
    return fit_evidence(
        [(found[None], is_match) for found, is_match in searches],
        names,
        source={"benchmark": "drawn"},
    )


def groups(count: int = 40) -> list[str]:
    return [f"video {number % count}" for number in range(40)]


@pytest.fixture(scope="module")
def model() -> EvidenceModel:
    """Of so many searches that the typical weights, which are others, count for little."""
    return fitted(drawn(count=1000), groups() * 25)


def test_weights_are_those_that_made_the_data_and_never_negative(model: EvidenceModel) -> None:
    """Whatever the query has in common with all candidates counts for nothing."""
    weights = np.array(list(model.weights.values()))
    assert (weights >= 0).all()
    assert weights[1] == 0
    np.testing.assert_allclose(weights[0], 3, rtol=0.25)
    (features, _), *_ = drawn()
    shifted = features - 9 * np.eye(len(FEATURES))[FEATURES.index("frame_run")]
    np.testing.assert_allclose(model.log_odds(shifted), model.log_odds(features))


@pytest.mark.parametrize("place", range(len(FEATURES)))
def test_more_evidence_never_says_less(model: EvidenceModel, place: int) -> None:
    """Of one candidate, beside others that stay."""
    for features, _ in drawn(2)[:5]:
        more = features.copy()
        more[0, place] += 1
        assert model.log_odds(more)[0] >= model.log_odds(features)[0]


def test_few_candidates_are_compared_with_what_is_usual(model: EvidenceModel) -> None:
    """One match alone, with nothing beside it, is a match still."""
    match = np.array([[model.usual[0] + 4, 0]])
    assert model.probability(model.log_odds(match)[0]) > 0.95


def test_a_crop_that_shows_as_much_as_the_whole_picture_is_trusted_less() -> None:
    """Each of 100 queries has a crop that finds, of no match, something by chance; a
    video counts by what says most."""
    rng, whole, searches = numpy_rng(0, "views"), FEATURES.index("whole_picture"), []
    for _ in range(100):
        is_match = np.arange(50) < 2
        views = rng.normal(size=(2, 50, len(FEATURES))) * 0.3
        views[0, is_match, 0] += 2
        views[1, 2:8, 0] += 2
        views[..., whole] = [[1], [0]]
        views[1, 30:] = np.nan
        searches.append((views, is_match))
    model = fit_evidence(searches, groups(20)[:20] * 5, source={})
    assert model.weights["whole_picture"] > 1.5 * TYPICAL["whole_picture"]
    views, _ = searches[0]
    assert model.log_odds(views[0])[:2].min() > model.log_odds(views[1, :30])[2:8].max()
    total = model.contributions(views[0]).sum(axis=1) + model.intercept
    np.testing.assert_allclose(total, model.log_odds(views[0]), rtol=1e-12)


def test_no_other_weights_that_are_not_negative_have_less_loss() -> None:
    """The optimum against small steps in every direction that is allowed, on standardised
    inputs."""
    features, is_match = (np.concatenate(part) for part in zip(*drawn(), strict=True))
    inputs, target = (features - features.mean(0)) / features.std(0), is_match.astype(float)
    for home in (np.zeros(2), np.arange(2.0)):
        weights, intercept = fit_logistic(inputs, target, penalty=10.0, towards=home)

        def loss(tried: np.ndarray, constant: float, home: np.ndarray = home) -> float:
            logits = inputs @ tried + constant
            return float(
                np.sum(np.logaddexp(0, logits) - target * logits)
                + 5 * (tried - home) @ (tried - home)
            )

        least = loss(weights, intercept)
        for place in range(len(weights)):
            for step in (1e-3, -1e-3):
                tried = np.maximum(weights + step * np.eye(len(weights))[place], 0)
                assert loss(tried, intercept) >= least - 1e-9
        assert loss(weights, intercept + 1e-3) >= least - 1e-9


def test_probabilities_hold_on_other_data(model: EvidenceModel) -> None:
    """In every fifth; with another share of matches once it is given."""
    log_odds = np.concatenate([model.log_odds(features) for features, _ in drawn(3, 200)])
    is_match = np.concatenate([found for _, found in drawn(3, 200)])
    rarer = ~is_match | (np.arange(len(is_match)) % 4 == 0)
    for kept, prior in (
        (np.ones(len(is_match), bool), None),
        (rarer, float(is_match[rarer].mean())),
    ):
        stated = np.array([model.probability(one, prior=prior) for one in log_odds[kept]])
        for low in np.arange(0, 1, 0.2):
            some = (stated >= low) & (stated < low + 0.2)
            assert abs(stated[some].mean() - is_match[kept][some].mean()) < 0.15


def test_many_copies_do_not_hide_each_other(model: EvidenceModel) -> None:
    """Twenty equal matches are sure: what a query has in common with them counts up to a limit
    alone."""
    (features, _), *_ = drawn(2)
    features[:20] = [model.most[0] + 5, 0]
    assert model.probability(model.log_odds(features)[0]) > 0.95


def test_too_little_to_fit_on_is_said() -> None:
    nothing = [(features, np.zeros(len(features), bool)) for features, _ in drawn()]
    for searches, names in ((drawn(), groups(4)), (nothing, groups()), ([], [])):
        with pytest.raises(ArgumentError, match="wanted 5 videos and 10 of each"):
            fitted(searches, names)


def test_a_bundle_keeps_it_and_a_damaged_one_is_refused(
    model: EvidenceModel, tmp_path: Path
) -> None:
    (tmp_path / SCORER_FILE).write_text("{}")
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
