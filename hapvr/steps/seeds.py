"""Several seeds of one configuration: a training of each, one after the other, and the mean and spread of their metrics."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hapvr.errors import HapvrError
from hapvr.steps.evaluation import TRAINED, make_benchmark_scores
from hapvr.steps.project import Project
from hapvr.steps.training import close_training, prepare_training, run_training
from hapvr.train.run_folder import read_history

SEEDS_TAG = "hapvr.seeds"
"""Tag of the MLflow runs that are compared with each other."""


@dataclass(frozen=True)
class SeedRun:
    """One training. metrics: validation at the best step, and every task of `evaluation.benchmarks`. failure: "" for none."""

    seed: int
    key: str
    metrics: Mapping[str, float]
    failure: str


def train_seeds(project: Project, *, key: str, seeds: int, say: Callable[[str], None]) -> list[SeedRun]:
    """Train with `seeds` seeds, from `train.seed` on, and score the benchmarks. No run becomes the current model.

    key: names the trainings, KEY-SEED; a second call of that name leaves finished ones alone and goes on with the others.
    A training that fails is in the result, and the others go on.
    """
    runs = []
    train = project.config.train
    for seed in range(train.seed, train.seed + seeds):
        say(f"seed {seed}")
        config = project.config.model_copy(update={"train": train.model_copy(update={"seed": seed})})
        metrics, failure = {}, ""
        try:
            metrics = _train_and_score(replace(project, config=config), f"{key}-{seed}", {SEEDS_TAG: key})
        except HapvrError as error:
            failure = str(error)
        runs.append(SeedRun(seed, f"{key}-{seed}", metrics, failure))
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


def seeds_text(runs: Sequence[SeedRun]) -> str:
    """Mean ± standard deviation of each metric over the trainings that ended well, and the others with their reasons."""
    good = [run.metrics for run in runs if not run.failure]
    lines = [f"{len(good)} of {len(runs)} trainings"]
    for name in dict.fromkeys(name for metrics in good for name in metrics):
        values = [metrics[name] for metrics in good if name in metrics]
        spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        lines.append(f"{name}: {statistics.fmean(values):.4f}{spread}")
    return "\n".join([*lines, *(f"seed {run.seed} failed: {run.failure}" for run in runs if run.failure)])
