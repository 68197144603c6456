"""Finding a benchmark by name or folder; definitions as folders: benchmark.json, videos.parquet, labels.parquet and others.

benchmark.json names the kind, from which the tasks follow. videos.parquet holds video_id and role (query, database,
both); labels and exclusions are the tables of `BenchmarkDefinition`.

`clips` benchmarks, made by the demo or from a user's own videos, have their files under videos/, and segments. Their
videos.parquet also holds path (relative to the folder), group and edit; a video's id is "<benchmark name>/<path relative
to videos/>". Tasks are FIVR's, for the labels ND, DS, CS, IS that occur.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import polars as pl
from pydantic import BaseModel, Field

from hapvr.benchmark.definition import (
    CLIPS,
    EXCLUSION_SCHEMA,
    LABEL_SCHEMA,
    SEGMENT_SCHEMA,
    TASKS,
    VIDEO_SCHEMA,
    BenchmarkDefinition,
    tasks_of,
)
from hapvr.errors import DamagedError, DataError
from hapvr.files import read_json_as, write_atomic
from hapvr.tables import TABLE_ERRORS, read_frame, write_frame

FORMAT_VERSION = 1
HINT = "write the benchmark again, or install the package again"
ROLES = {"video_id": pl.String, "role": pl.String}


class _Head(BaseModel):
    """benchmark.json. name: also of folders, so it leads nowhere else; that of the folder where it is absent."""

    kind: Annotated[str, Field(pattern=f"^({'|'.join(TASKS)})$")]
    format_version: Annotated[int, Field(ge=FORMAT_VERSION, le=FORMAT_VERSION)]
    name: Annotated[str, Field(pattern=r"^[^./\\\x00][^/\\\x00]{0,199}$")] = ""
    provenance: dict[str, Any] = {}


def write_clips(
    folder: Path,
    *,
    name: str,
    videos: Iterable[tuple[str, str, str, str]],
    labels: Iterable[tuple[str, str, str]],
    segments: Iterable[tuple[str, str, float, float, float, float]],
    provenance: dict[str, object],
) -> BenchmarkDefinition:
    """Writes a `clips` definition next to the files that are already under folder/videos, and returns it.

    videos: (file, role, group, edit), a file being the path below videos/. labels: (file of the query, file of the other
    video, label). segments: the two files, begin and end in the query, begin and end in the other, in seconds. Raises
    DataError for repeated files, and labels or segments of other files.
    """
    rows = [(f"{name}/{file}", f"videos/{file}", *rest) for file, *rest in videos]
    pairs, stretches = (
        [(f"{name}/{query}", f"{name}/{other}", *rest) for query, other, *rest in table] for table in (labels, segments)
    )
    tables = {
        "videos": pl.DataFrame(rows, schema=VIDEO_SCHEMA, orient="row"),
        "labels": pl.DataFrame(pairs, schema=LABEL_SCHEMA, orient="row"),
        "segments": pl.DataFrame(stretches, schema=SEGMENT_SCHEMA, orient="row"),
    }
    definition = _definition(folder, CLIPS, name, tables, provenance)
    for table_name, table in tables.items():
        with write_atomic(folder / f"{table_name}.parquet") as part:
            write_frame(table, part)
    head = {"name": name, "kind": CLIPS, "provenance": provenance, "format_version": FORMAT_VERSION}
    with write_atomic(folder / "benchmark.json") as part:
        part.write_text(json.dumps(head, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return definition


def is_complete(folder: Path) -> bool:
    """Whether the benchmark is there. One with a damaged file counts as missing, with a warning."""
    if not (folder / "benchmark.json").is_file():
        return False
    try:
        read_definition(folder)
    except DataError as error:
        warnings.warn(f"{error}. It is made again", stacklevel=2)
        return False
    return True


def read_definition(folder: Path) -> BenchmarkDefinition:
    """The definition in `folder`. Raises DataError."""
    head = read_json_as(folder / "benchmark.json", _Head, hint=HINT)
    clips = head.kind == CLIPS
    tables = {
        "videos": _read(folder, "videos", VIDEO_SCHEMA if clips else ROLES, may_lack=("group", "edit")),
        "labels": _read(folder, "labels", LABEL_SCHEMA),
    }
    if (folder / "exclusions.parquet").is_file():
        tables["exclusions"] = _read(folder, "exclusions", EXCLUSION_SCHEMA, may_lack=("query_id",))
    if clips:
        tables["segments"] = _read(folder, "segments", SEGMENT_SCHEMA)
    return _definition(folder, head.kind, head.name or folder.name, tables, head.provenance)


def _definition(
    folder: Path, kind: str, name: str, tables: Mapping[str, pl.DataFrame], provenance: dict[str, object]
) -> BenchmarkDefinition:
    videos = tables["videos"]
    if kind == CLIPS:
        inside = pl.col("path").str.strip_prefix("videos/")
        fits = (inside != pl.col("path")) & (pl.lit(f"{name}/") + inside == pl.col("video_id"))
        fits &= pl.col("role").is_in(["query", "database"]) & ~pl.col("path").str.split("/").list.contains("..")
        for row in videos.remove(fits).head(1).iter_rows(named=True):
            raise DataError(
                f"{folder / 'videos.parquet'}: id {row['video_id']!r}, path {row['path']!r} and role {row['role']!r} do not "
                f"agree; wanted a path videos/X, the id {name}/X, where {name} is the name in benchmark.json, and the role "
                "query or database"
            )
    exclusions = tables.get("exclusions", pl.DataFrame(schema=EXCLUSION_SCHEMA))
    return BenchmarkDefinition(
        name=name,
        kind=kind,
        queries=tuple(videos.filter(pl.col("role").is_in(["query", "both"]))["video_id"]),
        database=tuple(videos.filter(pl.col("role").is_in(["database", "both"]))["video_id"]),
        labels=tables["labels"],
        exclusions=exclusions,
        segments=tables.get("segments"),
        tasks=tasks_of(kind, tables["labels"]["label"].unique(), exclusions["exclusion"].unique()),
        videos=videos if kind == CLIPS else None,
        folder=folder,
        provenance=provenance,
    )


def _read(
    folder: Path, name: str, schema: Mapping[str, type[pl.DataType]], may_lack: Sequence[str] = ()
) -> pl.DataFrame:
    """The columns of a table that this package wrote. may_lack: columns that have no value in some rows."""
    path = folder / f"{name}.parquet"
    try:
        table = read_frame(path).with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
        table = table.select(*schema).match_to_schema(schema)
        lacking = [column for column in schema if table[column].null_count() and column not in may_lack]
        problem = f"its column {lacking[0]} has rows without a value" if lacking else ""
    except (*TABLE_ERRORS, pl.exceptions.PolarsError) as error:
        problem = str(error)
    if problem:
        raise DamagedError(f"{path}: {problem}; {HINT}")
    return table


SHIPPED = {
    "fivr-5k": "FIVR-5K: 50 queries, 5,000 videos; DSVR, CSVR, ISVR, DSVD, CSVD, ISVD, normal and hard",
    "fivr-200k": "FIVR-200K: 100 queries, 225,960 videos; the same tasks",
    "evve": "EVVE: 620 queries, 2,373 videos of 13 events",
    "svd": "SVD: 206 queries, 6,355 labelled pairs, without the unlabelled videos",
    "cc_web_video": "CC_WEB_VIDEO: 24 query sets, 13,129 videos; four variants of mAP",
}


def load_definition(name_or_folder: str | Path) -> BenchmarkDefinition:
    """A benchmark by its name, or the one in a folder with a benchmark.json. Raises DataError where there is none."""
    name = str(name_or_folder)
    folder = Path(__file__).parents[1] / "data" / name if name in SHIPPED else Path(name)
    if not (folder / "benchmark.json").is_file():
        raise DataError(
            f"benchmark {name!r}: neither a known name ({', '.join(SHIPPED)}) nor a folder with a benchmark.json"
        )
    return read_definition(folder)
