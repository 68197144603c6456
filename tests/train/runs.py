"""Trainings of a project in this process, and what the tests compare of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from hapvr.config import Config
from hapvr.model.checkpoint import load_network
from hapvr.steps.project import Project
from hapvr.steps.training_data import data_digests, training_shards
from hapvr.train.loop import Trainer, TrainingData, Validate
from hapvr.train.ranks import Ranks
from hapvr.train.run_folder import History, TrainingResult
from hapvr.train.sources.cached_views import CachedViews
from hapvr.train.sources.source import SourceInputs


def cached_views(project: Project, **changes: Any) -> CachedViews:
    """All training views of a project, with changes of its training settings."""
    return CachedViews(inputs_of(project, with_train(project, **changes)))


def inputs_of(project: Project, config: Config, folder: Path = Path()) -> SourceInputs:
    """What a source of batches of this configuration is made of, on the CPU."""
    return SourceInputs(
        root=project.root,
        shard_keys=tuple(training_shards(replace(project, config=config))),
        config=config,
        folder=folder,
        copies={},
        ranks=Ranks(),
    )


def cpu() -> Fabric:
    """This process alone, on the CPU."""
    return Fabric(accelerator="cpu", devices=1)


def run(
    project: Project,
    folder: Path,
    config: Config | None = None,
    *,
    validate: Validate | None = None,
) -> TrainingResult:
    """Train in this process, on the CPU."""
    config = config or project.config
    shards = training_shards(replace(project, config=config))
    data = TrainingData(
        root=project.root,
        shards=shards,
        digests=data_digests(replace(project, config=config), shards),
        copies={},
    )
    return Trainer(
        config,
        data,
        folder=folder,
        fabric=cpu(),
        validate=validate,
        open_loggers=lambda first_step: [History(folder, first_step=first_step)],
    ).fit()


def without_times(history: list[dict[str, float]]) -> list[dict[str, float]]:
    """History without what depends on how long things take."""
    return [
        {name: value for name, value in line.items() if name != "clips_per_s"} for line in history
    ]


def with_train(project: Project, **changes: object) -> Config:
    """The project's configuration with other training settings."""
    return project.config.model_copy(
        update={"train": project.config.train.model_copy(update=changes)}
    )


def same_weights(first: Path, second: Path) -> bool:
    """Whether the networks of two run folders are equal bit for bit."""
    first_weights = load_network(first / "network")[0].state_dict()
    two = load_network(second / "network")[0].state_dict()
    return first_weights.keys() == two.keys() and all(
        torch.equal(first_weights[name], two[name]) for name in first_weights
    )
