"""The compact form of a definition: benchmark.json, videos.parquet, labels.parquet and, if any, exclusions.parquet.

benchmark.json names the kind, from which the tasks follow; videos.parquet holds video_id and role (query, database,
both); labels.parquet and exclusions.parquet are the tables of `BenchmarkDefinition`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import polars as pl

from hapvr.benchmark.definition import (
    EXCLUSION_SCHEMA,
    LABEL_SCHEMA,
    BenchmarkDefinition,
    Task,
    require_columns,
)
from hapvr.errors import DataError
from hapvr.files import write_atomic
from hapvr.tables import TABLE_ERRORS, read_frame

FORMAT_VERSION = 1
ROLES = ("query", "database", "both")
TaskMaker = Callable[[Collection[str], Collection[str]], tuple[Task, ...]]


def write_definition(definition: BenchmarkDefinition, folder: Path, *, source: str, licence: str) -> Path:
    """Writes the compact form into `folder`, benchmark.json last, and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    queries, database = set(definition.queries), set(definition.database)
    videos = pl.DataFrame(
        {
            "video_id": definition.video_ids,
            "role": [
                "both" if video in queries and video in database else "query" if video in queries else "database"
                for video in definition.video_ids
            ],
        }
    )
    tables = {"videos": videos, "labels": definition.labels, "exclusions": definition.exclusions}
    for name, table in tables.items():
        if not table.is_empty():
            # ids hardly compress; sorted, they share their first letters with their neighbours
            with write_atomic(folder / f"{name}.parquet") as part:
                table.sort(table.columns).write_parquet(
                    part, compression="zstd", compression_level=19, statistics=False
                )
    head = {
        "name": definition.name,
        "kind": definition.kind,
        "format_version": FORMAT_VERSION,
        "source": source,
        "licence": licence,
    }
    with write_atomic(folder / "benchmark.json") as part:
        part.write_text(json.dumps(head, indent=2) + "\n", encoding="utf-8")
    return folder


def read_definition(folder: Path, *, head: dict[str, Any], make_tasks: TaskMaker) -> BenchmarkDefinition:
    """The definition in `folder`. head: its parsed benchmark.json; make_tasks: (labels, exclusion lists) -> tasks."""
    videos = _read(folder / "videos.parquet")
    labels = _read(folder / "labels.parquet").with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
    file = folder / "exclusions.parquet"
    exclusions = _read(file) if file.is_file() else pl.DataFrame(schema=EXCLUSION_SCHEMA)
    require_columns(videos, {"video_id": pl.String, "role": pl.String}, what=str(folder / "videos.parquet"))
    require_columns(labels, LABEL_SCHEMA, what=str(folder / "labels.parquet"))
    require_columns(exclusions, EXCLUSION_SCHEMA, what=str(file), may_lack=("query_id",))
    return BenchmarkDefinition(
        name=head.get("name", folder.name),
        kind=head["kind"],
        queries=tuple(videos.filter(pl.col("role").is_in(["query", "both"]))["video_id"]),
        database=tuple(videos.filter(pl.col("role").is_in(["database", "both"]))["video_id"]),
        labels=labels,
        exclusions=exclusions,
        tasks=make_tasks(set(labels["label"].unique()), set(exclusions["exclusion"].unique())),
        provenance={"source": head.get("source", ""), "licence": head.get("licence", "")},
    )


def _read(path: Path) -> pl.DataFrame:
    try:
        return read_frame(path)
    except TABLE_ERRORS as error:
        raise DataError(f"{path}: {error}; install the package again or write the definition again") from error
