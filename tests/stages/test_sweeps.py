"""Sweeps: which trainings are made, what their table says, and both ways to start one."""

from __future__ import annotations

import re
import shutil
import statistics
from pathlib import Path

import dagster as dg
import pytest
import yaml

from hapvr.config_file import dump_config
from hapvr.errors import ArgumentError, DataError
from hapvr.stages.project import Project
from hapvr.stages.sweeps import PARENT_TAG, Row, Sweep, SweepRun, grid_rows, run_sweep
from hapvr.stages.training import CURRENT_NAME, tracker_of
from hapvr.storage.filesystem import DataRoot
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


def sweep_of(*rows: tuple[str, int, float | None]) -> Sweep:
    """Runs from (row, seed, value of both metrics); None: it failed."""
    return Sweep(
        "s",
        "id",
        tuple(
            SweepRun(
                row,
                {},
                seed,
                f"s-{seed}",
                "id",
                {} if value is None else {"validation/mean": value, "own-test/DSVR": value / 2},
                "training: step 3: NaN" if value is None else "",
            )
            for row, seed, value in rows
        ),
    )


def test_table_has_mean_and_spread_over_seeds() -> None:
    """A line for each row; failed runs are counted and listed, and not averaged."""
    sweep = sweep_of(("base", 0, 0.5), ("base", 1, 0.7), ("video", 0, 0.4), ("video", 1, None))
    assert sweep.table.splitlines() == [
        "| row | seeds | validation/mean | own-test/DSVR |",
        "| --- | --- | --- | --- |",
        "| base | 2 | 0.6000 ± 0.1414 | 0.3000 ± 0.0707 |",
        "| video | 1 of 2 | 0.4000 | 0.2000 |",
        "",
        "Failed:",
        "- s-1: training: step 3: NaN",
    ]


def test_grid_makes_all_combinations() -> None:
    """Titles leave out the section; no grid is one row without changes."""
    rows = grid_rows({"train.steps": [1, 2], "train.ema_decay": [0.9]})
    assert [row.title for row in rows] == ["steps=1, ema_decay=0.9", "steps=2, ema_decay=0.9"]
    assert rows[1].overrides == {"train.steps": 2, "train.ema_decay": 0.9}
    assert [(row.title, row.overrides) for row in grid_rows({})] == [("as configured", {})]
    with pytest.raises(ArgumentError, match=r"train\.steps: wanted a value or more"):
        grid_rows({"train.steps": []})


@pytest.mark.parametrize(
    ("seeds", "overrides", "message"),
    [
        (0, {}, "seeds: got 0, wanted 1 or more"),
        (1, {"views.num_frames": 4}, r"views\.num_frames: wanted a key of train or pseudo_labels"),
        (1, {"train.seed": 1}, r"train\.seed: wanted a key of train or pseudo_labels other than train\.seed"),
    ],
)
def test_bad_sweeps_are_refused(small_project: Project, seeds: int, overrides: dict[str, int], message: str) -> None:
    """Before anything is trained or tracked."""
    with pytest.raises(ArgumentError, match=message):
        run_sweep(lambda _: small_project, key="bad", seeds=seeds, rows=[Row("row", overrides)], tags={}, say=print)


def test_missing_features_of_a_benchmark_are_named_before_training(small_project: Project, tmp_path: Path) -> None:
    """A sweep scores benchmarks, so it says first what that needs."""
    shutil.copytree(small_project.root.local_path("manifest"), tmp_path / "manifest")
    empty = Project(small_project.config, DataRoot(tmp_path), small_project.folder)
    with pytest.raises(DataError, match=r"features of shard .* is not there; materialise features first"):
        run_sweep(lambda _: empty, key="bare", seeds=1, rows=grid_rows({}), tags={}, say=print)


def test_ablation_option_wants_a_file_and_a_table(config_path: Path, call: Call) -> None:
    """Exit code 2 and an example."""
    outcome = call("train", "--config", config_path, "--ablation", "table3")
    assert outcome.code == 2
    assert "--ablation 'table3': wanted FILE:TABLE" in outcome.error


def test_grid_option_without_values_is_a_wrong_call(config_path: Path, call: Call) -> None:
    """Exit code 2 and an example."""
    outcome = call("train", "--config", config_path, "--grid", "train.steps")
    assert outcome.code == 2
    assert "--grid 'train.steps': wanted KEY=V1,V2" in outcome.error


@pytest.mark.slow
def test_sweep_makes_children_of_one_run_and_goes_on(small_project: Project, config_path: Path, call: Call) -> None:
    """Two rates, one of which breaks training, by two seeds: four children of the parent run, a table, exit code 1."""
    grid = ("--grid", "train.optimizer.learning_rate=1e-3,1e30", "--grid", "train.optimizer.warmup_steps=0")
    arguments = ("train", "--config", config_path, "--run", "rates", "--seeds", "2", *grid, "--json")
    outcome = call(*arguments, "--set", "train.steps=6")
    assert outcome.code == 1
    runs = outcome.json["runs"]
    assert [(float(run["settings"]["train.optimizer.learning_rate"]), run["seed"]) for run in runs] == [
        (1e-3, 0),
        (1e-3, 1),
        (1e30, 0),
        (1e30, 1),
    ]
    assert ["learning_rate" in run["failure"] for run in runs] == [False, False, True, True]
    project = Project.open(config_path, folder=small_project.folder)
    tracker = tracker_of(project)
    parent = outcome.json["mlflow_run_id"]
    children = tracker.client.search_runs([tracker.experiment_id], f"tags.`{PARENT_TAG}` = '{parent}'")
    assert {child.info.run_id for child in children} == {run["mlflow_run_id"] for run in runs}
    text = tracker.client.download_artifacts(parent, "sweep/summary.md")
    table = Path(text).read_text(encoding="utf-8")
    assert "| 2 |" in table
    good = [run["metrics"] for run in runs if not run["failure"]]
    for name in (
        "own-test/DSVR",
        "own-test/untrained DSVR",
        "own-test/mean",
        "own-test/untrained mean",
        "validation/mean",
    ):
        values = [metrics[name] for metrics in good]
        assert f"{statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f}" in table
        logged = tracker.client.get_run(parent).data.metrics
        assert logged[f"mean/{name}"] == pytest.approx(statistics.fmean(values))
        assert logged[f"stdev/{name}"] == pytest.approx(statistics.stdev(values))
    assert not project.root.exists(CURRENT_NAME) or project.root.read_json(CURRENT_NAME)["key"] not in {
        run["key"] for run in runs
    }


@pytest.mark.slow
def test_sweep_job_in_dagster(
    small_project: Project, config_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job of the code location trains a row of the grid with both seeds and shows the table in its run."""
    from assets.project import ProjectResource
    from pipelines.definitions import defs

    monkeypatch.chdir(small_project.folder)
    resource = ProjectResource(config_path=str(config_path), folder=str(small_project.folder), overrides={})
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        result = defs.resolve_job_def("sweep").execute_in_process(
            instance=instance,
            run_config={"ops": {"train_sweep": {"config": {"seeds": 2, "grid": {"train.ema_decay": ["0.9"]}}}}},
            resources={"project": resource},
        )
    assert result.success
    (event,) = [event for event in result.all_events if event.is_successful_output]
    metadata = event.step_output_data.metadata
    assert metadata["trainings"].value == 2
    assert re.search(r"\| ema_decay=0\.9 \| 2 \|.*±", metadata["summary"].value)
