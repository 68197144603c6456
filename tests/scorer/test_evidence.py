"""The model of evidence: never falling, chosen by groups, and honest about what it does not
know."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from hapvr.errors import ArgumentError, DamagedError
from hapvr.scorer.bundle import read_evidence
from hapvr.scorer.bundle_writer import complete_bundle
from hapvr.scorer.calibration import fit_logistic, sigmoid
from hapvr.scorer.description import EVIDENCE_FILE, SCORER_FILE
from hapvr.scorer.evidence import EvidenceModel, fit_evidence, level_of
from hapvr.scorer.evidence_kinds import FRAME_RUN, KINDS, names
from hapvr.seeding import numpy_rng

SLOPE = 20.0
INTERCEPT = -6.0
NEAR = 5
"""Candidates of a search that may match; the others are unrelated."""
NUM_VIDEOS = 200
RUN = names().index(FRAME_RUN.name)
"""The column of the frame runs."""
Searches = list[tuple[np.ndarray, np.ndarray]]


def drawn(seed: int = 0, count: int = 40) -> Searches:
    """So many searches of 50 candidates each. How far the run of a candidate exceeds what unrelated
    ones reach tells whether it matches; the second feature is lower for matches."""
    rng = numpy_rng(seed, "evidence")
    searches = []
    for _ in range(count):
        features = rng.normal(size=(50, len(KINDS)))
        runs = rng.uniform(0.15, 0.4) + 0.02 * rng.normal(
            size=50
        )  # some queries look like everything
        level = level_of(runs, num_videos=NUM_VIDEOS)
        exceeding = rng.uniform(0, 0.7, NEAR)
        runs[:NEAR] = level + exceeding * np.sqrt(1 - level)
        is_match = np.zeros(50, bool)
        is_match[:NEAR] = rng.uniform(size=NEAR) < sigmoid(SLOPE * exceeding + INTERCEPT)
        features[:, 0] = runs
        features[:, 1] -= is_match
        searches.append((features, is_match))

    return searches


def fitted(searches: Searches, of_queries: list[str]) -> EvidenceModel:
    """By the whole picture alone."""
    return fit_evidence(
        [(found[None], is_match) for found, is_match in searches],
        of_queries,
        num_videos=NUM_VIDEOS,
        source={"benchmark": "drawn"},
    )


def log_odds(model: EvidenceModel, features: np.ndarray) -> np.ndarray:
    return model.log_odds(features, num_videos=NUM_VIDEOS)


def groups(count: int = 40) -> list[str]:
    return [f"video {number % count}" for number in range(40)]


@pytest.fixture(scope="module")
def model() -> EvidenceModel:
    """Of so many searches that the typical weights, which are others, count for little."""
    return fitted(drawn(count=1000), groups() * 25)


def test_weights_are_those_that_made_the_data_and_never_negative(model: EvidenceModel) -> None:
    assert model.weights["frame_run"] == pytest.approx(SLOPE, rel=0.25)
    assert model.weights["whole_picture"] == 0


@pytest.mark.parametrize("place", range(len(KINDS)))
def test_more_evidence_never_says_less(model: EvidenceModel, place: int) -> None:
    """Of one candidate, beside others that stay."""
    for features, _ in drawn(2)[:5]:
        more = features.copy()
        more[0, place] += 1
        assert log_odds(model, more)[0] >= log_odds(model, features)[0]


@pytest.mark.parametrize(
    ("runs", "num_videos", "level"),
    [
        ([0.9], 2, 0.25),
        ([0.9], 500, 0.1),
        ([0.9] * 5 + [0.5] * 15 + [0.2] * 20, 500, 0.5),
        ([0.9] * 5 + [0.1] * 30, 50, 0.25),
        ([0.9] * 9 + [0.3] * 40, 500, (4 * 0.9 + 11 * 0.3) / 15),
    ],
    ids=["pair of files", "one candidate", "crowded", "small collection", "nine copies"],
)
def test_the_level_is_what_the_sixth_to_the_twentieth_reach(
    runs: list[float], num_videos: int, level: float
) -> None:
    assert level_of(np.array(runs), num_videos=num_videos) == pytest.approx(level)


def test_one_match_alone_is_a_match_still(model: EvidenceModel) -> None:
    """With nothing beside it to compare it with."""
    match = np.zeros((1, len(KINDS)))
    match[0, RUN] = 0.9
    assert model.probability(log_odds(model, match)[0]) > 0.95


def test_a_crop_that_shows_as_much_as_the_whole_picture_is_trusted_less() -> None:
    """Each of 100 queries has a crop that finds, of no match, something by chance; a
    video counts by what says most."""
    rng = numpy_rng(0, "views")
    whole = names().index("whole_picture")
    searches = []
    for _ in range(100):
        is_match = np.arange(50) < 2
        views = rng.normal(size=(2, 50, len(KINDS))) * 0.03 + 0.1
        views[0, is_match, 0] += 0.6
        views[1, 2:5, 0] += 0.6
        views[..., whole] = [[1], [0]]
        views[1, 30:] = np.nan
        searches.append((views, is_match))

    model = fit_evidence(searches, groups(20)[:20] * 5, num_videos=NUM_VIDEOS, source={})
    assert model.weights["whole_picture"] > 1.5 * KINDS[whole].typical_weight
    views, _ = searches[0]
    assert log_odds(model, views[0])[:2].min() > log_odds(model, views[1, :30])[2:5].max()
    total = model.contributions(views[0], num_videos=NUM_VIDEOS).sum(axis=1) + model.intercept
    np.testing.assert_allclose(total, log_odds(model, views[0]), rtol=1e-12)


@pytest.mark.parametrize(
    "home", [np.zeros(len(KINDS)), np.arange(len(KINDS)) * 1.0], ids=["zero", "weights"]
)
def test_no_other_weights_that_are_not_negative_have_less_loss(home: np.ndarray) -> None:
    """The optimum against small steps in every direction that is allowed, on standardised
    inputs."""
    searches = list(drawn())
    features = np.concatenate([of_search for of_search, _ in searches])
    is_match = np.concatenate([of_search for _, of_search in searches])
    inputs = (features - features.mean(0)) / features.std(0)
    target = is_match.astype(float)
    weights, intercept = fit_logistic(inputs, target, penalty=10.0, towards=home)

    def loss(tried: np.ndarray, constant: float) -> float:
        logits = inputs @ tried + constant
        misfit = np.sum(np.logaddexp(0, logits) - target * logits)
        return float(misfit + 5 * (tried - home) @ (tried - home))

    least = loss(weights, intercept)
    for place in range(len(weights)):
        for step in (1e-3, -1e-3):
            tried = np.maximum(weights + step * np.eye(len(weights))[place], 0)
            assert loss(tried, intercept) >= least - 1e-9

    assert loss(weights, intercept + 1e-3) >= least - 1e-9


def assert_holds(stated: np.ndarray, is_match: np.ndarray) -> None:
    """Of what is stated to be a match with a probability, about so many are, in every fifth."""
    for low in np.arange(0, 1, 0.2):
        in_bin = (stated >= low) & (stated < low + 0.2)
        assert abs(stated[in_bin].mean() - is_match[in_bin].mean()) < 0.15


@pytest.fixture(scope="module")
def new_odds(model: EvidenceModel) -> tuple[np.ndarray, np.ndarray]:
    """The model's odds of data that it was not fitted on, and what is a match."""
    searches = list(drawn(3, 3000))
    odds = np.concatenate([log_odds(model, features) for features, _ in searches])
    return odds, np.concatenate([is_match for _, is_match in searches])


