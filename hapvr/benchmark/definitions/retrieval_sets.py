"""EVVE (Revaud et al., CVPR 2013), SVD (Jiang et al., ICCV 2019) and CC_WEB_VIDEO (Wu et al., ACM MM 2007)."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path

import polars as pl
from pydantic import BaseModel

from hapvr.benchmark.definition import EXCLUSION_SCHEMA, LABEL_SCHEMA, BenchmarkDefinition, Task
from hapvr.benchmark.definitions.files import read_json, read_lines, read_rows
from hapvr.errors import DataError

POSITIVE, NEGATIVE, AMBIGUOUS, CLEANED = "positive", "negative", "ambiguous", "cleaned"
POSITIVES = frozenset({POSITIVE})
NEAR_DUPLICATE = frozenset("ESLMV")


def evve_tasks(labels: Collection[str], exclusions: Collection[str] = ()) -> tuple[Task, ...]:
    """EVVE_mAP (trapezoids, mean over queries) and EVVE_uAP (steps)."""
    exclusion = AMBIGUOUS if AMBIGUOUS in exclusions else None
    task = partial(Task, positives=POSITIVES, exclusion=exclusion, official_empty_query="zero")
    return task(name="EVVE_mAP", metric="mAP", average_precision="trapezoid"), task(name="EVVE_uAP", metric="micro-AP")


def svd_tasks(labels: Collection[str], exclusions: Collection[str] = ()) -> tuple[Task, ...]:
    """mAP (tied scores grouped) and uAP (steps), over a query's labelled candidates and all unlabelled videos."""
    task = partial(Task, positives=POSITIVES, pool="labelled_and_unlabelled", official_empty_query="zero")
    return task(name="mAP", metric="mAP", average_precision="tie_grouped"), task(name="uAP", metric="micro-AP")


def cc_web_video_tasks(labels: Collection[str], exclusions: Collection[str] = ()) -> tuple[Task, ...]:
    """mAP over the query's own set and mAP_star over the whole database; mAP_c and mAP_c_star on the cleaned labels.

    The query stays in its ranking and counts as a hit, and a missing positive costs recall under every policy.
    """
    task = partial(Task, metric="mAP", positives=NEAR_DUPLICATE, query_stays=True, official_missing_positive="misses")
    tasks = (task(name="mAP", pool="labelled"), task(name="mAP_star", pool="database"))
    if CLEANED not in exclusions:
        return tasks
    return (
        *tasks,
        task(name="mAP_c", pool="labelled", exclusion=CLEANED),
        task(name="mAP_c_star", pool="database", exclusion=CLEANED),
    )


class _Event(BaseModel):
    queries: list[str]
    positives: list[str]
    nulls: list[str]


class _Events(BaseModel):
    database: list[str]
    events: dict[str, _Event]


def read_evve(folder: Path, *, name: str = "evve") -> BenchmarkDefinition:
    """EVVE from annots/<event>.dat (lines "id 1|0|-1 query|database", as published) or else from evve.json.

    A video labelled 0 is ambiguous: it leaves the rankings of its event.
    """
    files = sorted((folder / "annots").glob("*.dat"))
    if files:
        database, events = [], []
        for file in files:
            rows = read_rows(file, columns=3, values=("1", "0", "-1"), at=1)
            stored = [(video, label) for video, label, split in rows if split != "query"]
            database += [video for video, _ in stored]
            events.append(
                _Event(
                    queries=[video for video, _, split in rows if split == "query"],
                    positives=[video for video, label in stored if label == "1"],
                    nulls=[video for video, label in stored if label == "0"],
                )
            )
    else:
        content = read_json(folder / "evve.json", _Events)
        database, events = content.database, list(content.events.values())
    pairs = [(event, query) for event in events for query in event.queries]
    labels = [(query, video, POSITIVE) for event, query in pairs for video in event.positives]
    ambiguous = [(AMBIGUOUS, query, video) for event, query in pairs for video in event.nulls]
    return BenchmarkDefinition(
        name=name,
        kind="evve",
        queries=tuple(query for _, query in pairs),
        database=tuple(dict.fromkeys(database)),
        labels=pl.DataFrame(labels, schema=LABEL_SCHEMA, orient="row"),
        exclusions=pl.DataFrame(ambiguous, schema=EXCLUSION_SCHEMA, orient="row"),
        tasks=evve_tasks([POSITIVE], [AMBIGUOUS] if ambiguous else []),
    )


