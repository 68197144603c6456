"""Labelled pairs of videos: their file (a CSV or Parquet of one's own, or VCDB's annotation), and the pairs of a training."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import polars as pl
from pydantic import AfterValidator, Field, TypeAdapter

from hapvr.benchmark.definitions.published import annotation_files, read_lines, split_line
from hapvr.errors import DataError
from hapvr.files import read_json_as, write_atomic
from hapvr.settings import first_line
from hapvr.tables import TABLE_ERRORS, read_user_table

LABELLED_NAME = "labelled_pairs.json"
MAX_SECONDS = 1e9
COLUMNS = ("query_id", "reference_id", "query_start_s", "query_end_s", "reference_start_s", "reference_end_s")
"""Columns of a file; the times are optional."""


def _rising(copy: tuple[float, float]) -> tuple[float, float]:
    if not 0 <= copy[0] < copy[1] <= MAX_SECONDS:
        raise ValueError(f"wanted 0 <= start < end <= {MAX_SECONDS:g}")
    return copy


Copy = Annotated[tuple[float, float], AfterValidator(_rising)]
"""Begin and end of a copied part, in seconds of its video."""


@dataclass(frozen=True)
class LabelledPair:
    """Two videos that show the same. copies: the copied part in each, in seconds, where it is known."""

    videos: tuple[str, str]
    copies: tuple[Copy, Copy] | None = None


PAIR = TypeAdapter(LabelledPair)


def read_pair_rows(path: Path) -> list[tuple[str, LabelledPair]]:
    """The pairs of a CSV or Parquet with `COLUMNS`, or of a folder of VCDB, whose copies inside one video are left out.

    Each with its file and row, for messages; videos are named as in the file. Raises DataError, with file and row, where the
    file cannot be read or is empty, a name is missing, and where times are not numbers, are below 0, or end before they begin.
    """
    rows = [(place, _parse(place, row)) for place, row in (_vcdb_rows(path) if path.is_dir() else _table_rows(path))]
    if not rows:
        raise DataError(f"{path}: no pairs; wanted a row for each, with columns {', '.join(COLUMNS[:2])}")
    return rows


def _parse(place: str, row: Mapping[str, Any]) -> LabelledPair:
    try:
        videos = tuple(str(row.get(name) or "").strip() for name in COLUMNS[:2])
        if not all(videos):
            raise ValueError(f"no {COLUMNS[videos.index('')]}")
        times = [_seconds(row.get(name)) for name in COLUMNS[2:]]
        copies = (tuple(times[:2]), tuple(times[2:])) if any(time is not None for time in times) else None
        return PAIR.validate_python({"videos": videos, "copies": copies})
    except ValueError as error:
        raise DataError(
            f"{place}: {first_line(error)}; wanted {', '.join(COLUMNS)}, the times in seconds or hh:mm:ss, or all four empty"
        ) from error


def _seconds(value: Any) -> float | None:
    """The seconds of "12.5", "0:12" or "00:00:12"; None for an empty cell."""
    text = "" if value is None else str(value).strip()
    if not text:
        return None
    return sum((float(part) * 60.0**power for power, part in enumerate(reversed(text.split(":")))), start=0.0)


def _table_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        table = read_user_table(path)
    except pl.exceptions.NoDataError:
        return
    except (*TABLE_ERRORS, pl.exceptions.PolarsError) as error:
        raise DataError(f"{path}: cannot be read as CSV or Parquet ({error}); see train.labelled_pairs") from error
    for number, row in enumerate(table.iter_rows(named=True), start=1):
        yield f"{path}, row {number}", row


def _vcdb_rows(folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Lines "video,video,start,end,start,end"."""
    for file in annotation_files(folder):
        for number, line in enumerate(read_lines(file), start=1):
            first, second, start, end, *other = split_line(line, path=file, columns=6, separator=",")
            if first != second:
                yield f"{file}, row {number}", dict(zip(COLUMNS, (first, second, start, end, *other), strict=False))


@dataclass(frozen=True)
class LabelledPairs:
    """What a training from labelled pairs is made of.

    distractors: videos that no pair names. num_unusable: rows of the file that name a video without features.
    """

    pairs: tuple[LabelledPair, ...]
    distractors: tuple[str, ...] = ()
    num_unusable: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @property
    def digest(self) -> str:
        """SHA-256 of the pairs and distractors."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()

    def summary(self) -> dict[str, Any]:
        """Numbers instead of the videos."""
        return {
            "pairs": len(self.pairs),
            "pairs_with_copied_part": sum(pair.copies is not None for pair in self.pairs),
            "distractors": len(self.distractors),
            "unusable_rows": self.num_unusable,
            "digest": self.digest,
        }


def write_labelled_pairs(folder: Path, found: LabelledPairs) -> None:
    """Write the pairs of a training into its folder."""
    with write_atomic(folder / LABELLED_NAME) as part:
        part.write_text(json.dumps(asdict(found), indent=1), encoding="utf-8")


def read_labelled_pairs(folder: Path) -> LabelledPairs:
    """The pairs of a training. Raises DamagedError."""
    return read_json_as(folder / LABELLED_NAME, LabelledPairs, hint="start the training again, which writes it")
