"""The labelled pairs of a training: a file's names as training videos, without any video that evaluation uses."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath

import polars as pl

from hapvr.benchmark.definitions.published import annotation_files
from hapvr.data.features import STAGE as FEATURES_STAGE
from hapvr.data.features import FeatureFile
from hapvr.data.manifest import VIDEOS_STAGE, read_manifest
from hapvr.data.shards import STATUS_OK
from hapvr.errors import DataError
from hapvr.files import file_sha256
from hapvr.steps.benchmark_features import own_names, project_benchmark, stored_ids
from hapvr.steps.project import Project
from hapvr.train.labelled_pairs import LabelledPair, LabelledPairs, read_pair_rows

ROUNDING_S = 1.0
"""Annotations are in whole seconds, so a copied part may end so much after its video."""
SHOWN = 5


def find_labelled_pairs(project: Project, shards: Sequence[str]) -> LabelledPairs:
    """The pairs of `train.labelled_pairs.file` and the videos of its `distractors`, of these shards.

    A file may name a video by its id, without its source, or by the name of its file, with or without suffix. Rows with a
    training video that has no features are left out and counted. Raises DataError, with file and row, for an unknown or
    ambiguous name and for a copied part outside its video; for videos of a benchmark that evaluation uses, by id or by
    content; and where no row or no distractor is left.
    """
    path = _pairs_path(project)
    shard_of, unusable = _training_videos(project, shards)
    ids = _ids_by_name([*shard_of, *unusable])
    file_of = cache(lambda key: FeatureFile(project.shard(FEATURES_STAGE, key)))

    def end_of(video_id: str) -> float:
        return float(file_of(shard_of[video_id]).times(video_id)[-1]) + 1 / project.config.sampling.fps

    pairs, num_unusable = [], 0
    for place, row in read_pair_rows(path):
        one, other = (_resolve(name, ids, place) for name in row.videos)
        if one == other:
            raise DataError(f"{place}: both names are of {one}; drop the row")
        if {one, other} & unusable:
            num_unusable += 1
            continue
        for video_id, (start, end) in zip((one, other), row.copies or (), strict=False):
            if start >= (length := end_of(video_id)) or end > length + ROUNDING_S:
                raise DataError(
                    f"{place}: the copied part from {start:g} s to {end:g} s is not inside {video_id}, of which {length:g} s "
                    "have features; correct the times, or raise sampling.max_frames and extract again"
                )
        pairs.append(LabelledPair((one, other), row.copies))
    if not pairs:
        raise DataError(f"{path}: all {num_unusable} rows name videos without features; see the index of features")
    paired = {video_id for pair in pairs for video_id in pair.videos}
    distractors = _distractors(project, set(shard_of), paired)
    _refuse_evaluated(project, paired | distractors)
    return LabelledPairs(tuple(pairs), tuple(sorted(distractors)), num_unusable)


def labelled_file_sha256(project: Project) -> str:
    """SHA-256 of the file `train.labelled_pairs.file`, or of the annotation in that folder. Raises DataError where it is missing."""
    path = _pairs_path(project)
    if path.is_file():
        return file_sha256(path)
    found = {file.name: file_sha256(file) for file in annotation_files(path)}
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def _pairs_path(project: Project) -> Path:
    settings = project.config.train.labelled_pairs
    assert settings is not None, "a configuration with source: labelled_pairs has the section"
    path = project.path(Path(settings.file))
    if not path.exists():
        raise DataError(
            f"{path}: no such file; set train.labelled_pairs.file to a CSV, a Parquet file, or a folder of VCDB"
        )
    return path


def _training_videos(project: Project, shards: Sequence[str]) -> tuple[dict[str, str], frozenset[str]]:
    """Training videos: id -> shard of those with features, and the ids of those without."""
    shard_of: dict[str, str] = {}
    unusable: set[str] = set()
    for key in shards:
        index = project.shard(FEATURES_STAGE, key).index()
        ok = index["status"] == STATUS_OK
        shard_of |= dict.fromkeys(index.filter(ok)["video_id"], key)
        unusable |= set(index.filter(~ok)["video_id"])
    return shard_of, frozenset(unusable)


def _ids_by_name(video_ids: Iterable[str]) -> dict[str, set[str]]:
    """The ids that each name can mean. An id means itself alone."""
    found: dict[str, set[str]] = defaultdict(set)
    for video_id in video_ids:
        file = PurePosixPath(video_id)
        for name in {*own_names(video_id), file.name, file.stem}:
            found[name].add(video_id)
    return found | {video_id: {video_id} for video_id in video_ids}


def _resolve(name: str, ids: Mapping[str, set[str]], place: str) -> str:
    found = sorted(ids.get(name) or ids.get(PurePosixPath(name).stem) or set())
    if not found:
        raise DataError(
            f"{place}: {name!r} is not a training video with features; wanted an id such as {min(ids, default='')!r}, or the "
            "name of its file. Add its source with split train, or drop the row"
        )
    if len(found) > 1:
        raise DataError(f"{place}: {name!r} may be {' or '.join(found[:SHOWN])}; give the whole id")
    return found[0]


def _distractors(project: Project, usable: set[str], paired: set[str]) -> set[str]:
    """Usable videos of the sources of distractors that are in no pair."""
    settings = project.config.train.labelled_pairs
    sources = settings.distractors if settings is not None else ()
    manifest = read_manifest(project.root).filter(pl.col("source").is_in(sources))
    found = usable.intersection(manifest["video_id"]) - paired
    if sources and not found:
        raise DataError(
            f"training: the sources of distractors {', '.join(sources)} have no training video with features that is in no "
            "pair; name other sources in train.labelled_pairs.distractors, or none"
        )
    return found


def _refuse_evaluated(project: Project, video_ids: set[str]) -> None:
    """Raise DataError if one of the videos is in a benchmark of the configuration, by its id or its content."""
    manifest = read_manifest(project.root)
    shard_of = dict(manifest.select("video_id", "shard").iter_rows())
    evaluation = project.config.evaluation
    for name in sorted({*evaluation.benchmarks, *([evaluation.validation] if evaluation.validation else [])}):
        definition = project_benchmark(project, name)
        evaluated = set(stored_ids(definition, shard_of).values())
        used = set(stored_ids(definition, video_ids).values()) | (video_ids & evaluated)
        contents = set(_contents(project, evaluated, shard_of).values())
        own = _contents(project, video_ids, shard_of)
        if used := used | {video_id for video_id, content in own.items() if content in contents}:
            raise DataError(
                f"training: {len(used)} videos of labelled pairs or distractors are also in benchmark {name}: "
                f"{', '.join(sorted(used)[:SHOWN])}{' ...' if len(used) > SHOWN else ''}; drop their rows, or do not evaluate "
                f"on {name}"
            )


def _contents(project: Project, video_ids: set[str], shard_of: Mapping[str, str]) -> dict[str, str]:
    """SHA-256 of the files of those videos that were ingested."""
    found: dict[str, str] = {}
    for key in {shard_of[video_id] for video_id in video_ids if video_id in shard_of}:
        if (index := project.shard(VIDEOS_STAGE, key).finished_index()) is not None:
            rows = index[1].filter(pl.col("status") == STATUS_OK, pl.col("video_id").is_in(list(video_ids)))
            found |= dict(rows.select("video_id", "sha256").iter_rows())
    return found