def test_probabilities_hold_on_other_data(
    model: EvidenceModel, new_odds: tuple[np.ndarray, np.ndarray]
) -> None:
    odds, is_match = new_odds
    assert_holds(np.array([model.probability(odd) for odd in odds]), is_match)


def test_probabilities_hold_where_matches_are_rarer_and_that_is_given(
    model: EvidenceModel, new_odds: tuple[np.ndarray, np.ndarray]
) -> None:
    odds, is_match = new_odds
    kept = ~is_match | (np.arange(len(is_match)) % 4 == 0)
    prior = float(is_match[kept].mean())
    stated = np.array([model.probability(odd, prior=prior) for odd in odds[kept]])
    assert_holds(stated, is_match[kept])


def test_nine_copies_do_not_hide_each_other(model: EvidenceModel) -> None:
    """They are sure, though some of them count as what unrelated videos reach."""
    (features, _), *_ = drawn(2)
    features[:9] = 0.0
    features[:9, RUN] = 0.95
    assert model.probability(log_odds(model, features)[0]) > 0.95


def test_too_few_videos_to_fit_on_are_refused() -> None:
    with pytest.raises(ArgumentError, match="expected 5 videos and 10 of each"):
        fitted(drawn(), groups(4))


def test_searches_without_a_match_to_fit_on_are_refused() -> None:
    nothing = [(features, np.zeros(len(features), bool)) for features, _ in drawn()]
    with pytest.raises(ArgumentError, match="expected 5 videos and 10 of each"):
        fitted(nothing, groups())


def test_no_searches_to_fit_on_are_refused() -> None:
    with pytest.raises(ArgumentError, match="expected 5 videos and 10 of each"):
        fitted([], [])


def test_a_bundle_keeps_it(model: EvidenceModel, tmp_path: Path) -> None:
    (tmp_path / SCORER_FILE).write_text("{}")
    complete_bundle(tmp_path, evidence=model, card="")
    assert read_evidence(tmp_path) == model


@pytest.mark.parametrize(
    "changed",
    [
        {"weights": dict.fromkeys(names(), -1.0)},
        {"weights": {"similarity": 1.0}},
        {"prior": 1.0},
    ],
    ids=["negative weights", "weights of no kind", "a prior of one"],
)
def test_a_damaged_one_is_refused(
    model: EvidenceModel, tmp_path: Path, changed: dict[str, object]
) -> None:
    (tmp_path / SCORER_FILE).write_text("{}")
    complete_bundle(tmp_path, evidence=model, card="")
    (tmp_path / EVIDENCE_FILE).write_text(json.dumps(asdict(model) | changed))
    with pytest.raises(DamagedError, match=EVIDENCE_FILE):
        read_evidence(tmp_path)
