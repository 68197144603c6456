"""The labelled pairs of a training: a file's names as training videos, without any video that evaluation uses."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath

from hapvr.benchmark.definitions.published import annotation_files
from hapvr.config import LabelledPairsConfig
from hapvr.data.features import STAGE as FEATURES_STAGE
from hapvr.data.features import FeatureFile
from hapvr.data.manifest import VIDEOS_STAGE, read_manifest
from hapvr.data.shards import STATUS_OK, Shard
from hapvr.errors import ConfigError, DataError
from hapvr.provenance import file_sha256
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
    content; and where no row or no distractor is left. Raises ConfigError for a source of distractors that has no training
    videos.
    """
    settings, path = _settings(project), _pairs_path(project)
    shard_of, unusable = _training_videos(project, shards)
    ids = _ids_by_name([*shard_of, *unusable])
    file_of = cache(lambda key: FeatureFile(Shard(project.root, FEATURES_STAGE, key)))

    @cache
    def end_of(video_id: str) -> float:
        last: float = file_of(shard_of[video_id]).times(video_id)[-1]
        return last + 1 / project.config.sampling.fps

    pairs, num_unusable = [], 0
    for place, row in read_pair_rows(path):
        one, other = (_resolve(name, ids, place) for name in row.videos)
        if one == other:
            raise DataError(f"{place}: both names are of {one}; drop the row")
        if {one, other} & unusable:
            num_unusable += 1
            continue
        for video_id, (start, end) in zip((one, other), row.copies or (), strict=False):
            if start >= end_of(video_id) or end > end_of(video_id) + ROUNDING_S:
                raise DataError(
                    f"{place}: the copied part from {start:g} s to {end:g} s is not inside {video_id}, of which "
                    f"{end_of(video_id):g} s have features; correct the times, or raise sampling.max_frames and extract again"
                )
        pairs.append(LabelledPair((one, other), row.copies))
    if not pairs:
        raise DataError(f"{path}: all {num_unusable} rows name videos without features; see the index of features")
    paired = {video_id for pair in pairs for video_id in pair.videos}
    distractors = _distractors(project, settings.distractors, set(shard_of)) - paired
    if settings.distractors and not distractors:
        raise DataError(
            f"training: every video of the distractors {', '.join(settings.distractors)} is in a pair of {path} or has no "
            "features; name other sources in train.labelled_pairs.distractors, or none"
        )
    _refuse_evaluated(project, paired | distractors)
    return LabelledPairs(tuple(pairs), tuple(sorted(distractors)), num_unusable)


def labelled_file_sha256(project: Project) -> str:
    """SHA-256 of the file `train.labelled_pairs.file`, or of the annotation in that folder. Raises DataError where it is missing."""
    path = _pairs_path(project)
    if path.is_file():
        return file_sha256(path)
    found = {file.name: file_sha256(file) for file in annotation_files(path)}
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def _settings(project: Project) -> LabelledPairsConfig:
    settings = project.config.train.labelled_pairs
    assert settings is not None, "a configuration with source: labelled_pairs has the section"
    return settings


def _pairs_path(project: Project) -> Path:
    path = project.path(Path(_settings(project).file))
    if not path.exists():
        raise DataError(
            f"{path}: no such file; set train.labelled_pairs.file to a CSV, a Parquet file, or a folder of VCDB"
        )
    return path


def _training_videos(project: Project, shards: Sequence[str]) -> tuple[dict[str, str], frozenset[str]]:
    """Training videos: id -> shard of those with features, and the ids of those without."""
    shard_of, unusable = {}, set()
    for key in shards:
        index = Shard(project.root, FEATURES_STAGE, key).index()
        for video_id, status in index.select("video_id", "status").iter_rows():
            if status == STATUS_OK:
                shard_of[video_id] = key
            else:
                unusable.add(video_id)
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


def _distractors(project: Project, sources: Sequence[str], usable: set[str]) -> set[str]:
    source_of = dict(read_manifest(project.root).select("video_id", "source").iter_rows())
    found = {video_id for video_id in usable if source_of.get(video_id) in sources}
    known = {source_of[video_id] for video_id in usable if video_id in source_of}
    if strange := sorted(set(sources) - known):
        raise ConfigError(
            f"train.labelled_pairs.distractors: source {strange[0]!r} has no training videos with features; those that "
            f"have: {', '.join(sorted(known))}"
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
        used |= {
            video_id for video_id, content in _contents(project, video_ids, shard_of).items() if content in contents
        }
        if used:
            more = f" and {len(used) - SHOWN} more" if len(used) > SHOWN else ""
            raise DataError(
                f"training: {len(used)} videos of labelled pairs or distractors are also in benchmark {name}: "
                f"{', '.join(sorted(used)[:SHOWN])}{more}; drop their rows, or do not evaluate on {name}"
            )


def _contents(project: Project, video_ids: set[str], shard_of: Mapping[str, str]) -> dict[str, str]:
    """SHA-256 of the files of those videos that were ingested."""
    found: dict[str, str] = {}
    for key in sorted({shard_of[video_id] for video_id in video_ids if video_id in shard_of}):
        index = Shard(project.root, VIDEOS_STAGE, key).finished_index()
        if index is not None:
            rows = index[1].filter(index[1]["status"] == STATUS_OK).select("video_id", "sha256").iter_rows()
            found |= {video_id: content for video_id, content in rows if video_id in video_ids}
    return found
