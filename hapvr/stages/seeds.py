"""Trainings that are compared: some seeds of a configuration, and of each row of a table of ablations."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hapvr.config import digest
from hapvr.config_file import read_mapping
from hapvr.errors import ConfigError, HapvrError
from hapvr.stages.evaluation import TRAINED, make_benchmark_scores
from hapvr.stages.project import Project
from hapvr.stages.training import close_training, prepare_training, run_training
from hapvr.train.report import read_history

COMPARISON_TAG = "hapvr.comparison"
"""Tag of the MLflow runs that are compared with each other."""


@dataclass(frozen=True)
class Row:
    """A line of a table. overrides: dotted configuration keys to values."""

    title: str
    overrides: Mapping[str, Any]


AS_CONFIGURED = Row("as configured", {})


@dataclass(frozen=True)
class SeedRun:
    """One training of a row.

    metrics: validation at the best step, and of each benchmark every task. failure: what went wrong, "" if nothing did.
    """

    row: str
    seed: int
    key: str
    metrics: Mapping[str, float]
    failure: str


def read_rows(path: Path, table: str) -> list[Row]:
    """The rows of a table of an ablations file, or the single row of `table/row`.

    The file maps tables to rows, and rows to dotted configuration keys with values. Raises ConfigError.
    """
    name, slash, chosen = table.partition("/")
    rows = read_mapping(path).get(name)
    if not isinstance(rows, dict) or not all(isinstance(settings, dict) for settings in rows.values()):
        raise ConfigError(f"{path}: no table {name!r} whose rows map configuration keys to values")
    if slash and chosen not in rows:
        raise ConfigError(f"{path}: table {name} has no row {chosen!r}; it has {', '.join(rows)}")
    return [Row(title, settings) for title, settings in rows.items() if not slash or title == chosen]


def train_seeds(
    open_project: Callable[[Mapping[str, Any]], Project],
    *,
    key: str,
    seeds: int,
    rows: Sequence[Row] = (AS_CONFIGURED,),
    say: Callable[[str], None],
) -> list[SeedRun]:
    """Train every row with `seeds` seeds, from `train.seed` on, one after the other, and score `evaluation.benchmarks`.

    open_project: the project with more configuration values replaced. key: names the comparison; a second call of that name
    leaves finished trainings alone and goes on with the others. A training that fails is in the result, and the others go
    on. No run becomes the current model.
    """
    first = open_project({}).config.train.seed
    planned = [(row, seed) for row in rows for seed in range(first, first + seeds)]
    runs = []
    for number, (row, seed) in enumerate(planned, start=1):
        say(f"{number}/{len(planned)}: {row.title}, seed {seed}")
        project = open_project({**row.overrides, "train.seed": seed})
        run_key = f"{key}-{digest(project.config.train, project.config.pseudo_labels)}"
        metrics, failure = {}, ""
        try:
            metrics = _train_and_score(project, run_key, {COMPARISON_TAG: key})
        except HapvrError as error:
            failure = str(error)
        runs.append(SeedRun(row.title, seed, run_key, metrics, failure))
    return runs


def _train_and_score(project: Project, key: str, tags: Mapping[str, str]) -> dict[str, float]:
    run = prepare_training(project, key, tags=tags)
    run_training(project, run)
    best_step = close_training(project, run)["best_step"]
    best = [line for line in read_history(run.folder) if line["step"] == best_step]
    metrics = {name: value for line in best for name, value in line.items() if name.startswith("validation/")}
    for name in project.config.evaluation.benchmarks:
        scores = make_benchmark_scores(project, run, name)
        metrics |= {f"{name}/{task}": value for task, value in scores.results[TRAINED].metrics.items()}
    return metrics


def seeds_table(runs: Sequence[SeedRun]) -> str:
    """Markdown: a line for each row, mean ± standard deviation over its seeds. Failed runs are counted and listed below."""
    names = list(dict.fromkeys(name for run in runs for name in run.metrics))
    lines = [["row", "seeds", *names], ["---"] * (len(names) + 2)]
    for row in dict.fromkeys(run.row for run in runs):
        every = [run for run in runs if run.row == row]
        good = [run.metrics for run in every if not run.failure]
        seeds = str(len(good)) if len(good) == len(every) else f"{len(good)} of {len(every)}"
        cells = [_mean_and_spread([metrics[name] for metrics in good if name in metrics]) for name in names]
        lines.append([row, seeds, *cells])
    failed = [f"- {run.key}: {run.failure}" for run in runs if run.failure]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return table + ("\n\nFailed:\n" + "\n".join(failed) if failed else "") + "\n"


def _mean_and_spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.4f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.4f}"
