"""The step that scores benchmarks: what is wrong is found before the training."""

from pathlib import Path

import pytest

from hapvr.errors import ConfigError
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.steps.evaluation import untrained_network
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


def test_the_untrained_network_computes_chamfer_similarity_as_the_trained_one() -> None:
    """Otherwise the table would compare two similarities, not training with none."""
    chamfer = {"spatial_rate": 0.2, "temporal_rate": 0.07, "symmetric_chamfer": True}
    trained = SimilarityNetwork(NetworkSettings(**chamfer), dims=16)
    untrained = untrained_network(trained).settings
    assert untrained == NetworkSettings(**chamfer, attention=False, comparator=False)
