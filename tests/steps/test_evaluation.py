"""The step that scores benchmarks: what is wrong is found before the training."""

from pathlib import Path

import pytest

from hapvr.errors import ConfigError
from hapvr.steps.project import Project
from hapvr.steps.training import prepare_training, tracker_of
from tests.conftest import write_settings


@pytest.mark.parametrize(
    "wrong", [{"target_metrics": ["mAP"]}, {"gate": {"required_metrics": ["mAP"]}}]
)
def test_wrong_metrics_are_found_before_there_is_a_run(
    small_project: Project, tmp_path: Path, wrong: dict[str, object]
) -> None:
    """Not by the gate, after the training."""
    settings = small_project.config.model_dump(mode="json")
    settings["evaluation"] |= wrong
    project = Project.open(
        write_settings(tmp_path / "config.yaml", settings), folder=small_project.folder
    )
    tracker = tracker_of(project)
    before = len(tracker.client.search_runs([tracker.experiment_id]))
    with pytest.raises(ConfigError, match=r"evaluation.*mAP"):
        prepare_training(project, "wrong", tags={})
    assert len(tracker.client.search_runs([tracker.experiment_id])) == before
    assert not project.root.local_path("models/wrong").exists()
