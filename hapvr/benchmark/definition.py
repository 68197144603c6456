"""What a benchmark is: queries, a database, labelled pairs, and the tasks that are measured on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import mode
from typing import Literal

import polars as pl

from hapvr.errors import DataError

Metric = Literal["mAP", "micro-AP"]
ApKind = Literal["step", "trapezoid", "tie_grouped"]
Pool = Literal["database", "labelled", "labelled_and_unlabelled"]

LABEL_SCHEMA = {"query_id": pl.String, "reference_id": pl.String, "label": pl.String}
TIME_COLUMNS = ("query_start_s", "query_end_s", "reference_start_s", "reference_end_s")
SEGMENT_SCHEMA: dict[str, type[pl.DataType]] = {
    "query_id": pl.String,
    "reference_id": pl.String,
    **dict.fromkeys(TIME_COLUMNS, pl.Float64),
}
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
    ignored: labels of true matches that the task does not ask for; pairs that carry one leave the ranking.
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
    ignored: frozenset[str] = frozenset()
    query_stays: bool = False
    official_missing_positive: Literal["leaves", "misses"] = "leaves"
    official_empty_query: Literal["skipped", "zero"] = "skipped"


CLIPS, PARTS_TASK = "clips", "parts"
POSITIVE, PART = "positive", "part"
_FIVR_LABELS = {"DSV": ("ND", "DS"), "CSV": ("ND", "DS", "CS"), "ISV": ("ND", "DS", "CS", "IS")}
_FIVR_METRICS: tuple[tuple[str, Metric], ...] = (("R", "mAP"), ("D", "micro-AP"))
_evve = partial(Task, positives=frozenset({POSITIVE}), exclusion="ambiguous", official_empty_query="zero")
_svd = partial(Task, positives=frozenset({POSITIVE}), pool="labelled_and_unlabelled", official_empty_query="zero")
_cc = partial(Task, metric="mAP", positives=frozenset("ESLMV"), query_stays=True, official_missing_positive="misses")

TASKS: dict[str, tuple[Task, ...]] = {
    "fivr": tuple(
        Task(name=f"{stem}{letter}{suffix}", metric=metric, positives=frozenset(positives), exclusion=exclusion)
        for suffix, exclusion in (("", None), ("_h", "easy_duplicates"))
        for letter, metric in _FIVR_METRICS
        for stem, positives in _FIVR_LABELS.items()
    ),
    "evve": (
        _evve(name="EVVE_mAP", metric="mAP", average_precision="trapezoid"),
        _evve(name="EVVE_uAP", metric="micro-AP"),
    ),
    "svd": (_svd(name="mAP", metric="mAP", average_precision="tie_grouped"), _svd(name="uAP", metric="micro-AP")),
    "cc_web_video": (
        _cc(name="mAP", pool="labelled"),
        _cc(name="mAP_star"),
        _cc(name="mAP_c", pool="labelled", exclusion="cleaned"),
        _cc(name="mAP_c_star", exclusion="cleaned"),
    ),
}
TASKS[CLIPS] = (
    *(replace(task, ignored=frozenset({PART})) for task in TASKS["fivr"]),
    Task(name=PARTS_TASK, metric="micro-AP", positives=frozenset({PART}), ignored=frozenset(_FIVR_LABELS["ISV"])),
)
"""All tasks of each kind of benchmark."""


def tasks_of(kind: str, labels: Iterable[str], exclusions: Iterable[str] = ()) -> tuple[Task, ...]:
    """The tasks of a kind of benchmark for the labels and exclusion lists that it has.

    A task without a list of its exclusion ranks everything. One without relevant labels, or with the same relevant labels,
    pool and metric as one before it, is left out.
    """
    labels, exclusions = frozenset(labels), set(exclusions)
    made, seen = [], set()
    for task in TASKS[kind]:
        task = replace(task, exclusion=task.exclusion if task.exclusion in exclusions else None)
        measured = replace(task, name="", positives=task.positives & labels)
        if measured.positives and measured not in seen:
            made.append(task)
        seen.add(measured)
    return tuple(made)


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
    exclusions: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=EXCLUSION_SCHEMA))
    segments: pl.DataFrame | None = None
    videos: pl.DataFrame | None = None
    folder: Path | None = None
    provenance: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise DataError(f"benchmark {self.name}: {problem}")

    def _problems(self) -> Iterator[str]:
        if not self.queries or not self.database:
            yield f"{len(self.queries)} queries and {len(self.database)} database videos; it needs at least one of each"
        for role, column, ids in (("queries", "query_id", self.queries), ("database", "reference_id", self.database)):
            known = set(ids)
            if len(known) < len(ids):
                yield f"some ids of its {role} are repeated, e.g. {mode(ids)!r}; list every video once"
            for what, table in (("labels", self.labels), ("segments", self.segments)):
                unknown = set() if table is None else set(table[column].unique()) - known
                if unknown:
                    yield (
                        f"{len(unknown)} ids in {what}.{column} are not in its {role}, e.g. {min(unknown)!r}; add the "
                        f"videos or drop their {what}"
                    )
        if self.labels.is_duplicated().any():
            yield "some labels are given twice; keep each (pair, label) once"
        if self.segments is not None:
            possible = [pl.col(name).is_finite() & (pl.col(name) >= 0) for name in TIME_COLUMNS]
            ordered = [pl.col(end) > pl.col(start) for start, end in (TIME_COLUMNS[:2], TIME_COLUMNS[2:])]
            wrong = self.segments.filter(~pl.all_horizontal(*possible, *ordered))
            if len(wrong):
                yield f"{len(wrong)} segments are no stretch of time, e.g. {wrong.row(0)}; give begins before ends, in seconds"
        if not self.tasks:
            yield "no label gives any task a positive pair; check the labels"

    @cached_property
    def video_ids(self) -> tuple[str, ...]:
        """Queries, then the database videos that are not queries."""
        return tuple(dict.fromkeys(self.queries + self.database))
