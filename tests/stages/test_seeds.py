"""Several seeds: which trainings are made, and what their table says."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
import yaml

from hapvr.config_file import dump_config
from hapvr.stages.project import Project
from hapvr.stages.seeds import COMPARISON_TAG, SeedRun, seeds_table
from hapvr.stages.training import CURRENT_NAME, tracker_of
from tests.commands.conftest import Call, call
from tests.tracking.empty_store import new_store
from tests.train.runs import with_train

__all__ = ["call"]


@pytest.fixture
def config_path(small_project: Project, tmp_path: Path) -> Path:
    """The small project's configuration with two steps, tracked in a folder of its own."""
    config = with_train(small_project, steps=2, validate_every_steps=1, log_every_steps=1)
    data = yaml.safe_load(dump_config(config))
    data["tracking"]["uri"] = new_store(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def test_table_has_mean_and_spread_over_seeds() -> None:
    """A line for each row; failed runs are counted and listed, and not averaged."""
    values = (("base", 0, 0.5), ("base", 1, 0.7), ("video", 0, 0.4), ("video", 1, None))
    runs = [
        SeedRun(
            row,
            seed,
            f"s-{seed}",
            {} if value is None else {"validation/mean": value, "own-test/DSVR": value / 2},
            "training: step 3: NaN" if value is None else "",
        )
        for row, seed, value in values
    ]
    assert seeds_table(runs).splitlines() == [
        "| row | seeds | validation/mean | own-test/DSVR |",
        "| --- | --- | --- | --- |",
        "| base | 2 | 0.6000 ± 0.1414 | 0.3000 ± 0.0707 |",
        "| video | 1 of 2 | 0.4000 | 0.2000 |",
        "",
        "Failed:",
        "- s-1: training: step 3: NaN",
    ]


def test_ablation_option_wants_a_file_and_a_table(config_path: Path, call: Call) -> None:
    """Exit code 2 and an example."""
    outcome = call("train", "--config", config_path, "--ablation", "table3")
    assert outcome.code == 2
    assert "--ablation 'table3': wanted FILE:TABLE" in outcome.error


@pytest.mark.slow
def test_seeds_of_an_ablation(small_project: Project, config_path: Path, tmp_path: Path, call: Call) -> None:
    """Two rows, one of which breaks training, by two seeds: four MLflow runs of one tag, a table, exit code 1."""
    table = {"rates": {"good": {}, "bad": {"train.optimizer.learning_rate": 1e30, "train.optimizer.warmup_steps": 0}}}
    (tmp_path / "rows.yaml").write_text(yaml.safe_dump(table, sort_keys=False), encoding="utf-8")
    arguments = ("train", "--config", config_path, "--run", "rates", "--seeds", "2", "--set", "train.steps=6")
    outcome = call(*arguments, "--ablation", f"{tmp_path / 'rows.yaml'}:rates", "--json")
    assert outcome.code == 1
    runs = outcome.json["runs"]
    assert [(run["row"], run["seed"]) for run in runs] == [("good", 0), ("good", 1), ("bad", 0), ("bad", 1)]
    assert ["learning_rate" in run["failure"] for run in runs] == [False, False, True, True]
    good = [run["metrics"] for run in runs if not run["failure"]]
    text = seeds_table([SeedRun(**run) for run in runs])
    for name in ("own-test/DSVR", "validation/mean"):
        values = [metrics[name] for metrics in good]
        assert f"{statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f}" in text
    project = Project.open(config_path, folder=small_project.folder)
    tracker = tracker_of(project)
    tracked = tracker.client.search_runs([tracker.experiment_id], f"tags.`{COMPARISON_TAG}` = 'rates'")
    assert len(tracked) == 4
    current = project.root.read_json(CURRENT_NAME) if project.root.exists(CURRENT_NAME) else {}
    assert current.get("key") not in {run["key"] for run in runs}
