"""Training data that the current model has not seen."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from hapvr.config_file import load_config
from hapvr.data import features
from hapvr.data.manifest import training_shard_keys
from hapvr.data.shards import STATUS_OK
from hapvr.errors import ConfigError, DataError
from hapvr.steps.benchmark_features import benchmark_shards
from hapvr.steps.model_places import CURRENT_NAME
from hapvr.steps.project import Project
from hapvr.steps.training import trained_run
from hapvr.steps.training_data import (
    data_digests,
    has_stages,
    labels_digest,
    read_labels,
    stages_read,
)
from hapvr.train import run_folder

TRAINED_WITH = ("backbone", "teacher", "whitening", "views", "pseudo_labels", "train")
"""Sections of the configuration that determine a trained model."""


@dataclass(frozen=True)
class PendingData:
    """Training data that the current model has not seen."""

    shards: tuple[str, ...]
    """with features and with what the training reads"""
    num_videos: int
    """usable videos in them"""
    is_empty: bool
    """whether a training would only repeat the current model, since there is one of the same data
    and settings"""
    awaited: tuple[str, ...]
    """shards of the benchmarks that have no features yet; without them a training would fail"""


def pending_data(project: Project) -> PendingData:
    """The training data of the project that the current model has not seen."""
    stages = (features.STAGE, *stages_read(project))
    new = [key for key in training_shard_keys(project.root) if has_stages(project, key, *stages)]
    is_current = False
    if project.root.exists(CURRENT_NAME):
        try:
            seen, is_current = _current_training(project)
            new = [key for key in new if key not in seen]
        except (DataError, ConfigError) as error:
            warnings.warn(f"{error}. It counts as no model")

    return PendingData(
        shards=tuple(new),
        num_videos=sum(_num_usable(project, key) for key in new),
        is_empty=is_current and not new,
        awaited=_awaited_shards(project),
    )


def _current_training(project: Project) -> tuple[Sequence[str], bool]:
    """The shards on which the current model was trained, and whether the settings, and the shards
    among these that still exist, are unchanged."""
    config = project.config
    folder = trained_run(project).folder
    record = run_folder.read_record(folder)
    before = load_config(folder / run_folder.CONFIG_NAME)
    has_same_settings = all(
        getattr(before, section) == getattr(config, section) for section in TRAINED_WITH
    )
    has_same_sampling = before.sampling.identity_fields() == config.sampling.identity_fields()

    stages = stages_read(project)
    left = [key for key in record["shards"] if has_stages(project, key, *stages)]
    labels = read_labels(project, left)
    digests = data_digests(project, left) | labels_digest(labels)
    has_same_data = digests.items() <= record["data_digests"].items()
    return record["shards"], has_same_settings and has_same_sampling and has_same_data


def _num_usable(project: Project, key: str) -> int:
    """Videos of a shard that have features."""
    statuses = project.shard(features.STAGE, key).index()["status"]
    return int((statuses == STATUS_OK).sum())


def _awaited_shards(project: Project) -> tuple[str, ...]:
    """Shards of the benchmarks that have no features yet, sorted."""
    evaluation = project.config.evaluation
    names = [name for name in (*evaluation.benchmarks, evaluation.validation) if name]
    read = {key for name in names for key in benchmark_shards(project, name)}
    return tuple(key for key in sorted(read) if not has_stages(project, key, features.STAGE))
