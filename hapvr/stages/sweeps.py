"""Trainings that are compared: the rows of an ablation or a grid of settings, each with several seeds.

A sweep is a parent run in MLflow with a child run for each training, and a table of mean and standard deviation.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hapvr.config import digest
from hapvr.config_file import read_mapping
from hapvr.errors import ArgumentError, ConfigError, HapvrError
from hapvr.stages.evaluation import BASELINE, TRAINED, make_benchmark_scores
from hapvr.stages.project import Project
from hapvr.stages.training import TrainingRun, close_training, prepare_training, run_training, tracker_of
from hapvr.stages.validation import benchmark_shards
from hapvr.storage.features import FeatureStore
from hapvr.train.report import read_history

PARENT_TAG = "mlflow.parentRunId"
SUMMARY_NAME = "sweep/summary.md"
SECTIONS = ("train", "pseudo_labels")
"""Sections that the trainings of a sweep may differ in: they share one project's data."""

OpenProject = Callable[[Mapping[str, Any]], Project]
"""The project with more configuration values replaced."""


@dataclass(frozen=True)
class Row:
    """A line of the table. overrides: dotted configuration keys to values."""

    title: str
    overrides: Mapping[str, Any]


@dataclass(frozen=True)
class SweepRun:
    """One training of a row.

    metrics: validation at the best step, or the last loss, and of each benchmark every task and the mean of the target
    metrics, both beside the untrained baseline's. failure: what went wrong, "" if nothing did.
    """

    row: str
    settings: Mapping[str, Any]
    seed: int
    key: str
    mlflow_run_id: str
    metrics: Mapping[str, float]
    failure: str


@dataclass(frozen=True)
class Sweep:
    """All trainings of a sweep and its parent run."""

    key: str
    mlflow_run_id: str
    runs: tuple[SweepRun, ...]

    @property
    def table(self) -> str:
        """Markdown: a line for each row, mean ± standard deviation over its seeds. Failed runs are listed below."""
        names = _metric_names(self.runs)
        header = ["row", "seeds", *names]
        lines = [_line(header), _line(["---"] * len(header))]
        for row in dict.fromkeys(run.row for run in self.runs):
            runs = [run for run in self.runs if run.row == row]
            good = [run for run in runs if not run.failure]
            seeds = str(len(good)) if len(good) == len(runs) else f"{len(good)} of {len(runs)}"
            lines.append(_line([row, seeds, *(_mean_and_spread(_values(good, name)) for name in names)]))
        failed = [f"- {run.key}: {run.failure}" for run in self.runs if run.failure]
        return "\n".join(lines) + "\n" + ("\nFailed:\n" + "\n".join(failed) + "\n" if failed else "")


def grid_rows(grid: Mapping[str, Sequence[Any]]) -> list[Row]:
    """All combinations of the values of some keys. Raises ArgumentError for a key without values."""
    for name, values in grid.items():
        if not values:
            raise ArgumentError(f"grid: {name}: wanted a value or more")
    rows = []
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        title = ", ".join(f"{name.removeprefix('train.')}={value}" for name, value in settings.items())
        rows.append(Row(title or "as configured", settings))
    return rows


def read_rows(path: Path, table: str) -> list[Row]:
    """The rows of a table of an ablations file, or the single row of `table/row`.

    The file maps tables to rows, and rows to dotted configuration keys with values. Raises ConfigError.
    """
    tables = read_mapping(path)
    name, slash, row = table.partition("/")
    if name not in tables:
        raise ConfigError(f"{path}: there is no table {name!r}; it has {', '.join(tables)}")
    rows = tables[name]
    if not isinstance(rows, dict) or not all(isinstance(settings, dict) for settings in rows.values()):
        raise ConfigError(
            f"{path}: {name}: wanted rows that map configuration keys to values, e.g. mae: {{train.steps: 9}}"
        )
    if slash and row not in rows:
        raise ConfigError(f"{path}: table {name} has no row {row!r}; it has {', '.join(rows)}")
    return [Row(title, settings) for title, settings in rows.items() if not slash or title == row]


