"""Retrieval on the validation benchmark during training; never on a test set."""

from __future__ import annotations

import tempfile
from pathlib import Path

import polars as pl

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


class Validator:
    """Scores the validation benchmark with a network: {"mean": mean target metric, task: value, ...}."""

    def __init__(self, project: Project, name: str, device: str) -> None:
        """name: of the benchmark."""
        self._definition = load_definition(str(benchmark_folder(project, name) or name))
        self._features = BenchmarkFeatures(
            FeatureStore(project.root, benchmark_shards(project, name)), self._definition
        )
        self._evaluation = project.config.evaluation
        self._device = device

    def __call__(self, network: VideoNetwork) -> dict[str, float]:
        with tempfile.TemporaryDirectory(prefix="hapvr-validation-") as folder:
            path = Path(folder) / "similarities.parquet"
            score_benchmark(network, self._definition, self._features, path, device=self._device)
            result = evaluate(self._definition, path, policy="strict", available=frozenset(self._features.available()))
        values = {task.task: task.value for task in result.tasks}
        return {"mean": target_mean(result, self._evaluation), **values}


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
