"""Stored features under the ids of a benchmark; retrieval on the validation benchmark during
training, never on a test set."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import polars as pl
import torch
from torch import Tensor

from hapvr.benchmark.definition import BenchmarkDefinition, load_definition
from hapvr.benchmark.protocol import EvaluationResult, evaluate
from hapvr.benchmark.scoring import score_benchmark
from hapvr.config import EvaluationConfig
from hapvr.data.features import STAGE, FeatureStore
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import read_manifest, source_of
from hapvr.data.shards import Shard
from hapvr.errors import ConfigError, DataError
from hapvr.model.family import VideoNetwork
from hapvr.steps.project import Project
from hapvr.steps.sources import CORPUS_FOLDER
from hapvr.tables import read_frame
from hapvr.video.folders import VIDEO_SUFFIXES


class BenchmarkFeatures(FeatureStore):
    """The stored features of a benchmark's videos, by the benchmark's own ids."""

    def __init__(
        self,
        root: DataRoot,
        shard_keys: Iterable[str],
        definition: BenchmarkDefinition,
        *,
        others: Sequence[str] = (),
    ) -> None:
        """others: further videos of the shards that can be read, by the ids that they have
        there."""
        super().__init__(root, shard_keys)
        self._stored_ids = stored_ids(definition, super().available()) | dict(
            zip(others, others, strict=True)
        )

    def available(self) -> set[str]:
        """Ids of the benchmark's videos that have features."""
        return set(self._stored_ids)

    def read(
        self, video_ids: Sequence[str], *, extras: bool = False
    ) -> Iterator[tuple[str, Tensor]]:
        """(benchmark's id, [T, R, D] fp16) of those ids that exist, in the order of the files;
        extras: as `FeatureStore`."""
        own_ids = {
            self._stored_ids[video]: video for video in video_ids if video in self._stored_ids
        }
        for stored_id, features in super().read(list(own_ids), extras=extras):
            yield own_ids[stored_id], features


def stored_ids(definition: BenchmarkDefinition, available: Iterable[str]) -> dict[str, str]:
    """Benchmark's id -> id in the store, of those in `available`. A video is stored under its own
    id (imported features, generated benchmarks) or, where a source ingested it, as `<source>/<id>`,
    with a video file's suffix if it came from a folder; the source of the benchmark's name wins."""
    wanted = set(definition.video_ids)
    prefix = f"{definition.name}/"
    stored: dict[str, str] = {}
    for stored_id in sorted(available, key=lambda name: (not name.startswith(prefix), name)):
        names = [stored_id, stored_id.partition("/")[2]]
        names += [
            name.rpartition(".")[0]
            for name in names
            if PurePosixPath(name).suffix.lower() in VIDEO_SUFFIXES
        ]
        own_id = next((name for name in names if name in wanted), None)
        if own_id:
            stored.setdefault(own_id, stored_id)

    return stored


def shards_with_features(root: DataRoot, definition: BenchmarkDefinition) -> list[str]:
    """Finished feature shards below `root` that hold a video of the benchmark. Raises DataError if
    none does."""
    shards = [Shard(root, STAGE, key) for key in root.list_folders(STAGE)]
    finished = [shard for shard in shards if root.exists(shard.index_name)]
    chosen = [
        shard.key
        for shard in finished
        if stored_ids(definition, shard.index()["video_id"].to_list())
    ]
    if not chosen:
        raise DataError(
            f"features: none of {len(finished)} finished shards below {root.url}/{STAGE} "
            f"holds a video of {definition.name}; its ids are e.g. {definition.queries[0]!r}. See "
            "`hapvr extract` and `hapvr features import`"
        )

    return chosen


