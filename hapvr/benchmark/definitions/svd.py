"""SVD (Jiang et al., ICCV 2019): near-duplicate retrieval of short videos."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import polars as pl

from hapvr.benchmark.definition import LABEL_SCHEMA, BenchmarkDefinition, Task
from hapvr.benchmark.definitions.files import read_lines, split_line
from hapvr.errors import DataError

POSITIVE, NEGATIVE = "positive", "negative"


def svd_tasks(labels: Collection[str], exclusions: Collection[str] = ()) -> tuple[Task, ...]:
    """mAP (tied scores grouped) and uAP (steps), over a query's labelled candidates and all unlabelled videos."""
    positives = frozenset({POSITIVE})
    return (
        Task(
            name="mAP",
            metric="mAP",
            positives=positives,
            average_precision="tie_grouped",
            pool="labelled_and_unlabelled",
            official_empty_query="zero",
        ),
        Task(
            name="uAP",
            metric="micro-AP",
            positives=positives,
            pool="labelled_and_unlabelled",
            official_empty_query="zero",
        ),
    )


def read_svd(folder: Path, *, name: str = "svd") -> BenchmarkDefinition:
    """SVD from test_groundtruth (lines "query candidate 0|1") and, if there, unlabeled-data-id (an id per line).

    Without the second file it is the labelled part only, on which published numbers cannot be reproduced.
    """
    file = folder / "test_groundtruth"
    names = {"1": POSITIVE, "0": NEGATIVE}
    rows = []
    for line in read_lines(file):
        query, candidate, label = split_line(line, path=file, columns=3)[:3]
        if label not in names:
            raise DataError(f"{file}: line {line!r} has label {label!r}, wanted 0 or 1")
        rows.append((query, candidate, names[label]))
    unlabelled_file = folder / "unlabeled-data-id"
    unlabelled = read_lines(unlabelled_file) if unlabelled_file.is_file() else []
    candidates = dict.fromkeys(candidate for _, candidate, _ in rows)
    return BenchmarkDefinition(
        name=name,
        kind="svd",
        queries=tuple(dict.fromkeys(query for query, _, _ in rows)),
        database=(*candidates, *(video for video in unlabelled if video not in candidates)),
        labels=pl.DataFrame(rows, schema=LABEL_SCHEMA, orient="row"),
        tasks=svd_tasks(names.values()),
    )
