"""Step 9: a benchmark's similarities, metrics and plots, of the trained model and of the untrained
baseline."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl
from matplotlib.figure import Figure
from pydantic import BaseModel

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.protocol import EvaluationResult, evaluate
from hapvr.benchmark.ranking import relevant_and_irrelevant
from hapvr.benchmark.report import pr_curve_figure, similarity_distribution_figure
from hapvr.benchmark.scoring import read_scores, score_benchmark
from hapvr.files import digest_of, read_json_as, write_text
from hapvr.model.checkpoint import load_network
from hapvr.model.family import VideoNetwork
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.networks.torch_runtime import choose_device
from hapvr.progress import Progress, no_progress
from hapvr.steps import training
from hapvr.steps.benchmark_features import open_benchmark, target_mean
from hapvr.steps.model_places import MODELS
from hapvr.steps.project import Project
from hapvr.steps.training import TrainingRun, tracker_of
from hapvr.train.run_folder import read_history

BASELINE = "untrained baseline"
TRAINED = "trained model"
SIMILARITIES = {BASELINE: "similarities-untrained.parquet", TRAINED: "similarities-trained.parquet"}
SEEDS_TAG = "hapvr.seeds"
"""Tag of the MLflow runs of several seeds that are compared with each other."""


def score_benchmarks(
    project: Project, *, run: str = "", progress: Progress = no_progress
) -> dict[str, tuple[dict[str, EvaluationResult], dict[str, Figure]]]:
    """`make_benchmark_scores` of every benchmark, by name. run: of the training; "" for the current
    one."""
    trained = training.trained_run(project, run)
    names = project.config.evaluation.benchmarks
    scores = {}
    for number, name in enumerate(names, start=1):
        scores[name] = make_benchmark_scores(project, trained, name)
        progress(number, len(names))

    return scores


def make_benchmark_scores(
    project: Project, run: TrainingRun, name: str
) -> tuple[dict[str, EvaluationResult], dict[str, Figure]]:
    """Score benchmark `name` with the run's model and with frozen features alone (TopK-Chamfer,
    nothing learned). Writes `models/<run>/benchmarks/<name>/` and logs metrics, tables and plots to
    the training's MLflow run. Returns the results of BASELINE and TRAINED, and the plots by name.
    """
    definition, features = open_benchmark(project, name)
    made_with = {part: features.settings[part] for part in ("backbone", "whitening")}
    training.require_trained_on(run, made_with, what="the features were made")
    folder = run.folder / "benchmarks" / definition.name
    device = choose_device(project.config.device)
    results = {}
    for row, network in _compared_networks(run).items():
        stored = folder / SIMILARITIES[row]
        score_benchmark(network, definition, features, stored, device=device)
        results[row] = evaluate(
            definition,
            read_scores(stored),
            policy=project.config.evaluation.policy,
            available=frozenset(features.available()),
            bootstrap_samples=1000,
        )

    figures = _figures(definition, results, read_scores(folder / SIMILARITIES[TRAINED]))
    means = {row: target_mean(result, project.config.evaluation) for row, result in results.items()}
    data = {
        "digest": definition_digest(definition),
        "target_means": means,
        "results": {row: result.to_json() for row, result in results.items()},
    }
    # last: the others are complete where it is there
    write_text(folder / "scores.json", json.dumps(data, indent=1))
    project.root.note_made(f"{MODELS}/{run.key}/benchmarks/{definition.name}/scores.json")

    tracker = tracker_of(project)
    for row, result in results.items():
        prefix = f"{definition.name}/{row.split()[0]}"
        values = {**result.metrics, "mean": means[row]}
        metrics = {f"{prefix}/{task}": value for task, value in values.items()}
        tracker.metrics(run.mlflow_run_id, metrics)

    for title, figure in figures.items():
        place = f"figures/{definition.name}/{title}.png"
        tracker.client.log_figure(run.mlflow_run_id, figure, place)

    place = f"benchmarks/{definition.name}"
    tracker.client.log_artifacts(run.mlflow_run_id, str(folder), place)
    return results, figures


def _compared_networks(run: TrainingRun) -> dict[str, VideoNetwork]:
    """BASELINE and TRAINED: nothing learned, and what the run has learned."""
    trained, _ = load_network(run.network_folder)
    return {BASELINE: untrained_network(trained), TRAINED: trained}


def untrained_network(trained: VideoNetwork) -> SimilarityNetwork:
    """What a trained network is compared with: Chamfer similarity of frozen features, as the
    trained network computes it, or at the default rates where it has none."""
    chamfer = trained.settings if isinstance(trained, SimilarityNetwork) else NetworkSettings()
    frozen = NetworkSettings(
        spatial_rate=chamfer.spatial_rate,
        temporal_rate=chamfer.temporal_rate,
        symmetric_chamfer=chamfer.symmetric_chamfer,
        attention=False,
        comparator=False,
    )
    return SimilarityNetwork(frozen, dims=trained.dims)


def _figures(
    definition: BenchmarkDefinition,
    results: Mapping[str, EvaluationResult],
    similarities: pl.DataFrame,
) -> dict[str, Figure]:
    """A curve for each task, and the similarities of the trained model for the first one."""
    figures = {
        f"precision-recall-{task.name}": pr_curve_figure(results, task=task.name)
        for task in definition.tasks
    }
    first = definition.tasks[0].name
    relevant, irrelevant = relevant_and_irrelevant(definition, similarities, task=first)
    if len(relevant) and len(irrelevant):
        name = f"similarities-{first}"
        figures[name] = similarity_distribution_figure(relevant, irrelevant, title=first)

    return figures


def definition_digest(definition: BenchmarkDefinition) -> str:
    """Changes when queries, database or labels do, and what a generated benchmark was made of."""
    hashes = definition.labels.sort(definition.labels.columns).hash_rows(seed=0)
    origin = [
        definition.provenance[part]
        for part in ("settings", "inputs")
        if part in definition.provenance
    ]
    return digest_of(
        [definition.name, definition.queries, definition.database, hashes.to_list(), *origin]
    )


class StoredScores(BaseModel, extra="allow"):
    """scores.json."""

    digest: str
    """the edition of the benchmark, see `definition_digest`"""
    target_means: dict[str, float]
    results: dict[str, dict[str, Any]]
    """`EvaluationResult.to_json`"""


def stored_scores(project: Project, run: TrainingRun, name: str) -> dict[str, Any]:
    """What `make_benchmark_scores` wrote for a run. Raises DamagedError if it has not been run."""
    file = run.folder / "benchmarks" / name / "scores.json"
    hint = f"materialise benchmark_scores for model {run.key}"
    return read_json_as(file, StoredScores, hint=hint).model_dump()


def train_seeds(
    project: Project, *, key: str, seeds: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Train with `seeds` seeds, from `train.seed` on, and score the benchmarks. No run becomes the
    current model.

    key: names the trainings, KEY-SEED; a second call of that name leaves finished ones alone and
    goes on with the others.

    Returns seed, key and metrics of each: validation at the best step, and every task of
    `evaluation.benchmarks`.
    """
    runs = []
    train = project.config.train
    for seed in range(train.seed, train.seed + seeds):
        say(f"seed {seed}")
        update = {"train": train.model_copy(update={"seed": seed})}
        seeded = replace(project, config=project.config.model_copy(update=update))
        run = training.prepare_training(seeded, f"{key}-{seed}", tags={SEEDS_TAG: key})
        training.run_training(seeded, run)
        result = training.finish_training(seeded, run, make_current=False)
        metrics = _validation_metrics(run, result["best_step"])
        for name in project.config.evaluation.benchmarks:
            results, _ = make_benchmark_scores(seeded, run, name)
            metrics |= {f"{name}/{task}": value for task, value in results[TRAINED].metrics.items()}

        runs.append({"seed": seed, "key": run.key, "metrics": metrics})

    return runs


def _validation_metrics(run: TrainingRun, step: int) -> dict[str, float]:
    """What was measured on the validation benchmark at a step of a training."""
    metrics: dict[str, float] = {}
    for line in read_history(run.folder):
        if line["step"] == step:
            metrics |= {
                name: value for name, value in line.items() if name.startswith("validation/")
            }

    return metrics


def seeds_text(runs: Sequence[Mapping[str, Any]]) -> str:
    """Mean ± standard deviation of each metric over the trainings."""
    lines = [f"{len(runs)} trainings"]
    for name in runs[0]["metrics"]:
        values = [run["metrics"][name] for run in runs]
        lines.append(f"{name}: {statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f}")

    return "\n".join(lines)
