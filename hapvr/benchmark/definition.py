"""What a benchmark is: queries, a database, labelled pairs, and the tasks that are measured on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import polars as pl

from hapvr.benchmark.segments import boxes_by_pair
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
    Raises DataError where ids repeat, a label or segment names an unknown video, or a segment does not end after it begins.
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
        if self.segments is not None:
            boxes_by_pair(self.segments, what=f"segments of benchmark {self.name}")
        for problem in self._problems():
            raise DataError(f"benchmark {self.name}: {problem}")

    def _problems(self) -> Iterator[str]:
        known = {"query_id": frozenset(self.queries), "reference_id": frozenset(self.database)}
        roles = {"query_id": ("query", self.queries), "reference_id": ("database", self.database)}
        if not self.queries or not self.database:
            yield f"{len(self.queries)} queries and {len(self.database)} database videos; it needs at least one of each"
        for column, (role, ids) in roles.items():
            if len(known[column]) < len(ids):
                example = next(video for video, count in Counter(ids).items() if count > 1)
                yield f"some {role} ids are repeated, e.g. {example!r}; list every video once"
            for table, what in ((self.labels, "labels"), (self.segments, "segments")):
                unknown = set() if table is None else set(table[column].unique().to_list()) - known[column]
                if unknown:
                    yield (
                        f"{len(unknown)} ids in {what}.{column} are not in its {'queries' if role == 'query' else role}, "
                        f"e.g. {min(unknown)!r}; add the videos or drop their {what}"
                    )
        if self.labels.is_duplicated().any():
            yield "some labels are given twice; keep each (pair, label) once"
        if not self.tasks:
            yield "no label gives any task a positive pair; check the labels"

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
