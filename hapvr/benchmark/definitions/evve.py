"""EVVE (Revaud et al., CVPR 2013): retrieval of videos of 13 events."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import polars as pl

from hapvr.benchmark.definition import EXCLUSION_SCHEMA, LABEL_SCHEMA, BenchmarkDefinition, Task
from hapvr.benchmark.definitions.files import read_json, read_lines, split_line
from hapvr.errors import DataError

AMBIGUOUS = "ambiguous"
POSITIVE = frozenset({"positive"})


def evve_tasks(labels: Collection[str], exclusions: Collection[str] = ()) -> tuple[Task, ...]:
    """EVVE_mAP (trapezoids, mean over queries) and EVVE_uAP (steps)."""
    exclusion = AMBIGUOUS if AMBIGUOUS in exclusions else None
    return (
        Task(
            name="EVVE_mAP",
            metric="mAP",
            positives=POSITIVE,
            average_precision="trapezoid",
            exclusion=exclusion,
            official_empty_query="zero",
        ),
        Task(
            name="EVVE_uAP",
            metric="micro-AP",
            positives=POSITIVE,
            exclusion=exclusion,
            official_empty_query="zero",
        ),
    )


def read_evve(folder: Path, *, name: str = "evve") -> BenchmarkDefinition:
    """EVVE from annots/<event>.dat (lines "id 1|0|-1 query|database", as published) or else from evve.json.

    A video labelled 0 is ambiguous: it leaves the rankings of its event.
    """
    events: dict[str, tuple[list[str], list[str], list[str]]] = {}
    database: dict[str, None] = {}
    files = sorted((folder / "annots").glob("*.dat"))
    if files:
        for file in files:
            events[file.stem] = ([], [], [])
            for line in read_lines(file):
                video, label, split = split_line(line, path=file, columns=3)[:3]
                if split == "query":
                    events[file.stem][0].append(video)
                    continue
                database[video] = None
                if label in ("1", "0"):
                    events[file.stem][1 if label == "1" else 2].append(video)
                elif label != "-1":
                    raise DataError(f"{file}: line {line!r} has label {label!r}, wanted 1, 0 or -1")
    else:
        content = read_json(folder / "evve.json")
        database = dict.fromkeys(content["database"])
        events = {
            event: (entry["queries"], entry["positives"], entry["nulls"]) for event, entry in content["events"].items()
        }
    labels = [
        (query, video, "positive") for queries, found, _ in events.values() for query in queries for video in found
    ]
    ambiguous = [
        (AMBIGUOUS, query, video) for queries, _, nulls in events.values() for query in queries for video in nulls
    ]
    return BenchmarkDefinition(
        name=name,
        kind="evve",
        queries=tuple(query for queries, _, _ in events.values() for query in queries),
        database=tuple(database),
        labels=pl.DataFrame(labels, schema=LABEL_SCHEMA, orient="row"),
        exclusions=pl.DataFrame(ambiguous, schema=EXCLUSION_SCHEMA, orient="row"),
        tasks=evve_tasks(["positive"], [AMBIGUOUS] if ambiguous else []),
    )
