"""What a benchmark is: queries, a database, labelled pairs, and the tasks that are measured on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import polars as pl

from hapvr.benchmark.segments import SEGMENT_SCHEMA, boxes_by_pair
from hapvr.errors import ArgumentError, DataError

Metric = Literal["mAP", "micro-AP"]
ApKind = Literal["step", "trapezoid", "tie_grouped"]
Pool = Literal["database", "labelled", "labelled_and_unlabelled"]

LABEL_SCHEMA = {"query_id": pl.String, "reference_id": pl.String, "label": pl.String}
EXCLUSION_SCHEMA = {"exclusion": pl.String, "query_id": pl.String, "reference_id": pl.String}
VIDEO_SCHEMA = {
    "video_id": pl.String,
    "path": pl.String,
    "role": pl.String,
    "group": pl.String,
    "edit": pl.String,
}


@dataclass(frozen=True, kw_only=True)
class Task:
    """One number of a benchmark: which labels are relevant, in which pool, by which average precision.

    pool: "database" ranks every database video; "labelled" only the videos that carry a label of this query;
      "labelled_and_unlabelled" those and the videos that carry no label of any query (SVD).
    exclusion: name of the exclusion list whose videos leave ranking and ground truth; None for none.
    query_stays: a query found in its own ranking stays there and may count as a hit (CC_WEB_VIDEO).
    official_missing_positive: "leaves" the ground truth or "misses" (costs recall) under the official policy.
    official_empty_query: a query left without positives is "skipped" or scores "zero" under the official policy.
      A query without any score is skipped there.
    """

    name: str
    metric: Metric
    positives: frozenset[str]
    average_precision: ApKind = "step"
    pool: Pool = "database"
    exclusion: str | None = None
    query_stays: bool = False
    official_missing_positive: Literal["leaves", "misses"] = "leaves"
    official_empty_query: Literal["skipped", "zero"] = "skipped"


def _empty_exclusions() -> pl.DataFrame:
    return pl.DataFrame(schema=EXCLUSION_SCHEMA)


@dataclass(frozen=True, kw_only=True, eq=False)
class BenchmarkDefinition:
    """Queries, database and labelled pairs of one benchmark. The constructor checks them.

    labels: columns query_id, reference_id, label; a pair may carry several labels, a pair without one is a negative.
    exclusions: columns exclusion (name of the list), query_id (null: for every query), reference_id.
    videos: for a benchmark with files, columns video_id, path (relative to `folder`), role, group, edit; else None.
    segments: SEGMENT_SCHEMA, every stretch of a query that a database video shows, and when it does; None: not known.
    Raises DataError where ids repeat, a column is missing, a label or segment names an unknown video, or a segment does
    not end after it begins.
    """

    name: str
    kind: str
    queries: tuple[str, ...]
    database: tuple[str, ...]
    labels: pl.DataFrame
    tasks: tuple[Task, ...]
    exclusions: pl.DataFrame = field(default_factory=_empty_exclusions)
    segments: pl.DataFrame | None = None
    videos: pl.DataFrame | None = None
    folder: Path | None = None
    provenance: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.queries or not self.database:
            raise DataError(
                f"benchmark {self.name}: {len(self.queries)} queries and {len(self.database)} database videos; "
                "it needs at least one of each"
            )
        for role, ids in (("query", self.queries), ("database", self.database)):
            refuse_repeated_ids(ids, what=f"benchmark {self.name}: {role} ids")
        require_columns(self.labels, LABEL_SCHEMA, what=f"labels of benchmark {self.name}")
        require_columns(
            self.exclusions, EXCLUSION_SCHEMA, what=f"exclusions of benchmark {self.name}", may_lack=("query_id",)
        )
        self._refuse_unknown_ids(self.labels, "labels")
        if self.segments is not None:
            require_columns(self.segments, SEGMENT_SCHEMA, what=f"segments of benchmark {self.name}")
            self._refuse_unknown_ids(self.segments, "segments")
            boxes_by_pair(self.segments, what=f"segments of benchmark {self.name}")
        if self.labels.is_duplicated().any():
            raise DataError(f"benchmark {self.name}: some labels are given twice; keep each (pair, label) once")
        if not self.tasks:
            raise DataError(f"benchmark {self.name}: no label gives any task a positive pair; check the labels")

    def _refuse_unknown_ids(self, table: pl.DataFrame, what: str) -> None:
        for column, known in (("query_id", self.queries), ("reference_id", self.database)):
            unknown = set(table[column].unique().to_list()) - set(known)
            if unknown:
                raise DataError(
                    f"benchmark {self.name}: {len(unknown)} ids in {what}.{column} are not in its "
                    f"{'queries' if column == 'query_id' else 'database'}, e.g. {min(unknown)!r}; "
                    f"add the videos or drop their {what}"
                )

    @cached_property
    def video_ids(self) -> tuple[str, ...]:
        """Queries, then the database videos that are not queries."""
        queries = set(self.queries)
        return self.queries + tuple(video for video in self.database if video not in queries)

    def task(self, name: str) -> Task:
        """The task called `name`. Raises ArgumentError that lists the tasks."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise ArgumentError(f"benchmark {self.name} has no task {name!r}; it has {[task.name for task in self.tasks]}")

    def video_files(self) -> dict[str, Path]:
        """The file of every video id; empty for benchmarks that name ids only."""
        if self.videos is None or self.folder is None:
            return {}
        return {row["video_id"]: self.folder / row["path"] for row in self.videos.iter_rows(named=True)}


def refuse_repeated_ids(ids: Sequence[str], *, what: str) -> None:
    """Raise DataError if an id appears twice in `ids`."""
    num_repeated = len(ids) - len(set(ids))
    if num_repeated:
        example = next(video for video, count in Counter(ids).items() if count > 1)
        raise DataError(f"{what}: {num_repeated} repeated, e.g. {example!r}; list every video once")


def require_columns(
    table: pl.DataFrame, schema: Mapping[str, type[pl.DataType]], *, what: str, may_lack: Sequence[str] = ()
) -> None:
    """Raise DataError if `table` lacks a column of `schema`, has it with another type, or has a row without a value in it.

    may_lack: columns that have no value in some rows.
    """
    for column, dtype in schema.items():
        if column not in table.columns:
            raise DataError(f"{what}: no column {column!r}; found {table.columns}, wanted {list(schema)}")
        if table.schema[column] != dtype:
            raise DataError(f"{what}: column {column!r} is {table.schema[column]}, wanted {dtype.__name__}")
        if column not in may_lack and (num_lacking := table[column].null_count()):
            raise DataError(f"{what}: {num_lacking} rows have no {column}; write the table again")
