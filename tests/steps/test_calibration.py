"""What a search knows is fitted on searches whose answers are known."""

from pathlib import Path

import pytest

from hapvr.scorer.evidence import EvidenceModel
from hapvr.steps.calibration import fit_on_validation
from hapvr.steps.project import Project
from tests.steps.search_projects import bundle_of


def test_searches_for_validation_videos_are_fitted(
    small_project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Originals and their copies, among the training videos, and some as pictures in pictures."""
    project = Project.open(
        small_project.folder / "config.yaml",
        folder=small_project.folder,
        overrides={"evaluation.validation": "own-test", "evaluation.benchmarks": []},
    )
    bundle = bundle_of(project, tmp_path, fitted=None)
    monkeypatch.setattr("hapvr.scorer.evidence.MIN_GROUPS", 2)
    monkeypatch.setattr("hapvr.steps.search_calibration.EDITED_FRAMES", 4)
    found = fit_on_validation(project, bundle)
    assert isinstance(found, EvidenceModel)
    assert found.num_matches >= 10
    assert found.num_others > found.num_matches
    assert max(found.weights.values()) > 0
    assert found.source["edited"] > 0
