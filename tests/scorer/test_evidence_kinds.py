"""A kind of evidence is declared in one place: searches, models, fits and explanations follow."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from hapvr.errors import DamagedError
from hapvr.scorer import evidence_kinds
from hapvr.scorer.bundle import read_evidence
from hapvr.scorer.description import EVIDENCE_FILE
from hapvr.scorer.evidence import EvidenceModel, fit_evidence
from hapvr.scorer.evidence_kinds import KINDS, Comparison, Evidence, names
from hapvr.search.scored import ScoredCandidate
from hapvr.steps.explanation import explain
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher, SearchOptions
from tests.scorer.bundles import write_scenes
from tests.steps.search_projects import LONG

WEIGHT = 3.0
LONG_FRAMES = 30


@dataclass(frozen=True)
class IsLong:
    """Whether a video has many frames, which no copy is likelier for."""

    name: str = "is_long"
    typical_weight: float = 1.0
    relative: bool = False

    def measure(self, comparison: Comparison) -> float:
        """1 or 0."""
        return float(len(comparison.reference) >= LONG_FRAMES)


@dataclass(frozen=True)
class SoundsAlike:
    """What no video here tells, as one without sound does not."""

    name: str = "sounds_alike"
    typical_weight: float = 5.0
    relative: bool = True

    def measure(self, comparison: Comparison) -> float:
        """Not known."""
        return math.nan


@pytest.fixture
def searcher(searchable: Path) -> Searcher:
    return Searcher.open(Project.open(searchable / "config.yaml", folder=searchable))


def declare(monkeypatch: pytest.MonkeyPatch, *kinds: Evidence) -> None:
    monkeypatch.setattr(evidence_kinds, "KINDS", (*KINDS, *kinds))


def weighing(searcher: Searcher, **weights: float) -> Searcher:
    """With these weights besides those of its model."""
    model = searcher.evidence
    assert model is not None
    return replace(searcher, evidence=replace(model, weights={**model.weights, **weights}))


def candidates(searcher: Searcher, folder: Path) -> dict[str, ScoredCandidate]:
    """What a part of the long video finds by its whole picture."""
    query = searcher.read(write_scenes(folder / "query.mp4", list(LONG[25:35])))
    views = searcher.scorer.views(query.features)
    (whole, *_), _ = searcher.score_views(views)
    return {candidate.video_id: candidate for candidate in whole}


def log_odds(searcher: Searcher, folder: Path) -> dict[str, float]:
    return {name: score.log_odds or 0.0 for name, score in candidates(searcher, folder).items()}


@pytest.mark.slow
def test_one_that_is_added_changes_scores_by_its_weight(
    searcher: Searcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = log_odds(searcher, tmp_path)
    declare(monkeypatch, IsLong())
    after = log_odds(weighing(searcher, is_long=WEIGHT), tmp_path)
    gained = {name: odds - before[name] for name, odds in after.items()}
    assert gained.pop("in/long.mp4") == pytest.approx(WEIGHT)
    assert gained == pytest.approx(dict.fromkeys(gained, 0.0))


@pytest.mark.slow
def test_one_that_a_model_lacks_counts_for_nothing(
    searcher: Searcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = log_odds(searcher, tmp_path)
    declare(monkeypatch, IsLong())
    assert log_odds(searcher, tmp_path) == before


@pytest.mark.slow
def test_one_that_is_not_known_of_a_video_adds_nothing(
    searcher: Searcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = log_odds(searcher, tmp_path)
    declare(monkeypatch, SoundsAlike())
    assert log_odds(weighing(searcher, sounds_alike=WEIGHT), tmp_path) == before


def test_an_explanation_names_one_that_is_added(
    searcher: Searcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(monkeypatch, IsLong())
    query = searcher.read(write_scenes(tmp_path / "query.mp4", list(LONG[25:35])))
    lines = explain(weighing(searcher, is_long=WEIGHT), query, "in/long.mp4", SearchOptions())
    assert any(line.split() == ["log", "odds", "+3.00", "is_long"] for line in lines)


def drawn_searches() -> Sequence[tuple[np.ndarray, np.ndarray]]:
    """By one view, whose matches alone are long; of no video it is known how it sounds."""
    rng = np.random.default_rng(0)
    searches = []
    for _ in range(20):
        is_match = np.arange(20) < 2
        features = np.full((1, 20, len(KINDS) + 2), np.nan)
        features[0, :, : len(KINDS)] = rng.uniform(0, 0.2, (20, len(KINDS)))
        features[0, :, len(KINDS)] = is_match
        searches.append((features, is_match))

    return searches


def test_one_that_is_added_is_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is known of no video says nothing, so it gets no weight."""
    declare(monkeypatch, IsLong(), SoundsAlike())
    groups = [f"video {number}" for number in range(20)]
    model = fit_evidence(drawn_searches(), groups, num_videos=200, source={})
    assert model.weights["is_long"] > IsLong().typical_weight
    assert model.weights["sounds_alike"] == 0


def stored(model: EvidenceModel, folder: Path, weights: dict[str, float]) -> Path:
    """A bundle's folder with a model of these weights."""
    values = {
        "weights": weights,
        "intercept": model.intercept,
        "prior": model.prior,
        "brier": model.brier,
        "num_matches": model.num_matches,
        "num_others": model.num_others,
        "num_groups": model.num_groups,
    }
    (folder / EVIDENCE_FILE).write_text(json.dumps(values), encoding="utf-8")
    return folder


def test_a_stored_model_may_lack_a_kind(searcher: Searcher, tmp_path: Path) -> None:
    assert searcher.evidence is not None
    model = read_evidence(stored(searcher.evidence, tmp_path, {"frame_run": 2.0}))
    assert model is not None
    features = np.full((2, len(KINDS)), 0.5)
    features[1, names().index("whole_picture")] = 1.0
    first, second = model.log_odds(features, num_videos=200)
    assert first == second


def test_a_stored_weight_of_no_kind_is_refused(searcher: Searcher, tmp_path: Path) -> None:
    """It was written by a version that knows more."""
    assert searcher.evidence is not None
    folder = stored(searcher.evidence, tmp_path, {"frame_run": 2.0, "is_long": 1.0})
    with pytest.raises(DamagedError, match="weights of is_long, which this version does not know"):
        read_evidence(folder)
