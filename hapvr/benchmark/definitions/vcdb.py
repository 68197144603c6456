"""VCDB (Jiang et al., ECCV 2014): partial copies, 528 core videos and 100,000 distractors."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import polars as pl

from hapvr.benchmark.definition import LABEL_SCHEMA, BenchmarkDefinition, Task
from hapvr.benchmark.definitions.files import read_lines, split_line
from hapvr.errors import DataError

COPY = "copy"


def vcdb_tasks(labels: Collection[str], exclusions: Collection[str] = ()) -> tuple[Task, ...]:
    """VCDB_mAP and VCDB_uAP, by steps; a video is relevant if it shares a copied segment with the query."""
    positives = frozenset({COPY})
    return (
        Task(name="VCDB_mAP", metric="mAP", positives=positives),
        Task(name="VCDB_uAP", metric="micro-AP", positives=positives),
    )


def read_vcdb(folder: Path, *, name: str = "vcdb") -> BenchmarkDefinition:
    """VCDB from annotation/<event>.txt (lines "video,video,start,end,start,end", as published).

    The core videos are the files under core_dataset/ if that folder exists, else all videos that the annotation names.
    For "vcdb-distractors" the database also holds the lines of distractors.txt or the files under
    background_dataset/. Ids are file names without their extension.
    """
    pairs: dict[tuple[str, str], None] = {}
    named: dict[str, None] = {}
    for file in annotation_files(folder):
        for line in read_lines(file):
            first, second = (Path(field).stem for field in split_line(line, path=file, columns=6, separator=",")[:2])
            named |= dict.fromkeys((first, second))
            if first != second:
                pairs |= dict.fromkeys(((first, second), (second, first)))
    core = _stems(folder / "core_dataset") or sorted(named)
    distractors: list[str] = []
    if name == "vcdb-distractors":
        listed = folder / "distractors.txt"
        distractors = read_lines(listed) if listed.is_file() else _stems(folder / "background_dataset")
        if not distractors:
            raise DataError(
                f"{folder}: neither distractors.txt nor files under background_dataset; without distractors use 'vcdb'"
            )
    known = set(core)
    return BenchmarkDefinition(
        name=name,
        kind="vcdb",
        queries=tuple(core),
        database=(*core, *(video for video in distractors if video not in known)),
        labels=pl.DataFrame([(*pair, COPY) for pair in pairs], schema=LABEL_SCHEMA, orient="row"),
        tasks=vcdb_tasks([COPY]),
    )


def annotation_files(folder: Path) -> list[Path]:
    """The files of annotation/, one per event. Raises DataError if there are none."""
    files = sorted((folder / "annotation").glob("*.txt"))
    if not files:
        raise DataError(f"{folder / 'annotation'}: no .txt files; wanted VCDB's annotation, a file per event")
    return files


def _stems(folder: Path) -> list[str]:
    return sorted({path.stem for path in folder.rglob("*") if path.is_file()})
