"""What a search knows is fitted on searches whose answers are known."""

from pathlib import Path

import numpy as np
import pytest

from hapvr.scorer.evidence import EvidenceModel
from hapvr.seeding import numpy_rng
from hapvr.steps.calibration import fit_on_validation
from hapvr.steps.project import Project
from hapvr.steps.search_calibration import frame_threshold
from tests.steps.search_projects import bundle_of


@pytest.mark.slow
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
    evidence_model = fit_on_validation(project, bundle)
    assert isinstance(evidence_model, EvidenceModel)
    assert evidence_model.num_matches >= 10
    assert evidence_model.num_others > evidence_model.num_matches
    assert max(evidence_model.weights.values()) > 0
    assert evidence_model.source["edited"] > 0


def test_copies_that_nobody_marked_do_not_move_the_threshold_of_segments() -> None:
    """It is just above what unlike videos reach, also where a fifth of the pairs are copies."""
    unlike = list(numpy_rng(0, "unlike").uniform(0, 0.15, (160, 12, 12)))
    copies = [0.8 * np.eye(12)] * 40
    alone = frame_threshold(len(unlike), unlike.__getitem__)
    among = frame_threshold(len(unlike + copies), (unlike + copies).__getitem__)
    assert 0.14 < alone < among < alone + 0.02
