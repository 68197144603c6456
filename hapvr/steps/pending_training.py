"""What has changed since the last model; sensors and schedules ask this."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from hapvr.config import Config, digest
from hapvr.config_file import load_config
from hapvr.data.features import STAGE as FEATURES_STAGE
from hapvr.data.manifest import read_manifest, training_shard_keys
from hapvr.data.shards import STATUS_OK
from hapvr.errors import ConfigError, DamagedError
from hapvr.steps.benchmark_features import benchmark_shards
from hapvr.steps.labelled_pairs import labelled_file_sha256
from hapvr.steps.project import Project
from hapvr.steps.training import CURRENT_NAME, LABELLED_SHA256, current_run, has_training_data
from hapvr.train.run_folder import CONFIG_NAME, read_record


@dataclass(frozen=True)
class PendingData:
    """Training data that the current model has not seen.

    shards: shards with features and with what the training reads. num_videos: usable videos in them. settings_changed:
    the configuration differs from that of the current model in what determines a training, or the file of labelled pairs
    does. no_model: there is no model yet. awaited: shards of the benchmarks that have no features yet; without them a
    training would fail.
    """

    shards: tuple[str, ...]
    num_videos: int
    settings_changed: bool
    no_model: bool
    awaited: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether a training would give the current model again."""
        return not (self.shards or self.settings_changed or self.no_model)


def pending_data(project: Project) -> PendingData:
    """The training data of the project that the current model has not seen.

    Raises DataError where training needs a file of labelled pairs that is not there.
    """
    keys = training_shard_keys(read_manifest(project.root))
    new = [key for key in keys if _has_features(project, key) and has_training_data(project, key)]
    no_model, changed = not project.root.exists(CURRENT_NAME), False
    if not no_model:
        try:
            run = current_run(project)
            record = read_record(run.folder)
            changed = training_digest(load_config(run.folder / CONFIG_NAME)) != training_digest(project.config)
            if project.config.train.source == "labelled_pairs":
                changed |= record["labelled_pairs"].get(LABELLED_SHA256) != labelled_file_sha256(project)
            new = [key for key in new if key not in record["shards"]]
        except (DamagedError, ConfigError) as error:
            warnings.warn(f"{error}. It counts as no model", stacklevel=2)
            no_model, changed = True, False
    num_videos = sum(int((project.shard(FEATURES_STAGE, key).index()["status"] == STATUS_OK).sum()) for key in new)
    evaluation = project.config.evaluation
    names = {*evaluation.benchmarks, *([evaluation.validation] if evaluation.validation else [])}
    read = sorted({key for name in names for key in benchmark_shards(project, name)})
    awaited = tuple(key for key in read if not _has_features(project, key))
    return PendingData(tuple(new), num_videos, changed, no_model, awaited)


def training_digest(config: Config) -> str:
    """The digest of all settings that determine a trained model."""
    return digest(config.backbone, config.teacher, config.whitening, config.views, config.pseudo_labels, config.train)


def _has_features(project: Project, key: str) -> bool:
    return project.shard(FEATURES_STAGE, key).provenance() is not None
