"""Trainings over seeds and a grid of settings: a parent run in MLflow with a child for each, and a table of mean and spread."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hapvr.config import digest
from hapvr.errors import ArgumentError, HapvrError
from hapvr.stages.project import Project
from hapvr.stages.training import close_training, prepare_training, run_training, tracker_of
from hapvr.train.report import read_history

PARENT_TAG = "mlflow.parentRunId"
SUMMARY_NAME = "sweep/summary.md"

OpenProject = Callable[[Mapping[str, Any]], Project]
"""The project with more configuration values replaced."""


@dataclass(frozen=True)
class SweepRun:
    """One training. settings: of the grid; metrics: validation at the best step, or the last loss; failure: "" if none."""

    settings: Mapping[str, Any]
    seed: int
    key: str
    mlflow_run_id: str
    metrics: Mapping[str, float]
    failure: str


@dataclass(frozen=True)
class Sweep:
    """All trainings of a sweep, its parent run and its table."""

    key: str
    mlflow_run_id: str
    runs: tuple[SweepRun, ...]

    @property
    def table(self) -> str:
        """Markdown: a line for each setting of the grid, mean ± standard deviation over seeds."""
        keys = list(dict.fromkeys(key for run in self.runs for key in run.settings))
        names = list(dict.fromkeys(name for run in self.runs for name in run.metrics))
        header = [*(key.removeprefix("train.") for key in keys), "seeds", *names]
        lines = [_line(header), _line(["---"] * len(header))]
        for settings in dict.fromkeys(json.dumps(run.settings) for run in self.runs):
            runs = [run for run in self.runs if json.dumps(run.settings) == settings]
            good = [run for run in runs if not run.failure]
            cells = [str(runs[0].settings[key]) for key in keys]
            cells.append(str(len(good)) if len(good) == len(runs) else f"{len(good)} of {len(runs)}")
            cells += [_mean_and_spread([run.metrics[name] for run in good]) for name in names]
            lines.append(_line(cells))
        failed = [f"- {run.key}: {run.failure}" for run in self.runs if run.failure]
        return "\n".join(lines) + "\n" + ("\nFailed:\n" + "\n".join(failed) + "\n" if failed else "")


def run_sweep(
    open_project: OpenProject,
    *,
    key: str,
    seeds: int,
    grid: Mapping[str, Sequence[Any]],
    tags: Mapping[str, str],
    say: Callable[[str], None],
) -> Sweep:
    """Train every combination of the grid with `seeds` seeds, from `train.seed` on, one after the other.

    key: names the sweep; a second call of that name leaves finished trainings alone and goes on with the others. A
    training that fails is in the table, and the others go on. No run becomes the current model. grid: dotted keys of
    `train` to values. Raises ArgumentError for other keys, ConfigError for values that are refused.
    """
    _check(seeds, grid)
    first = open_project({})
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    planned = [
        (settings, seed, open_project(settings | {"train.seed": seed}))
        for settings in combinations
        for seed in range(first.config.train.seed, first.config.train.seed + seeds)
    ]
    tracker = tracker_of(first)
    parent = tracker.start(
        f"sweep-{key}", name=f"sweep-{key}", params={"seeds": seeds, "grid": json.dumps(grid)}, tags=dict(tags)
    )
    runs: list[SweepRun] = []
    for number, (settings, seed, project) in enumerate(planned, start=1):
        shown = ", ".join(f"{name}={value}" for name, value in settings.items())
        say(f"{number}/{len(planned)}: {shown + ', ' if shown else ''}seed {seed}")
        runs.append(_run_one(project, f"{key}-{digest(project.config.train)}", settings, seed, parent))
    sweep = Sweep(key, parent, tuple(runs))
    tracker.text(parent, sweep.table, SUMMARY_NAME)
    means = {
        f"mean/{name}": statistics.fmean(values)
        for name in dict.fromkeys(name for run in runs for name in run.metrics)
        if (values := [run.metrics[name] for run in runs if name in run.metrics])
    }
    tracker.metrics(parent, means)
    tracker.end(parent, failed=all(run.failure for run in runs))
    return sweep


def _run_one(project: Project, key: str, settings: Mapping[str, Any], seed: int, parent: str) -> SweepRun:
    run = prepare_training(project, key, tags={PARENT_TAG: parent, "sweep.seed": str(seed)})
    try:
        run_training(project, run)
        result = close_training(project, run)
    except HapvrError as error:
        return SweepRun(settings, seed, key, run.mlflow_run_id, {}, str(error))
    history = read_history(run.folder)
    step = result["best_step"]
    metrics = {
        name: value
        for line in history
        if line["step"] == step
        for name, value in line.items()
        if name.startswith("validation/")
    } or {"loss/total": history[-1].get("loss/total", math.nan)}
    return SweepRun(settings, seed, key, run.mlflow_run_id, metrics, "")


def _check(seeds: int, grid: Mapping[str, Sequence[Any]]) -> None:
    if seeds < 1:
        raise ArgumentError(f"seeds: got {seeds}, wanted 1 or more")
    for name, values in grid.items():
        if not name.startswith("train.") or name == "train.seed":
            raise ArgumentError(
                f"grid: {name}: wanted a key of `train` other than its seed, as all trainings of a sweep share one project's data"
            )
        if not values:
            raise ArgumentError(f"grid: {name}: wanted a value or more")


def _mean_and_spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.4f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.4f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
