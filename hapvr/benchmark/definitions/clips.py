"""`clips` benchmarks: a folder of video files with FIVR-like labels, made by the demo or from a user's own videos.

The folder holds benchmark.json, videos.parquet (video_id, path relative to the folder, role query|database, group,
edit), labels.parquet (query_id, reference_id, label), segments.parquet (the true times of each copy) and the files under
videos/. A video's id is "<benchmark name>/<path relative to videos/>". Tasks are FIVR's, for the labels ND, DS, CS, IS
that occur.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import polars as pl

from hapvr.benchmark.definition import LABEL_SCHEMA, VIDEO_SCHEMA, BenchmarkDefinition
from hapvr.benchmark.definitions.files import read_head, read_stored
from hapvr.benchmark.definitions.fivr import fivr_tasks
from hapvr.benchmark.definitions.stored import write_head
from hapvr.benchmark.segments import SEGMENT_SCHEMA
from hapvr.errors import DataError
from hapvr.files import write_atomic
from hapvr.tables import write_frame

CLIPS = "clips"


def write_clips(
    folder: Path,
    *,
    name: str,
    videos: pl.DataFrame,
    labels: pl.DataFrame,
    segments: pl.DataFrame,
    provenance: dict[str, object],
) -> BenchmarkDefinition:
    """Writes the definition next to the files that are already under folder/videos, and returns it.

    videos: VIDEO_SCHEMA. labels: LABEL_SCHEMA. segments: SEGMENT_SCHEMA. Raises DataError for missing files, ids that do not
    follow from the paths, unknown roles, repeated ids, and labels or segments of unknown videos. benchmark.json is written
    last.
    """
    tables = {
        "videos": videos.select(list(VIDEO_SCHEMA)),
        "labels": labels.select(list(LABEL_SCHEMA)),
        "segments": segments.select(list(SEGMENT_SCHEMA)),
    }
    definition = _definition(folder, tables, name=name, provenance=provenance)
    missing = [str(path) for path in definition.video_files().values() if not path.is_file()]
    if missing:
        raise DataError(f"benchmark {name}: {len(missing)} video files are missing, e.g. {missing[0]}")
    for file, table in tables.items():
        with write_atomic(folder / f"{file}.parquet") as part:
            write_frame(table, part)
    write_head(folder, {"name": name, "kind": CLIPS, "provenance": provenance})
    return definition


def is_complete(folder: Path) -> bool:
    """Whether the benchmark is there. One with a damaged file counts as missing, with a warning."""
    path = folder / "benchmark.json"
    if not path.is_file():
        return False
    try:
        read_clips(folder, head=read_head(path))
    except DataError as error:
        warnings.warn(f"{error}. It is made again", stacklevel=2)
        return False
    return True


def read_clips(folder: Path, *, head: dict[str, Any]) -> BenchmarkDefinition:
    """The definition in `folder`. head: its parsed benchmark.json."""
    tables = {
        "videos": read_stored(folder / "videos.parquet", VIDEO_SCHEMA, may_lack=("group", "edit")),
        "labels": read_stored(folder / "labels.parquet", LABEL_SCHEMA),
        "segments": read_stored(folder / "segments.parquet", SEGMENT_SCHEMA),
    }
    name = head.get("name", folder.name)
    return _definition(folder, tables, name=name, provenance=head.get("provenance", {}))


def _definition(
    folder: Path, tables: dict[str, pl.DataFrame], *, name: str, provenance: dict[str, object]
) -> BenchmarkDefinition:
    ids: dict[str, list[str]] = {"query": [], "database": []}
    for video_id, path, role in tables["videos"].select("video_id", "path", "role").iter_rows():
        inside = path.removeprefix("videos/")
        if video_id != f"{name}/{inside}" or inside == path or ".." in path.split("/") or role not in ids:
            raise DataError(
                f"{folder / 'videos.parquet'}: id {video_id!r}, path {path!r} and role {role!r} do not agree; wanted a path "
                f"videos/X, the id {name}/X, where {name} is the name in benchmark.json, and the role query or database"
            )
        ids[role].append(video_id)
    return BenchmarkDefinition(
        name=name,
        kind=CLIPS,
        queries=tuple(ids["query"]),
        database=tuple(ids["database"]),
        labels=tables["labels"],
        segments=tables["segments"],
        tasks=fivr_tasks(set(tables["labels"]["label"])),
        videos=tables["videos"],
        folder=folder,
        provenance=provenance,
    )
