"""The compact form of a definition: benchmark.json, videos.parquet, labels.parquet and, if any, exclusions.parquet.

benchmark.json names the kind, from which the tasks follow; videos.parquet holds video_id and role (query, database,
both); labels.parquet and exclusions.parquet are the tables of `BenchmarkDefinition`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from hapvr.benchmark.definition import EXCLUSION_SCHEMA, LABEL_SCHEMA, BenchmarkDefinition, Task
from hapvr.benchmark.definitions.files import FORMAT_VERSION, read_stored
from hapvr.files import write_atomic

ROLES = {"video_id": pl.String, "role": pl.String}
TaskMaker = Callable[[Collection[str], Collection[str]], tuple[Task, ...]]


def write_definition(definition: BenchmarkDefinition, folder: Path, *, source: str, licence: str) -> Path:
    """Writes the compact form into `folder`, benchmark.json last, and returns the folder."""
    queries, database = set(definition.queries), set(definition.database)
    roles = [
        "both" if video in queries and video in database else "query" if video in queries else "database"
        for video in definition.video_ids
    ]
    videos = pl.DataFrame({"video_id": definition.video_ids, "role": roles})
    tables = {"videos": videos, "labels": definition.labels, "exclusions": definition.exclusions}
    for name, table in tables.items():
        if not table.is_empty():
            # ids hardly compress; sorted, they share their first letters with their neighbours
            with write_atomic(folder / f"{name}.parquet") as part:
                table.sort(table.columns).write_parquet(
                    part, compression="zstd", compression_level=19, statistics=False
                )
    write_head(folder, {"name": definition.name, "kind": definition.kind, "source": source, "licence": licence})
    return folder


def write_head(folder: Path, head: Mapping[str, object]) -> None:
    """Write benchmark.json, which makes the folder a benchmark."""
    with write_atomic(folder / "benchmark.json") as part:
        text = json.dumps({**head, "format_version": FORMAT_VERSION}, indent=2, ensure_ascii=False)
        part.write_text(text + "\n", encoding="utf-8")


def read_definition(folder: Path, *, head: dict[str, Any], make_tasks: TaskMaker) -> BenchmarkDefinition:
    """The definition in `folder`. head: its parsed benchmark.json; make_tasks: (labels, exclusion lists) -> tasks."""
    videos = read_stored(folder / "videos.parquet", ROLES)
    labels = read_stored(folder / "labels.parquet", LABEL_SCHEMA)
    exclusions, file = pl.DataFrame(schema=EXCLUSION_SCHEMA), folder / "exclusions.parquet"
    if file.is_file():
        exclusions = read_stored(file, EXCLUSION_SCHEMA, may_lack=("query_id",))
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