def background_features(
    root: DataRoot, definition: BenchmarkDefinition, source: str
) -> tuple[BenchmarkFeatures, tuple[str, ...]]:
    """Features of a benchmark and of all other videos of a source, and the ids of these. Videos of
    the benchmark are not a background. Raises DataError where the source has other features than
    the benchmark's, or none."""
    keys = sorted(key for key in root.list_folders(STAGE) if source_of(key) == source)
    available = FeatureStore(root, keys).available()
    background = tuple(sorted(available - set(stored_ids(definition, available).values())))
    if not background:
        raise DataError(
            f"normalisation: source {source!r:.80} has no features of videos outside "
            f"{definition.name}; extract a source that shows none of its queries"
        )

    every = dict.fromkeys([*shards_with_features(root, definition), *keys])
    return BenchmarkFeatures(root, every, definition, others=background), background


def open_validator(
    project: Project, name: str, device: str
) -> Callable[[VideoNetwork], dict[str, float]]:
    """Scores benchmark `name` with a network: {"mean": mean target metric, task: value, ...}."""
    definition, features = open_benchmark(project, name)

    def validate(network: VideoNetwork) -> dict[str, float]:
        scores = score_stored(network, definition, features, device)
        result = evaluate(
            definition, scores, policy="strict", available=frozenset(features.available())
        )
        return {"mean": target_mean(result, project.config.evaluation), **result.metrics}

    return validate


def project_benchmark(project: Project, name: str) -> BenchmarkDefinition:
    """A benchmark that a source of the project made, or that ships."""
    folder = f"{CORPUS_FOLDER}/{name}"
    is_own = project.root.local is not None and project.root.exists(f"{folder}/benchmark.json")
    return load_definition(str(project.root.local_path(folder)) if is_own else name)


def open_benchmark(project: Project, name: str) -> tuple[BenchmarkDefinition, BenchmarkFeatures]:
    """A benchmark and the stored features of its videos."""
    definition = project_benchmark(project, name)
    return definition, BenchmarkFeatures(project.root, benchmark_shards(project, name), definition)


def score_stored(
    network: VideoNetwork,
    definition: BenchmarkDefinition,
    features: BenchmarkFeatures,
    device: torch.device | str,
) -> pl.DataFrame:
    """Similarities of all pairs of a benchmark: query_id, reference_id, similarity."""
    with tempfile.TemporaryDirectory(prefix="hapvr-scores-") as folder:
        place = Path(folder) / "similarities.parquet"
        return read_frame(score_benchmark(network, definition, features, place, device=device))


def benchmark_shards(project: Project, name: str) -> list[str]:
    """Shards whose features a benchmark reads: those of the source of that name, or all that are
    not for training."""
    manifest = read_manifest(project.root)
    videos = manifest.filter(pl.col("source") == name)
    if not len(videos):
        videos = manifest.filter(pl.col("split") != "train")
    return videos["shard"].unique().sort().to_list()


def check_evaluation(project: Project) -> None:
    """Find what would fail after hours of training. Raises DataError for a benchmark that is not
    there, ConfigError where none measures a required metric, or one of them no target metric."""
    evaluation = project.config.evaluation
    measured: set[str] = set()
    for name in filter(None, (*evaluation.benchmarks, evaluation.validation)):
        tasks = [task.name for task in project_benchmark(project, name).tasks]
        if not set(tasks) & set(evaluation.target_metrics):
            raise ConfigError(
                f"evaluation.target_metrics: benchmark {name} has none of "
                f"{', '.join(evaluation.target_metrics)}; it has {', '.join(tasks)}"
            )

        if name in evaluation.benchmarks:
            measured |= set(tasks)

    unmeasured = sorted(set(evaluation.gate.required_metrics) - measured)
    if unmeasured:
        raise ConfigError(
            f"evaluation.gate.required_metrics: {', '.join(unmeasured)} was measured on no "
            "benchmark; the benchmarks have "
            f"{', '.join(sorted(measured)) or 'no metrics'}"
        )


def target_mean(result: EvaluationResult, config: EvaluationConfig) -> float:
    """Mean of the target metrics that the benchmark has; `check_evaluation` has found one."""
    chosen = [result.metrics[name] for name in config.target_metrics if name in result.metrics]
    return sum(chosen) / len(chosen)
