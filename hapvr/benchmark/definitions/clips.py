"""`clips` benchmarks: a folder of video files with FIVR-like labels, made by the demo or from a user's own videos.

The folder holds benchmark.json, videos.parquet (video_id, path relative to the folder, role query|database, group,
edit), labels.parquet (query_id, reference_id, label) and the files under videos/; since format 2 also segments.parquet,
the true times of each copy. A video's id is "<benchmark name>/<path relative to videos/>". Tasks are FIVR's, for the labels
ND, DS, CS, IS that occur.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import polars as pl

from hapvr.benchmark.definition import (
    LABEL_SCHEMA,
    VIDEO_SCHEMA,
    BenchmarkDefinition,
    require_columns,
)
from hapvr.benchmark.definitions.files import read_head
from hapvr.benchmark.definitions.fivr import fivr_tasks
from hapvr.benchmark.segments import SEGMENT_SCHEMA
from hapvr.errors import DataError
from hapvr.files import write_atomic
from hapvr.tables import TABLE_ERRORS, read_frame, write_frame

FORMAT_VERSION = 2
FORMATS = (1, FORMAT_VERSION)
"""Those that are read."""
ROLES = ("query", "database")


def write_clips(
    folder: Path,
    *,
    name: str,
    videos: pl.DataFrame,
    labels: pl.DataFrame,
    segments: pl.DataFrame,
    provenance: dict[str, object],
) -> BenchmarkDefinition:
    """Writes the definition beside the files that are already under folder/videos, and returns it.

    videos: VIDEO_SCHEMA. labels: LABEL_SCHEMA. segments: SEGMENT_SCHEMA. Raises DataError for missing files, ids that do not
    follow from the paths, unknown roles, repeated ids, and labels or segments of unknown videos. benchmark.json is written
    last.
    """
    videos, labels = videos.select(list(VIDEO_SCHEMA)), labels.select(list(LABEL_SCHEMA))
    segments = segments.select(list(SEGMENT_SCHEMA))
    definition = _definition(folder, name=name, videos=videos, labels=labels, segments=segments, provenance=provenance)
    missing = [str(path) for path in definition.video_files().values() if not path.is_file()]
    if missing:
        raise DataError(f"benchmark {name}: {len(missing)} video files are missing, e.g. {missing[0]}")
    for table, file in ((videos, "videos.parquet"), (labels, "labels.parquet"), (segments, "segments.parquet")):
        with write_atomic(folder / file) as part:
            write_frame(table, part)
    head = {"name": name, "kind": "clips", "format_version": FORMAT_VERSION, "provenance": provenance}
    with write_atomic(folder / "benchmark.json") as part:
        part.write_text(json.dumps(head, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return definition


def is_complete(folder: Path) -> bool:
    """Whether the benchmark is there, with all that this version writes: one of format 1 lacks the true times.

    One with a damaged file counts as missing, with a warning.
    """
    path = folder / "benchmark.json"
    if not path.is_file():
        return False
    try:
        head = read_head(path)
        if head["format_version"] != FORMAT_VERSION:
            return False
        read_clips(folder, head=head)
    except DataError as error:
        warnings.warn(f"{error}. It is made again", stacklevel=2)
        return False
    return True


def read_clips(folder: Path, *, head: dict[str, Any]) -> BenchmarkDefinition:
    """The definition in `folder`. head: its parsed benchmark.json."""
    tables: dict[str, pl.DataFrame] = {}
    for table in ("videos", "labels", *(["segments"] if head.get("format_version") != 1 else [])):
        file = f"{table}.parquet"
        try:
            tables[table] = read_frame(folder / file)
        except TABLE_ERRORS as error:
            raise DataError(f"{folder / file}: {error}; write the benchmark again") from error
    return _definition(
        folder,
        name=head.get("name", folder.name),
        videos=tables["videos"],
        labels=tables["labels"],
        segments=tables.get("segments"),
        provenance=head.get("provenance", {}),
    )


def _definition(
    folder: Path,
    *,
    name: str,
    videos: pl.DataFrame,
    labels: pl.DataFrame,
    segments: pl.DataFrame | None,
    provenance: dict[str, object],
) -> BenchmarkDefinition:
    require_columns(videos, VIDEO_SCHEMA, what=f"videos of benchmark {name}", may_lack=("group", "edit"))
    require_columns(labels, LABEL_SCHEMA, what=f"labels of benchmark {name}")
    roles = set(videos["role"].unique().to_list())
    if not roles <= set(ROLES):
        raise DataError(f"benchmark {name}: roles {sorted(roles - set(ROLES))}; wanted {' or '.join(ROLES)}")
    for video_id, path in videos.select("video_id", "path").iter_rows():
        if (
            path.split("/")[0] != "videos"
            or ".." in path.split("/")
            or video_id != f"{name}/{path.removeprefix('videos/')}"
        ):
            raise DataError(
                f"{folder / 'videos.parquet'}: id {video_id!r} and path {path!r} do not agree; wanted a path videos/X and "
                f"the id {name}/X, where {name} is the name in benchmark.json"
            )
    return BenchmarkDefinition(
        name=name,
        kind="clips",
        queries=tuple(videos.filter(pl.col("role") == "query")["video_id"]),
        database=tuple(videos.filter(pl.col("role") == "database")["video_id"]),
        labels=labels,
        segments=segments,
        tasks=fivr_tasks(set(labels["label"].unique().to_list())),
        videos=videos,
        folder=folder,
        provenance=provenance,
    )
