"""FIVR-200K and FIVR-5K (Kordopatis-Zilos et al., TMM 2019): fine-grained incident video retrieval."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import polars as pl
from pydantic import BaseModel

from hapvr.benchmark.definition import EXCLUSION_SCHEMA, LABEL_SCHEMA, BenchmarkDefinition, Metric, Task
from hapvr.benchmark.definitions.files import read_json, read_lines
from hapvr.errors import DataError

RELEVANT_LABELS = {"DSV": ("ND", "DS"), "CSV": ("ND", "DS", "CS"), "ISV": ("ND", "DS", "CS", "IS")}
HARD = "easy_duplicates"
METRICS: tuple[tuple[str, Metric], ...] = (("R", "mAP"), ("D", "micro-AP"))


def fivr_tasks(labels: Collection[str], exclusions: Collection[str] = ()) -> tuple[Task, ...]:
    """Retrieval (mAP: DSVR, CSVR, ISVR) and detection (micro-AP: DSVD, CSVD, ISVD) tasks for which there are labels.

    labels: the labels that occur. A task is left out where the labels it adds to the one before do not occur.
    exclusions: with HARD among them every task has a version `_h` without the easy duplicates.
    """
    levels = []
    known: frozenset[str] = frozenset()
    for stem, positives in RELEVANT_LABELS.items():
        if (set(positives) - known) & set(labels):
            levels.append((stem, frozenset(positives)))
        known |= set(positives)
    return tuple(
        Task(name=f"{stem}{letter}{suffix}", metric=metric, positives=positives, exclusion=exclusion)
        for suffix, exclusion in (("", None), ("_h", HARD))
        if exclusion is None or exclusion in exclusions
        for letter, metric in METRICS
        for stem, positives in levels
    )


class _Subset(BaseModel):
    queries: list[str]
    database: list[str]


def read_fivr(folder: Path, *, name: str) -> BenchmarkDefinition:
    """FIVR from the files of its authors.

    folder: annotation.json ({query: {label: [ids]}}) and, for "fivr-200k", youtube_ids.txt (an id per line), for
    "fivr-5k", fivr_5k.json ({"queries", "database"}); easy_duplicates.txt (an id per line) adds the hard versions.
    """
    annotation = read_json(folder / "annotation.json", dict[str, dict[str, list[str]]])
    if name == "fivr-5k":
        subset = read_json(folder / "fivr_5k.json", _Subset)
        queries, database = subset.queries, subset.database
    else:
        queries, database = sorted(annotation), read_lines(folder / "youtube_ids.txt")
    missing = [query for query in queries if query not in annotation]
    if missing:
        raise DataError(f"{folder / 'annotation.json'}: no labels for {len(missing)} queries, e.g. {missing[0]!r}")
    kept, easy_file = set(database), folder / "easy_duplicates.txt"
    rows = [
        (query, reference, label)
        for query in queries
        for label, references in annotation[query].items()
        for reference in references
        if reference in kept
    ]
    easy = [video for video in read_lines(easy_file) if video in kept] if easy_file.is_file() else []
    return BenchmarkDefinition(
        name=name,
        kind="fivr",
        queries=tuple(queries),
        database=tuple(database),
        labels=pl.DataFrame(rows, schema=LABEL_SCHEMA, orient="row"),
        exclusions=pl.DataFrame([(HARD, None, video) for video in easy], schema=EXCLUSION_SCHEMA, orient="row"),
        tasks=fivr_tasks({label for _, _, label in rows}, [HARD] if easy else []),
    )
