"""Files of labelled pairs: a CSV or Parquet of one's own, or VCDB's published annotation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import polars as pl
from pydantic import AfterValidator

from hapvr.benchmark.definitions.files import read_lines, split_line
from hapvr.benchmark.definitions.vcdb import annotation_files
from hapvr.errors import DataError
from hapvr.tables import TABLE_ERRORS, read_user_table

MAX_SECONDS = 1e9


def _rising(copy: tuple[float, float]) -> tuple[float, float]:
    if not 0 <= copy[0] < copy[1] <= MAX_SECONDS:
        raise ValueError(f"wanted 0 <= start < end <= {MAX_SECONDS:g}")
    return copy


Copy = Annotated[tuple[float, float], AfterValidator(_rising)]
"""Begin and end of a copied part, in seconds of its video."""

ID_COLUMNS = ("query_id", "reference_id")
COPY_COLUMNS = ("query_start_s", "query_end_s", "reference_start_s", "reference_end_s")


@dataclass(frozen=True)
class PairRow:
    """A row of a file. place: its file and row, for messages. copies: the copied part in each of the two videos, if known."""

    place: str
    videos: tuple[str, str]
    copies: tuple[Copy, Copy] | None


def read_pair_rows(path: Path) -> list[PairRow]:
    """The pairs of a CSV or Parquet with `ID_COLUMNS` and maybe `COPY_COLUMNS`, or of a folder of VCDB.

    Raises DataError, with file and row, where the file cannot be read or is empty, a column or an id is missing, a video is
    paired with itself, and where times are no numbers, are below 0, or end before they begin.
    """
    rows = list(_vcdb_rows(path) if path.is_dir() else _table_rows(path))
    if not rows:
        raise DataError(f"{path}: no pairs; wanted a row for each, with columns {', '.join(ID_COLUMNS)}")
    return rows


def _table_rows(path: Path) -> Iterator[PairRow]:
    try:
        table = read_user_table(path)
    except pl.exceptions.NoDataError:
        return
    except (*TABLE_ERRORS, pl.exceptions.PolarsError) as error:
        raise DataError(f"{path}: cannot be read as CSV or Parquet ({error}); see train.labelled_pairs") from error
    columns = set(table.columns)
    missing = [name for name in ID_COLUMNS if name not in columns]
    if columns & set(COPY_COLUMNS):
        missing += [name for name in COPY_COLUMNS if name not in columns]
    if missing:
        raise DataError(
            f"{path}: no column {', '.join(missing)}; found {', '.join(table.columns)}. Wanted {', '.join(ID_COLUMNS)}, and "
            f"all or none of {', '.join(COPY_COLUMNS)}"
        )
    for number, row in enumerate(table.iter_rows(named=True), start=1):
        place = f"{path}, row {number}"
        videos = [str(row[name] or "").strip() for name in ID_COLUMNS]
        for name, video in zip(ID_COLUMNS, videos, strict=True):
            if not video:
                raise DataError(f"{place}: no {name}; give the id of a video, or drop the row")
        if videos[0] == videos[1]:
            raise DataError(f"{place}: {videos[0]!r} is paired with itself; drop the row")
        yield PairRow(place, (videos[0], videos[1]), _copies([row.get(name) for name in COPY_COLUMNS], place))


def _vcdb_rows(folder: Path) -> Iterator[PairRow]:
    """Lines "video,video,start,end,start,end"; copies inside one video are left out."""
    for file in annotation_files(folder):
        for number, line in enumerate(read_lines(file), start=1):
            place = f"{file}, row {number}"
            first, second, *times = split_line(line, path=file, columns=6, separator=",")
            if first != second:
                yield PairRow(place, (first, second), _copies(times[:4], place))


def _copies(values: list[Any], place: str) -> tuple[Copy, Copy] | None:
    texts = ["" if value is None else str(value).strip() for value in values]
    if not any(texts):
        return None
    times = [_seconds(text, place) for text in texts]
    for start, end in (times[:2], times[2:]):
        if not 0 <= start < end:
            raise DataError(f"{place}: a copied part from {start:g} s to {end:g} s; wanted 0 <= start < end")
    return (times[0], times[1]), (times[2], times[3])


def _seconds(text: str, place: str) -> float:
    """Of "12.5", "0:12" or "00:00:12"."""
    try:
        parts = [float(part) for part in text.split(":")]
        seconds = sum((part * 60.0**power for power, part in enumerate(reversed(parts))), start=0.0)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise DataError(
            f"{place}: {text!r} is no time; wanted seconds or hh:mm:ss in {', '.join(COPY_COLUMNS)}, or all four empty"
        )
    return seconds
