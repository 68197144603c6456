"""A benchmark of one's own: pairs of videos that people marked as a match, or as none."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import polars as pl

from hapvr.benchmark.definition import LABEL_SCHEMA, BenchmarkDefinition, Task

MARKS = "marks"
MATCH, NO_MATCH = "match", "not_a_match"
TASK = "marks"


def marks_tasks(labels: Collection[str], exclusions: Collection[str] = ()) -> tuple[Task, ...]:
    """Micro-AP over the marked pairs alone, in one list; what nobody looked at says nothing. None without a match."""
    if MATCH not in labels:
        return ()
    return (Task(name=TASK, metric="micro-AP", positives=frozenset({MATCH}), pool="labelled"),)


def marks_definition(pairs: Sequence[tuple[str, str, str]]) -> BenchmarkDefinition:
    """pairs: query, reference and label, `match` or `not_a_match`, each pair once. Raises DataError without a match."""
    labels = pl.DataFrame(pairs, schema=LABEL_SCHEMA, orient="row")
    return BenchmarkDefinition(
        name=MARKS,
        kind=MARKS,
        queries=tuple(labels["query_id"].unique().sort()),
        database=tuple(labels["reference_id"].unique().sort()),
        labels=labels,
        tasks=marks_tasks(set(labels["label"])),
    )
