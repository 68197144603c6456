"""Several seeds: what is trained, tracked and shown."""

import statistics
from pathlib import Path

import pytest
import yaml

from hapvr.config_file import dump_config
from hapvr.model.checkpoint import load_network
from hapvr.steps.evaluation import SEEDS_TAG, seeds_text
from hapvr.steps.project import Project
from hapvr.steps.training import CURRENT_NAME, NETWORK_ARTIFACT, tracker_of
from tests.commands.conftest import Call, call
from tests.registry.empty_store import new_store
from tests.train.runs import with_train

__all__ = ["call"]


def test_text_has_mean_and_spread_over_seeds() -> None:
    runs = [{"metrics": {"validation/mean": value}} for value in (0.5, 0.7)]
    assert seeds_text(runs).splitlines() == ["2 trainings", "validation/mean: 0.6000 ± 0.1414"]


@pytest.mark.slow
def test_seeds_are_trained_one_by_one(small_project: Project, tmp_path: Path, call: Call) -> None:
    """Two MLflow runs of one tag, their benchmark scored; none becomes the current model. A failure
    is exit code 1."""
    data = yaml.safe_load(dump_config(with_train(small_project, steps=2, validate_every_steps=1)))
    data["tracking"]["uri"] = new_store(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    arguments = ("train", "--config", path, "--seeds", "2", "--json")
    runs = call(*arguments, "--run", "pair").json["runs"]
    assert [(run["seed"], run["key"]) for run in runs] == [(0, "pair-0"), (1, "pair-1")]
    values = [run["metrics"]["own-test/DSVR"] for run in runs]
    text = seeds_text(runs)
    assert f"own-test/DSVR: {statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f}" in text
    project = Project.open(path, folder=small_project.folder)
    tracker = tracker_of(project)
    tracked_runs = tracker.client.search_runs(
        [tracker.experiment_id], f"tags.`{SEEDS_TAG}` = 'pair'"
    )
    assert len(tracked_runs) == 2
    for tracked in tracked_runs:
        run_id = tracked.info.run_id
        folder = Path(tracker.client.download_artifacts(run_id, NETWORK_ARTIFACT))
        network, metadata = load_network(folder)
        assert network.dims == 32
        assert metadata["steps"] == 2
        assert {"train.seed", "train.steps"} <= tracked.data.params.keys()
        assert "validation/mean" in tracked.data.metrics

    current = project.root.read_json(CURRENT_NAME) if project.root.exists(CURRENT_NAME) else {}
    assert current.get("key") not in {run["key"] for run in runs}
    outcome = call(*arguments, "--run", "broken", "--set", "evaluation.benchmarks=[absent]")
    assert outcome.code == 1
    assert "absent" in outcome.json["error"]
