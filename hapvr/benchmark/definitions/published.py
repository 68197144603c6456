"""Readers of benchmarks' files as their authors publish them.

FIVR (Kordopatis-Zilos et al., TMM 2019), EVVE (Revaud et al., CVPR 2013), SVD (Jiang et al., ICCV 2019), CC_WEB_VIDEO (Wu
et al., ACM MM 2007) and VCDB (Jiang et al., ECCV 2014). Each reader raises DataError, with the file and what was found, for
files that are not there or hold something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import polars as pl
from pydantic import BaseModel

from hapvr.benchmark.definition import (
    AMBIGUOUS,
    CLEANED,
    COPY,
    EASY,
    EXCLUSION_SCHEMA,
    LABEL_SCHEMA,
    NEGATIVE,
    POSITIVE,
    BenchmarkDefinition,
    tasks_of,
)
from hapvr.errors import DamagedError, DataError
from hapvr.files import read_json_as, require_regular

Value = TypeVar("Value")
HINT = "is this the folder of the data set?"


def read_fivr(folder: Path, *, name: str) -> BenchmarkDefinition:
    """annotation.json ({query: {label: [ids]}}) and, for "fivr-200k", youtube_ids.txt (an id per line), for "fivr-5k",
    fivr_5k.json ({"queries", "database"}); easy_duplicates.txt (an id per line) adds the hard versions."""
    annotation = read_json(folder / "annotation.json", dict[str, dict[str, list[str]]])
    if name == "fivr-5k":
        subset = read_json(folder / "fivr_5k.json", _Subset)
        queries, database = subset.queries, subset.database
    else:
        queries, database = sorted(annotation), read_lines(folder / "youtube_ids.txt")
    kept, easy_file = set(database), folder / "easy_duplicates.txt"
    rows = [
        (query, reference, label)
        for query in queries
        for label, references in annotation.get(query, {}).items()
        for reference in references
        if reference in kept
    ]
    easy = [(EASY, None, video) for video in read_lines(easy_file) if video in kept] if easy_file.is_file() else []
    return _definition(name, "fivr", queries, database, rows, easy)


class _Subset(BaseModel):
    queries: list[str]
    database: list[str]


class _Event(BaseModel):
    queries: list[str]
    positives: list[str]
    nulls: list[str]


class _Events(BaseModel):
    database: list[str]
    events: dict[str, _Event]


def read_evve(folder: Path, *, name: str) -> BenchmarkDefinition:
    """evve.json, as S2VS publishes it: {"database", "events": {event: {"queries", "positives", "nulls"}}}.

    `nulls` are ambiguous: they leave the rankings of their event.
    """
    content = read_json(folder / "evve.json", _Events)
    pairs = [(event, query) for event in content.events.values() for query in event.queries]
    labels = [(query, video, POSITIVE) for event, query in pairs for video in event.positives]
    ambiguous = [(AMBIGUOUS, query, video) for event, query in pairs for video in event.nulls]
    return _definition(name, "evve", [query for _, query in pairs], dict.fromkeys(content.database), labels, ambiguous)


def read_svd(folder: Path, *, name: str) -> BenchmarkDefinition:
    """test_groundtruth (lines "query candidate 0|1") and, if there, unlabeled-data-id (an id per line).

    Without the second file it is the labelled part only, on which published numbers cannot be reproduced.
    """
    rows = read_rows(folder / "test_groundtruth", columns=3)
    if wrong := {label for _, _, label in rows} - {"0", "1"}:
        raise DataError(f"{folder / 'test_groundtruth'}: label {min(wrong)!r:.50}, wanted 0 or 1; {HINT}")
    labels = [(query, candidate, POSITIVE if label == "1" else NEGATIVE) for query, candidate, label in rows]
    file = folder / "unlabeled-data-id"
    unlabelled = read_lines(file) if file.is_file() else []
    candidates = dict.fromkeys(candidate for _, candidate, _ in labels)
    database = [*candidates, *(video for video in unlabelled if video not in candidates)]
    return _definition(name, "svd", dict.fromkeys(query for query, _, _ in labels), database, labels)


class _Sets(BaseModel):
    index: dict[str, int]
    queries: list[str]
    ground_truth: list[dict[int, str]]
    excluded: list[list[int]]


def read_cc_web_video(folder: Path, *, name: str) -> BenchmarkDefinition:
    """cc_web_video.json, as S2VS publishes it, with the cleaned annotation ("excluded").

    Ids are "<set>/<file name without extension>". Labelled numbers without a file are kept as "unnamed/<number>", so
    that they cost recall.
    """
    content = read_json(folder / "cc_web_video.json", _Sets)
    names = {number: video for video, number in content.index.items()}
    rows = [
        (query, names.get(number, f"unnamed/{number}"), label)
        for query, truth in zip(content.queries, content.ground_truth, strict=True)
        for number, label in truth.items()
    ]
    hidden = [
        (CLEANED, query, names[number])
        for query, numbers in zip(content.queries, content.excluded, strict=False)
        for number in numbers
        if number in names
    ]
    database = dict.fromkeys([*names.values(), *(reference for _, reference, _ in rows)])
    return _definition(name, "cc_web_video", content.queries, database, rows, hidden)


def read_vcdb(folder: Path, *, name: str) -> BenchmarkDefinition:
    """annotation/<event>.txt (lines "video,video,start,end,start,end", as published).

    The core videos are the files under core_dataset/ if that folder exists, else all videos that the annotation names.
    For "vcdb-distractors" the database also holds the lines of distractors.txt or the files under
    background_dataset/. Ids are file names without their extension.
    """
    files = sorted((folder / "annotation").glob("*.txt"))
    if not files:
        raise DataError(f"{folder / 'annotation'}: no files *.txt, wanted one or more; {HINT}")
    rows = [row for file in files for row in read_rows(file, columns=6, separator=",")]
    named = [(Path(first).stem, Path(second).stem) for first, second, *_ in rows]
    pairs = dict.fromkeys(pair for a, b in named if a != b for pair in ((a, b), (b, a)))
    core = _stems(folder / "core_dataset") or sorted({video for pair in named for video in pair})
    distractors: list[str] = []
    if name == "vcdb-distractors":
        listed = folder / "distractors.txt"
        distractors = read_lines(listed) if listed.is_file() else _stems(folder / "background_dataset")
        if not distractors:
            raise DataError(
                f"{folder}: neither distractors.txt nor files under background_dataset; without distractors use 'vcdb'"
            )
    known = set(core)
    database = [*core, *(video for video in distractors if video not in known)]
    return _definition(name, "vcdb", core, database, [(*pair, COPY) for pair in pairs])


def _stems(folder: Path) -> list[str]:
    return sorted({path.stem for path in folder.rglob("*") if path.is_file()})


def _definition(
    name: str,
    kind: str,
    queries: Iterable[str],
    database: Iterable[str],
    labels: Sequence[tuple[str, ...]],
    exclusions: Sequence[tuple[str | None, ...]] = (),
) -> BenchmarkDefinition:
    """labels, exclusions: rows of LABEL_SCHEMA and EXCLUSION_SCHEMA."""
    return BenchmarkDefinition(
        name=name,
        kind=kind,
        queries=tuple(queries),
        database=tuple(database),
        labels=pl.DataFrame(labels, schema=LABEL_SCHEMA, orient="row"),
        exclusions=pl.DataFrame(exclusions, schema=EXCLUSION_SCHEMA, orient="row"),
        tasks=tasks_of(kind, {row[2] for row in labels}, {str(row[0]) for row in exclusions}),
    )


def read_json(path: Path, kind: type[Value]) -> Value:
    """The value in a JSON file. kind: its type, as pydantic knows it."""
    return read_json_as(path, kind, hint=HINT)


def read_lines(path: Path) -> list[str]:
    """The stripped lines of a text file without empty ones."""
    try:
        require_regular(path)
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedError(f"{path}: cannot be read as text ({error}); {HINT}") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def read_rows(path: Path, *, columns: int, separator: str | None = None) -> list[list[str]]:
    """The first `columns` fields of each line of a file, which must have as many."""
    rows = [[field.strip() for field in line.split(separator)] for line in read_lines(path)]
    for row in rows:
        if len(row) < columns:
            raise DataError(f"{path}: line {' '.join(row)!r:.200} has {len(row)} fields, wanted {columns} or more")
    return [row[:columns] for row in rows]