def run_sweep(
    open_project: OpenProject,
    *,
    key: str,
    seeds: int,
    rows: Sequence[Row],
    tags: Mapping[str, str],
    say: Callable[[str], None],
) -> Sweep:
    """Train every row with `seeds` seeds, from `train.seed` on, and score the benchmarks of `evaluation.benchmarks`.

    The trainings follow one another. key: names the sweep; a second call of that name leaves finished trainings alone
    and goes on with the others. A training that fails is in the table, and the others go on. Equal settings are trained
    once. No run becomes the current model. Raises ArgumentError for keys outside SECTIONS, ConfigError for values that
    are refused, DataError where features of a benchmark are missing.
    """
    _check(seeds, rows)
    first = open_project({})
    for name in first.config.evaluation.benchmarks:
        FeatureStore(first.root, benchmark_shards(first, name))
    planned = [
        (row, seed, open_project({**row.overrides, "train.seed": seed}))
        for row in rows
        for seed in range(first.config.train.seed, first.config.train.seed + seeds)
    ]
    tracker = tracker_of(first)
    parent = tracker.start(
        f"sweep-{key}",
        name=f"sweep-{key}",
        params={"seeds": seeds, "rows": "; ".join(row.title for row in rows)},
        tags=dict(tags),
    )
    finished: dict[str, tuple[TrainingRun, dict[str, float], str]] = {}
    runs: list[SweepRun] = []
    for number, (row, seed, project) in enumerate(planned, start=1):
        say(f"{number}/{len(planned)}: {row.title}, seed {seed}")
        run_key = f"{key}-{digest(project.config.train, project.config.pseudo_labels)}"
        if run_key not in finished:
            finished[run_key] = _train_and_score(project, run_key, seed, parent)
        run, metrics, failure = finished[run_key]
        runs.append(SweepRun(row.title, row.overrides, seed, run_key, run.mlflow_run_id, metrics, failure))
    sweep = Sweep(key, parent, tuple(runs))
    tracker.text(parent, sweep.table, SUMMARY_NAME)
    summary = {name: _values(runs, name) for name in _metric_names(runs)}
    tracker.metrics(parent, {f"mean/{name}": statistics.fmean(values) for name, values in summary.items()})
    tracker.metrics(
        parent, {f"stdev/{name}": statistics.stdev(values) for name, values in summary.items() if len(values) > 1}
    )
    tracker.end(parent, failed=all(run.failure for run in runs))
    return sweep


def _train_and_score(project: Project, key: str, seed: int, parent: str) -> tuple[TrainingRun, dict[str, float], str]:
    """The run, its metrics, and what went wrong or ""."""
    run = prepare_training(project, key, tags={PARENT_TAG: parent, "sweep.seed": str(seed)})
    metrics: dict[str, float] = {}
    try:
        run_training(project, run)
        metrics |= _validation(run, best_step=close_training(project, run)["best_step"])
        for name in project.config.evaluation.benchmarks:
            scores = make_benchmark_scores(project, run, name)
            for task, value in scores.results[TRAINED].metrics.items():
                metrics[f"{name}/{task}"] = value
                metrics[f"{name}/untrained {task}"] = scores.results[BASELINE].metrics[task]
            metrics[f"{name}/mean"] = scores.target_means[TRAINED]
            metrics[f"{name}/untrained mean"] = scores.target_means[BASELINE]
    except HapvrError as error:
        return run, metrics, str(error)
    return run, metrics, ""


def _validation(run: TrainingRun, *, best_step: int) -> dict[str, float]:
    history = read_history(run.folder)
    best = [line for line in history if line["step"] == best_step]
    metrics = {name: value for line in best for name, value in line.items() if name.startswith("validation/")}
    return metrics or {"loss/total": history[-1].get("loss/total", math.nan)}


def _check(seeds: int, rows: Sequence[Row]) -> None:
    if seeds < 1:
        raise ArgumentError(f"seeds: got {seeds}, wanted 1 or more")
    for name in dict.fromkeys(name for row in rows for name in row.overrides):
        if name.partition(".")[0] not in SECTIONS or name == "train.seed":
            raise ArgumentError(
                f"sweep: {name}: wanted a key of {' or '.join(SECTIONS)} other than train.seed, as all trainings of a "
                f"sweep share one project's data"
            )


def _metric_names(runs: Sequence[SweepRun]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.metrics))


def _values(runs: Sequence[SweepRun], name: str) -> list[float]:
    return [run.metrics[name] for run in runs if name in run.metrics]


def _mean_and_spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.4f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.4f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