def read_svd(folder: Path, *, name: str = "svd") -> BenchmarkDefinition:
    """SVD from test_groundtruth (lines "query candidate 0|1") and, if there, unlabeled-data-id (an id per line).

    Without the second file it is the labelled part only, on which published numbers cannot be reproduced.
    """
    rows = read_rows(folder / "test_groundtruth", columns=3, values=("1", "0"), at=2)
    labels = [(query, candidate, POSITIVE if label == "1" else NEGATIVE) for query, candidate, label in rows]
    file = folder / "unlabeled-data-id"
    unlabelled = read_lines(file) if file.is_file() else []
    candidates = dict.fromkeys(candidate for _, candidate, _ in labels)
    return BenchmarkDefinition(
        name=name,
        kind="svd",
        queries=tuple(dict.fromkeys(query for query, _, _ in labels)),
        database=(*candidates, *(video for video in unlabelled if video not in candidates)),
        labels=pl.DataFrame(labels, schema=LABEL_SCHEMA, orient="row"),
        tasks=svd_tasks([POSITIVE, NEGATIVE]),
    )


class _Sets(BaseModel):
    index: dict[str, int]
    queries: list[str]
    ground_truth: list[dict[int, str]]
    excluded: list[list[int]]


def read_cc_web_video(folder: Path, *, name: str = "cc_web_video") -> BenchmarkDefinition:
    """CC_WEB_VIDEO from Video_List.txt, Seed.txt and GT/GT_<set>.rst as published, or else from cc_web_video.json.

    Ids are "<set>/<file name without extension>". Labelled numbers without a file are kept as "unnamed/<number>", so
    that they cost recall. The JSON file adds the cleaned annotation ("excluded"), without which the two cleaned
    numbers are left out.
    """
    excluded: list[list[int]] = []
    if (folder / "Video_List.txt").is_file():
        video_list, seed_list = folder / "Video_List.txt", folder / "Seed.txt"
        listed = read_rows(video_list, columns=4, separator="\t")
        names = {_number(number, video_list): f"{own}/{Path(file).stem}" for number, own, _, file in listed}
        seeds = {own: _number(number, seed_list) for own, number in read_rows(seed_list, columns=2)}
        queries = [names.get(number, f"unnamed/{number}") for number in seeds.values()]
        truths = []
        for path in (folder / "GT" / f"GT_{own}.rst" for own in seeds):
            # -1 marks videos that no longer existed when the labels were made
            labelled = [(number, label) for number, label in read_rows(path, columns=2) if label != "-1"]
            truths.append({_number(number, path): label for number, label in labelled})
    else:
        content = read_json(folder / "cc_web_video.json", _Sets)
        names = {number: video for video, number in content.index.items()}
        queries, truths, excluded = content.queries, content.ground_truth, content.excluded
    rows = [
        (query, names.get(number, f"unnamed/{number}"), label)
        for query, truth in zip(queries, truths, strict=True)
        for number, label in truth.items()
    ]
    hidden = [
        (CLEANED, query, names[number])
        for query, numbers in zip(queries, excluded, strict=False)
        for number in numbers
        if number in names
    ]
    return BenchmarkDefinition(
        name=name,
        kind="cc_web_video",
        queries=tuple(queries),
        database=tuple(dict.fromkeys([*names.values(), *(reference for _, reference, _ in rows)])),
        labels=pl.DataFrame(rows, schema=LABEL_SCHEMA, orient="row"),
        exclusions=pl.DataFrame(hidden, schema=EXCLUSION_SCHEMA, orient="row"),
        tasks=cc_web_video_tasks(NEAR_DUPLICATE, [CLEANED] if hidden else []),
    )


def _number(text: str, path: Path) -> int:
    if not text.isdigit():
        raise DataError(f"{path}: {text!r:.50} is not a video number")
    return int(text)
