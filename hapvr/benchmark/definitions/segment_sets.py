"""Sets with true times of every copied part: VCSL (He et al., CVPR 2022) and VSC2022 (Pizzi et al., 2023)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl

from hapvr.benchmark.definition import LABEL_SCHEMA, BenchmarkDefinition, Task
from hapvr.benchmark.definitions.files import read_json
from hapvr.benchmark.segments import SEGMENT_SCHEMA
from hapvr.errors import DataError
from hapvr.tables import TABLE_ERRORS, read_user_table

COPY = "copy"
VSC_TIMES = {
    "query_id": "query_id",
    "ref_id": "reference_id",
    "query_start": "query_start_s",
    "query_end": "query_end_s",
    "ref_start": "reference_start_s",
    "ref_end": "reference_end_s",
}
"""Columns of VSC2022 -> ours."""


def read_vcsl(folder: Path, *, name: str = "vcsl") -> BenchmarkDefinition:
    """VCSL from label_file*.json: "query-reference" -> a list of [query begin, reference begin, query end, reference end].

    With a pair_file*.csv (columns query_id, reference_id), such as that of the test split, only its pairs count, and a pair
    without labels is one without copies. A part without length in one of both videos is left out, as it adds nothing to
    any measure. Raises DataError for files that are not there or hold something else.
    """
    path = _only(folder, "label_file*.json")
    labels = {_pair(key, path): boxes for key, boxes in read_json(path).items()}
    pairs = list(labels)
    if any(folder.glob("pair_file*.csv")):
        table = _read_csv(_only(folder, "pair_file*.csv"), ("query_id", "reference_id"))
        pairs = list(dict.fromkeys(table.select("query_id", "reference_id").iter_rows()))
    rows = []
    for pair in pairs:
        boxes = labels.get(pair, [])
        for box in boxes if isinstance(boxes, list) else [boxes]:
            if not isinstance(box, list) or len(box) != 4 or not all(isinstance(one, int | float) for one in box):
                raise DataError(f"{path}: {'-'.join(pair)} has {box!r:.100}, wanted four times in seconds")
            if box[0] != box[2] and box[1] != box[3]:
                rows.append((*pair, float(box[0]), float(box[2]), float(box[1]), float(box[3])))
    queries, references = zip(*pairs, strict=True) if pairs else ((), ())
    return _definition(name, "VCSL", queries, references, pl.DataFrame(rows, schema=SEGMENT_SCHEMA, orient="row"))


def read_vsc2022(folder: Path, *, name: str = "vsc2022") -> BenchmarkDefinition:
    """VSC2022 from *ground_truth*.csv: query_id, ref_id and the begin and end in both, in seconds, a row per copied part.

    Queries and references are the `video_id`s of *query_metadata.csv and *reference_metadata.csv, or without these files
    the videos that the ground truth names. Raises DataError for files that are not there or hold something else.
    """
    truth = _read_csv(_only(folder, "*ground_truth*.csv"), tuple(VSC_TIMES)).rename(VSC_TIMES)
    try:
        segments = truth.select(list(SEGMENT_SCHEMA)).cast(SEGMENT_SCHEMA)  # type: ignore[arg-type]
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{folder}: the ground truth has a time that is no number ({error})") from error

    def listed(role: str, column: str) -> list[str]:
        pattern = f"*{role}_metadata.csv"
        is_there = any(folder.glob(pattern))
        return (
            _read_csv(_only(folder, pattern), ("video_id",))["video_id"] if is_there else segments[column]
        ).to_list()

    return _definition(name, "VSC", listed("query", "query_id"), listed("reference", "reference_id"), segments)


def _definition(
    name: str, prefix: str, queries: Iterable[str], references: Iterable[str], segments: pl.DataFrame
) -> BenchmarkDefinition:
    """prefix: of the tasks' names."""
    pairs = segments.select("query_id", "reference_id").unique(maintain_order=True)
    labels = pairs.with_columns(label=pl.lit(COPY)).cast(LABEL_SCHEMA)  # type: ignore[arg-type]
    positives = frozenset({COPY})
    return BenchmarkDefinition(
        name=name,
        kind=name,
        queries=tuple(dict.fromkeys(queries)),
        database=tuple(dict.fromkeys(references)),
        labels=labels,
        segments=segments,
        tasks=(
            Task(name=f"{prefix}_uAP", metric="micro-AP", positives=positives),
            Task(name=f"{prefix}_mAP", metric="mAP", positives=positives),
        ),
    )


def _only(folder: Path, pattern: str) -> Path:
    """The one file of this name. Raises DataError where there is none, or several."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise DataError(f"{folder}: {len(found)} files {pattern}, wanted one; is this the folder of the data set?")
    return found[0]


def _pair(key: str, path: Path) -> tuple[str, str]:
    """The two ids of a key. They may have dashes, as UUIDs do, but as many each."""
    parts = key.split("-")
    half = len(parts) // 2
    if len(parts) % 2 or not all(parts):
        raise DataError(f"{path}: {key!r:.100} is no pair of ids; wanted query-reference")
    return "-".join(parts[:half]), "-".join(parts[half:])


def _read_csv(path: Path, columns: Sequence[str]) -> pl.DataFrame:
    """These columns, as text. Raises DataError."""
    try:
        table = read_user_table(path)
    except (*TABLE_ERRORS, pl.exceptions.PolarsError) as error:
        raise DataError(f"{path}: cannot be read as CSV ({error}); is this the folder of the data set?") from error
    missing = set(columns) - set(table.columns)
    if missing:
        raise DataError(f"{path}: has no columns {', '.join(sorted(missing))}; it has {', '.join(table.columns)}")
    return table.select(columns)
