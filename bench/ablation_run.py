"""One row of the ablations: its settings, and training and evaluating it with one seed."""

from __future__ import annotations

import hashlib
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.benchmark.protocol import evaluate
from hapvr.benchmark.scoring import score_benchmark
from hapvr.config import digest
from hapvr.config_file import read_mapping
from hapvr.errors import ConfigError
from hapvr.model.checkpoint import load_network
from hapvr.model.network import SimilarityNetwork
from hapvr.stages.evaluation import definition_digest
from hapvr.stages.project import Project
from hapvr.stages.sources import benchmark_folder
from hapvr.stages.training import data_digests, training_shards
from hapvr.stages.validation import Validator, benchmark_shards, target_mean, validation_shards
from hapvr.storage.features import FeatureStore
from hapvr.train.cached_views import CachedViews
from hapvr.train.checkpoint import list_checkpoints, read_checkpoint
from hapvr.train.guards import NotFiniteError
from hapvr.train.loop import CHECKPOINTS, NETWORK, train
from hapvr.train.report import History, Logger
from hapvr.train.step import TrainingModule, build_network, build_objective

NUM_LOSS_BATCHES = 5


@dataclass(frozen=True)
class Row:
    """A row of a table. overrides: dotted keys of `train` to values."""

    table: str
    title: str
    overrides: Mapping[str, Any]


@dataclass(frozen=True)
class Setup:
    """What all rows share. steps, batch_videos: of each training; validate_every: steps between validations, 0: none."""

    config: Path
    data_root: str | None
    benchmark: str | None
    steps: int
    batch_videos: int
    validate_every: int = 0

    def project(self, row: Row, *, seed: int) -> Project:
        """The project with the settings of a row. Raises ConfigError."""
        short = {
            "train.steps": self.steps,
            "train.batch_videos": self.batch_videos,
            "train.seed": seed,
            "train.data_workers": 0,
            "train.num_processes": 1,
            "train.checkpoint_every_steps": self.steps,
        }
        if self.validate_every:
            short["train.validate_every_steps"] = self.validate_every
        root = {} if self.data_root is None else {"data_root": self.data_root}
        return Project.open(self.config, overrides=root | dict(row.overrides) | short)

    def benchmark_of(self, project: Project) -> BenchmarkDefinition:
        """The benchmark asked for, or the first that the configuration names. Raises ConfigError if there is none."""
        names = [self.benchmark] if self.benchmark else list(project.config.evaluation.benchmarks)
        if not names:
            raise ConfigError(f"{self.config}: evaluation.benchmarks names none; give one with --benchmark")
        return load_definition(str(benchmark_folder(project, names[0]) or names[0]))


def read_rows(folder: Path, table: str) -> list[Row]:
    """The rows of a table in the order of their files. Raises ConfigError for no rows, and for keys outside `train`."""
    rows = []
    for path in sorted((folder / table).glob("*.yaml")):
        keys = {key: value for key, value in read_mapping(path).items() if key not in ("extends", "name")}
        if set(keys) - {"train"}:
            raise ConfigError(
                f"{path}: sets {', '.join(sorted(set(keys) - {'train'}))}, which needs other cached data; "
                f"only rows that differ in `train` can share the views of one project"
            )
        rows.append(Row(table, path.stem.partition("-")[2], dict(_dotted(keys))))
    if not rows:
        raise ConfigError(f"{folder / table}: there are no rows; see configs/ablations for the tables")
    return rows


