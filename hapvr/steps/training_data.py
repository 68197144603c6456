"""What a training reads: shards, labelled pairs and groups of copies, with their digests."""

from collections.abc import Sequence
from pathlib import Path

from hapvr.data import frames
from hapvr.data.manifest import name_digest, training_shard_keys
from hapvr.data.stamped import read_rows
from hapvr.errors import DataError
from hapvr.networks.whitening import load_whitening
from hapvr.search.duplicates import GROUP_SCHEMA, GROUPS_PLACE
from hapvr.steps.project import Project
from hapvr.train.sources import SOURCES
from hapvr.train.sources.source import LabelInputs, StoredLabels


def stages_read(project: Project) -> tuple[str, ...]:
    """The stages whose shards `train.source` reads."""
    config = project.config
    return SOURCES[config.train.source].reads(config)


def training_shards(project: Project) -> list[str]:
    """Shards of the training split that have what `train.source` reads, sorted. Raises DataError if
    there are none."""
    keys = training_shard_keys(project.root)
    stages = stages_read(project)
    ready = [key for key in keys if has_stages(project, key, *stages)]
    if not ready:
        raise DataError(
            f"training: none of the {len(keys)} training shards has {' and '.join(stages)}; "
            "materialise them first, from a source whose split is train"
        )

    return ready


def has_stages(project: Project, key: str, *stages: str) -> bool:
    """Whether a shard is finished in all of these stages."""
    return all(project.shard(stage, key).provenance() is not None for stage in stages)


def read_labels(
    project: Project, shards: Sequence[str], *, begun: Path | None = None
) -> StoredLabels | None:
    """The labels that `train.source` reads, see `BatchSource.labels`; None where it reads none.
    begun: the folder of a training that goes on. Raises DataError for labels that do not fit the
    videos."""
    config = project.config
    inputs = LabelInputs(project.root, tuple(shards), config, project.path, begun)
    return SOURCES[config.train.source].labels(inputs)


def labels_digest(labels: StoredLabels | None) -> dict[str, str]:
    """The digests of labelled pairs, a part of `data_digests`."""
    return {} if labels is None else {"labelled_pairs": labels.digest}


def copies_of(project: Project) -> dict[str, str]:
    """`name_digest` of a video -> its group of copies, for `train.look_alikes`. A training keeps
    the groups with which it began."""
    table = read_rows(project.root, GROUPS_PLACE, GROUP_SCHEMA, damaged=True)
    groups = table.select(["video_id", "group"])
    if not project.config.train.look_alikes:
        return {}
    return {name_digest(row["video_id"]): row["group"] for row in groups.to_pylist()}


def data_digests(project: Project, shards: list[str]) -> dict[str, str]:
    """Digests of everything that a training reads: whitening, and for each shard views and
    embeddings, or frames."""
    digests = {"whitening": load_whitening(project.root).sha256}
    for stage in stages_read(project):
        for key in shards:
            shard = project.shard(stage, key)
            is_of_frames = stage == frames.STAGE
            digest = frames.frames_digest(shard) if is_of_frames else shard.read().data_sha256
            digests[f"{stage}/{key}"] = digest

    return digests
