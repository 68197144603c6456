"""Readers of what cannot be shipped, as its authors publish it: VCDB (Jiang et al., ECCV 2014), and the unlabelled videos of
SVD (Jiang et al., ICCV 2019). Each raises DataError, with the file and what was found, for files that are not there or hold
something else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl

from hapvr.benchmark.definition import (
    COPY,
    LABEL_SCHEMA,
    NEGATIVE,
    POSITIVE,
    BenchmarkDefinition,
    tasks_of,
)
from hapvr.errors import DamagedError, DataError
from hapvr.files import require_regular

HINT = "is this the folder of the data set?"


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
    name: str, kind: str, queries: Iterable[str], database: Iterable[str], labels: Sequence[tuple[str, ...]]
) -> BenchmarkDefinition:
    """labels: rows of LABEL_SCHEMA."""
    return BenchmarkDefinition(
        name=name,
        kind=kind,
        queries=tuple(queries),
        database=tuple(database),
        labels=pl.DataFrame(labels, schema=LABEL_SCHEMA, orient="row"),
        tasks=tasks_of(kind, {row[2] for row in labels}),
    )


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