def run_row(setup: Setup, row: Row, seed: int) -> dict[str, Any]:
    """Train and evaluate one row with one seed, in a temporary folder; returns what the JSON file keeps of it.

    `trained` has the last weights, `best` those that the validation benchmark chose, if the setup asks for any.
    """
    torch.set_num_threads(1)  # rows run side by side in processes, and one thread gives equal sums everywhere
    start = time.monotonic()
    project = setup.project(row, seed=seed)
    shards = training_shards(project)
    definition = setup.benchmark_of(project)
    store = FeatureStore(project.root, benchmark_shards(project, definition.name))
    validate = Validator(project, validation_shards(project), "cpu") if setup.validate_every else None
    with tempfile.TemporaryDirectory(prefix="hapvr-ablation-") as name:
        folder = Path(name)

        def open_logger(first_step: int) -> Logger:
            return History(folder, first_step=first_step)

        fabric = Fabric(accelerator="cpu", devices=1, precision=project.config.train.precision)
        try:
            first_loss = own_loss(project, shards, _fresh(project))
            result = train(
                project.config,
                project.root,
                shards,
                folder=folder,
                fabric=fabric,
                validate=validate,
                open_logger=open_logger,
            )
            trained = _fresh(project)
            last = read_checkpoint(list_checkpoints(folder / CHECKPOINTS)[-1])
            trained.load_state_dict(last["average"] or last["network"])
            last_loss = own_loss(project, shards, trained)
        except NotFiniteError as error:
            return {"status": "not finite", "message": str(error), "seconds": time.monotonic() - start}
        networks = {"untrained": untrained(trained), "trained": trained.eval()}
        validation = {}
        if validate is not None:
            networks["best"], _ = load_network(folder / NETWORK)
            validation = {kind: validate(network)["mean"] for kind, network in networks.items()}
        scores = {
            kind: retrieval(project, network, definition, store, folder / f"{kind}.parquet")
            for kind, network in networks.items()
        }
    return {
        "status": "ok",
        **scores,
        "validation": validation,
        "best_step": result.best_step,
        "first_loss": first_loss,
        "last_loss": last_loss,
        "num_videos": result.num_videos,
        "weights_sha256": result.weights_sha256,
        "seconds": time.monotonic() - start,
    }


def own_loss(project: Project, shards: Sequence[str], network: SimilarityNetwork) -> float:
    """Mean total of the project's objective over the first batches of its training."""
    settings = project.config.train
    data = CachedViews(
        project.root,
        shards,
        batch_videos=settings.batch_videos,
        seed=settings.seed,
        rates=project.config.pseudo_labels,
        weak_views=settings.weak_views,
        strong_views=settings.strong_views,
    )
    step = TrainingModule(network, build_objective(settings.objective))
    with torch.no_grad():
        batches = (data[number] for number in range(NUM_LOSS_BATCHES))
        return statistics.fmean(
            float(step(batch.regions.float(), batch.labels, batch.frame_labels, batch.pair_index)[0])
            for batch in batches
        )


def untrained(network: SimilarityNetwork) -> SimilarityNetwork:
    """The same pooling on frozen features: no attention, no codes, no comparator."""
    settings = replace(network.settings, attention=False, binary_bits=0, comparator=False)
    return SimilarityNetwork.from_settings(settings)


def retrieval(
    project: Project, network: SimilarityNetwork, definition: BenchmarkDefinition, store: FeatureStore, path: Path
) -> dict[str, float]:
    """Metrics of the benchmark by task, and "mean" of the target metrics."""
    score_benchmark(network, definition, store, path, device="cpu")
    evaluation = project.config.evaluation
    result = evaluate(definition, path, policy=evaluation.policy, available=frozenset(store.available()))
    return {"mean": target_mean(result, evaluation), **result.metrics}


def run_key(project: Project, data_digest: str) -> str:
    """Names a run by everything that determines it: settings of training, and the data it reads."""
    return f"{digest(project.config.train, project.config.evaluation)}-{data_digest}"


def data_digest(project: Project, definition: BenchmarkDefinition) -> str:
    """16 hex digits that change with views, labels, features or benchmark."""
    store = FeatureStore(project.root, benchmark_shards(project, definition.name))
    parts = [data_digests(project, training_shards(project)), store.digests(), definition_digest(definition)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _fresh(project: Project) -> SimilarityNetwork:
    settings = project.config.train
    return build_network(settings.network, dims=project.config.whitening.dims, seed=settings.seed)


def _dotted(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
