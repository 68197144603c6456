"""Benchmarks of a project with their stored features; retrieval on the validation benchmark during training, never on a test set."""

from __future__ import annotations

import tempfile
from pathlib import Path

import polars as pl
import torch

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.benchmark.protocol import EvaluationResult, evaluate
from hapvr.benchmark.scoring import score_benchmark
from hapvr.config import EvaluationConfig
from hapvr.data.features import FeatureStore
from hapvr.data.manifest import read_manifest
from hapvr.errors import ConfigError
from hapvr.model.family import VideoNetwork
from hapvr.steps.benchmark_features import BenchmarkFeatures
from hapvr.steps.project import Project
from hapvr.steps.sources import benchmark_folder
from hapvr.tables import read_frame


class Validator:
    """Scores the validation benchmark with a network: {"mean": mean target metric, task: value, ...}."""

    def __init__(self, project: Project, name: str, device: str) -> None:
        """name: of the benchmark."""
        self._definition, self._features = open_benchmark(project, name)
        self._evaluation = project.config.evaluation
        self._device = device

    def __call__(self, network: VideoNetwork) -> dict[str, float]:
        scores = score_stored(network, self._definition, self._features, self._device)
        result = evaluate(self._definition, scores, policy="strict", available=frozenset(self._features.available()))
        return {"mean": target_mean(result, self._evaluation), **{task.task: task.value for task in result.tasks}}


def project_benchmark(project: Project, name: str) -> BenchmarkDefinition:
    """A benchmark that a source of the project made, or that ships."""
    return load_definition(str(benchmark_folder(project, name) or name))


def open_benchmark(project: Project, name: str) -> tuple[BenchmarkDefinition, BenchmarkFeatures]:
    """A benchmark and the stored features of its videos."""
    definition = project_benchmark(project, name)
    return definition, BenchmarkFeatures(FeatureStore(project.root, benchmark_shards(project, name)), definition)


def score_stored(
    network: VideoNetwork, definition: BenchmarkDefinition, features: BenchmarkFeatures, device: torch.device | str
) -> pl.DataFrame:
    """Similarities of all pairs of a benchmark: query_id, reference_id, similarity."""
    with tempfile.TemporaryDirectory(prefix="hapvr-scores-") as folder:
        return read_frame(
            score_benchmark(network, definition, features, Path(folder) / "similarities.parquet", device=device)
        )


def benchmark_shards(project: Project, name: str) -> list[str]:
    """Shards whose features a benchmark reads: those of the source of that name, or all that are not for training."""
    manifest = read_manifest(project.root)
    own = manifest.filter(pl.col("source") == name)
    chosen = own if len(own) else manifest.filter(pl.col("split") != "train")
    return chosen["shard"].unique().sort().to_list()


def target_mean(result: EvaluationResult, config: EvaluationConfig) -> float:
    """Mean of the target metrics that the benchmark has. Raises ConfigError if it has none of them."""
    values = {task.task: task.value for task in result.tasks}
    chosen = [values[name] for name in config.target_metrics if name in values]
    if not chosen:
        raise ConfigError(
            f"evaluation.target_metrics: benchmark {result.benchmark} has none of {', '.join(config.target_metrics)}; "
            f"it has {', '.join(values)}"
        )
    return sum(chosen) / len(chosen)
