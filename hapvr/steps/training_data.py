"""What a training reads: shards, labelled pairs and groups of copies, with their digests."""

from collections.abc import Sequence
from pathlib import Path

from hapvr.data import features, frames
from hapvr.data.manifest import name_digest, training_shard_keys
from hapvr.data.stamped import read_rows
from hapvr.errors import DataError
from hapvr.networks.whitening import load_whitening
from hapvr.search.duplicates import GROUP_SCHEMA, GROUPS_PLACE
from hapvr.steps.project import Project
from hapvr.train.pair_labels import PairLabels, read_pair_labels, video_length_s
from hapvr.train.sources import SOURCES


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


def pair_labels(
    project: Project, folder: Path, shards: Sequence[str], *, begun: bool
) -> PairLabels | None:
    """The labelled pairs that `train.source` reads: those of the configuration, or those with which
    a training began. Raises DataError for pairs that do not fit the videos."""
    if not project.config.train.reads_pairs:
        return None
    files = [features.FeatureFile(project.shard(features.STAGE, key)) for key in shards]
    file_of = {video_id: file for file in files for video_id in file.video_ids}
    if begun:
        return PairLabels.read(folder, file_of)
    return read_pair_labels(
        project.config.train.pairs,
        resolve=project.path,
        video_ids=file_of.keys(),
        length_s=lambda video_id: video_length_s(file_of[video_id].times(video_id)),
    )


def labels_digest(labels: PairLabels | None) -> dict[str, str]:
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
