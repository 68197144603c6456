"""Copies of parts: VCDB (Jiang et al., ECCV 2014), VCSL (He et al., CVPR 2022) and VSC2022 (Pizzi et al., 2023)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import polars as pl

from hapvr.benchmark.definition import LABEL_SCHEMA, BenchmarkDefinition, Task
from hapvr.benchmark.definitions.files import only_file, read_csv, read_json, read_lines, read_rows
from hapvr.benchmark.segments import SEGMENT_SCHEMA
from hapvr.errors import DataError

COPY = "copy"
VSC_NAMES = {name: name.replace("reference", "ref").removesuffix("_s") for name in SEGMENT_SCHEMA}
"""Our columns -> VSC2022's."""
Box = tuple[float, float, float, float]


def vcdb_tasks(labels: Collection[str], exclusions: Collection[str] = (), *, prefix: str = "VCDB") -> tuple[Task, ...]:
    """VCDB_mAP and VCDB_uAP, by steps; a video is relevant if it shares a copied segment with the query."""
    positives = frozenset({COPY})
    return (
        Task(name=f"{prefix}_mAP", metric="mAP", positives=positives),
        Task(name=f"{prefix}_uAP", metric="micro-AP", positives=positives),
    )


def read_vcdb(folder: Path, *, name: str = "vcdb") -> BenchmarkDefinition:
    """VCDB from annotation/<event>.txt (lines "video,video,start,end,start,end", as published).

    The core videos are the files under core_dataset/ if that folder exists, else all videos that the annotation names.
    For "vcdb-distractors" the database also holds the lines of distractors.txt or the files under
    background_dataset/. Ids are file names without their extension.
    """
    rows = [row for file in annotation_files(folder) for row in read_rows(file, columns=6, separator=",")]
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


def read_vcsl(folder: Path, *, name: str = "vcsl") -> BenchmarkDefinition:
    """VCSL from label_file*.json: "query-reference" -> a list of [query begin, reference begin, query end, reference end].

    With a pair_file*.csv (columns query_id, reference_id), such as that of the test split, only its pairs count, and a pair
    without labels is one without copies. A part without length in one of both videos is left out, as it adds nothing to
    any measure. Raises DataError for files that are not there or hold something else.
    """
    path = only_file(folder, "label_file*.json")
    boxes = {_pair(key, path): found for key, found in read_json(path, dict[str, list[Box]]).items()}
    pairs = list(boxes)
    if any(folder.glob("pair_file*.csv")):
        table = read_csv(only_file(folder, "pair_file*.csv"), {"query_id": pl.String, "reference_id": pl.String})
        pairs = list(dict.fromkeys(table.iter_rows()))
    rows = [
        (*pair, query_start, query_end, start, end)
        for pair in pairs
        for query_start, start, query_end, end in boxes.get(pair, [])
        if query_start != query_end and start != end
    ]
    segments = pl.DataFrame(rows, schema=SEGMENT_SCHEMA, orient="row")
    return _with_segments(name, "VCSL", [query for query, _ in pairs], [reference for _, reference in pairs], segments)


def read_vsc2022(folder: Path, *, name: str = "vsc2022") -> BenchmarkDefinition:
    """VSC2022 from *ground_truth*.csv: query_id, ref_id and the begin and end in both, in seconds, a row per copied part.

    Queries and references are the `video_id`s of *query_metadata.csv and *reference_metadata.csv, or without these files
    the videos that the ground truth names. Raises DataError for files that are not there or hold something else.
    """
    truth = read_csv(
        only_file(folder, "*ground_truth*.csv"), {VSC_NAMES[name]: kind for name, kind in SEGMENT_SCHEMA.items()}
    )
    segments = truth.rename({theirs: ours for ours, theirs in VSC_NAMES.items()})

    def listed(role: str) -> pl.Series:
        pattern = f"*{role}_metadata.csv"
        if any(folder.glob(pattern)):
            return read_csv(only_file(folder, pattern), {"video_id": pl.String})["video_id"]
        return segments[f"{role}_id"]

    return _with_segments(name, "VSC", listed("query"), listed("reference"), segments)


def _with_segments(
    name: str, prefix: str, queries: Iterable[str], references: Iterable[str], segments: pl.DataFrame
) -> BenchmarkDefinition:
    """prefix: of the tasks' names."""
    pairs = segments.select("query_id", "reference_id").unique(maintain_order=True)
    return BenchmarkDefinition(
        name=name,
        kind=name,
        queries=tuple(dict.fromkeys(queries)),
        database=tuple(dict.fromkeys(references)),
        labels=pairs.with_columns(label=pl.lit(COPY)),
        segments=segments,
        tasks=vcdb_tasks([COPY], prefix=prefix)[::-1],
    )


def _pair(key: str, path: Path) -> tuple[str, str]:
    """The two ids of a key. They may have dashes, as UUIDs do, but as many each."""
    parts = key.split("-")
    half = len(parts) // 2
    if len(parts) % 2 or not all(parts):
        raise DataError(f"{path}: {key!r:.100} is not a pair of ids; wanted query-reference")
    return "-".join(parts[:half]), "-".join(parts[half:])


def _stems(folder: Path) -> list[str]:
    return sorted({path.stem for path in folder.rglob("*") if path.is_file()})
