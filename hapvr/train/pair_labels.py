"""Labelled pairs of videos and their distractors: reads the files of a user or of VCDB, and checks
them against the videos of the collection.

Errors name the file and the line. Checked labels are stored in the folder of the training, which
keeps those it began with.
"""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import BaseModel

from hapvr.data.manifest import name_digest
from hapvr.errors import DataError
from hapvr.files import (
    digest_of,
    file_problem,
    read_bytes,
    read_json_as,
    require_regular,
    write_text,
)
from hapvr.tables import MAX_USER_BYTES, TABLE_ERRORS, read_user_table
from hapvr.train.settings import PairsConfig

LABELS_NAME = "pair_labels.json"
"""The file of labels in the folder of a training."""
NAME_COLUMNS = ("query", "reference")
TIME_COLUMNS = ("query_start_s", "query_end_s", "reference_start_s", "reference_end_s")
ROUNDING_S = 1.0
"""How many seconds a time may exceed the length of a video, since people note whole seconds."""
MAX_ANNOTATION_BYTES = 1 << 24
_VCDB_TIME = re.compile(r"(\d{1,2}):([0-5]\d):([0-5]\d)")


class CopiedSegment(BaseModel, frozen=True):
    """Footage that two videos share; times are seconds in each."""

    query: str
    reference: str
    query_start_s: float
    query_end_s: float
    reference_start_s: float
    reference_end_s: float

    @property
    def shorter_s(self) -> float:
        """Its length in the video where it is shorter."""
        in_query = self.query_end_s - self.query_start_s
        return min(in_query, self.reference_end_s - self.reference_start_s)

    def swapped(self) -> CopiedSegment:
        """The same footage with the roles of the videos exchanged."""
        return CopiedSegment(
            query=self.reference,
            reference=self.query,
            query_start_s=self.reference_start_s,
            query_end_s=self.reference_end_s,
            reference_start_s=self.query_start_s,
            reference_end_s=self.query_end_s,
        )


class PairLabels(BaseModel, frozen=True):
    """What a training on labelled pairs knows of its videos.

    They are stored by `name_digest`, so that no file of a training names a video that was
    forgotten. distractors: videos that share no footage with those of the copies."""

    copies: tuple[CopiedSegment, ...]
    distractors: tuple[str, ...]

    def write(self, folder: Path) -> None:
        """Store them in the folder of a training."""
        write_text(folder / LABELS_NAME, self._renamed(name_digest).model_dump_json())

    @staticmethod
    def read(folder: Path, video_ids: Collection[str]) -> PairLabels:
        """Read them from the folder of a training. video_ids: of all training videos. Raises
        DamagedError for a file that cannot be read, and DataError if one of its videos is gone."""
        hint = "train again, with another run key"
        stored = read_json_as(folder / LABELS_NAME, PairLabels, hint=hint)
        named = {name_digest(video_id): video_id for video_id in video_ids}
        try:
            return stored._renamed(named.__getitem__)
        except KeyError:
            raise DataError(
                f"labelled pairs: a video of {folder / LABELS_NAME} has no features any more; "
                f"restore them, or {hint}"
            ) from None

    @property
    def digest(self) -> str:
        return digest_of(self._renamed(name_digest).model_dump(mode="json"))

    def _renamed(self, rename: Callable[[str], str]) -> PairLabels:
        copies = [
            copy.model_copy(
                update={"query": rename(copy.query), "reference": rename(copy.reference)}
            )
            for copy in self.copies
        ]
        distractors = tuple(rename(video_id) for video_id in self.distractors)
        return PairLabels(copies=tuple(copies), distractors=distractors)


class _Placed(BaseModel, frozen=True):
    """A segment as it was written, and where: file and line."""

    place: str
    segment: CopiedSegment
    is_own_footage: bool = False
    """Whether VCDB pairs a video with itself here, which labels nothing."""


def read_pair_labels(
    settings: PairsConfig,
    *,
    resolve: Callable[[Path], Path],
    video_ids: Collection[str],
    length_s: Callable[[str], float],
) -> PairLabels:
    """The pairs and distractors that the settings name.

    resolve: makes a path of the configuration absolute. video_ids: the training videos that have
    features. length_s: seconds of one of them.

    Raises DataError, which names the file, the line and what to do, for a file that cannot be read,
    an unknown video, times outside a video, a distractor that is in a pair, and an unexpected
    number of segments."""
    assert settings.path is not None  # `Config` checks it
    path = resolve(settings.path)
    read = _read_vcdb if settings.format == "vcdb" else _read_table
    written = list(read(path))
    placed = [line for line in written if not line.is_own_footage]
    if not placed:
        raise DataError(f"labelled pairs: {path} has no pair; add a row for each copied segment")
    # The papers do not say whether their number counts the lines of a video with itself.
    if settings.expected_copies not in (None, len(written), len(placed)):
        raise DataError(
            f"labelled pairs: {path} has {len(written)} copied segments, and "
            f"train.pairs.expected_copies is {settings.expected_copies}; a file may be cut or "
            "missing: fetch the annotations again, or correct the number"
        )

    names = _Names(video_ids)
    copies = [_checked(segment, names, length_s) for segment in placed]
    paired = {video for copy in copies for video in (copy.query, copy.reference)}
    distractors: Sequence[str]
    if settings.distractors is None:
        distractors = sorted(set(video_ids) - paired)
    else:
        distractors = _read_distractors(resolve(settings.distractors), names, paired)

    if len(distractors) < settings.negatives_per_pair:
        raise DataError(
            f"labelled pairs: there are {len(distractors)} distractors, and a pair takes "
            f"{settings.negatives_per_pair}; add videos that are in no pair, or lower "
            "train.pairs.negatives_per_pair"
        )

    return PairLabels(copies=tuple(copies), distractors=tuple(distractors))


def _read_table(path: Path) -> Iterator[_Placed]:
    """The rows of a .csv or .parquet file."""
    hint = f"expected a .csv or .parquet file with the columns {', '.join(_COLUMNS)}"
    try:
        rows = _csv_rows(path) if path.suffix.lower() == ".csv" else _parquet_rows(path)
    except (*TABLE_ERRORS, pl.exceptions.PolarsError, csv.Error) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"labelled pairs: {path} cannot be read ({reason}); {hint}") from error

    for number, row in rows:
        place = f"{path}, line {number}"
        lacking = [name for name in _COLUMNS if name not in row]
        if lacking:
            raise DataError(f"labelled pairs: {path} has no column {lacking[0]}; {hint}")
        empty = [name for name in _COLUMNS if row[name] in (None, "")]
        if empty:
            raise DataError(
                f"labelled pairs: {place} has no {empty[0]}; complete the row, or fetch the file "
                "again if it was cut there"
            )

        values: dict[str, Any] = {name: str(row[name]) for name in NAME_COLUMNS}
        values |= {name: _seconds(row[name], name, place) for name in TIME_COLUMNS}
        yield _Placed(place=place, segment=CopiedSegment(**values))


def _csv_rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """The number of each line, and its values by column; a missing value is None."""
    require_regular(path, max_bytes=MAX_USER_BYTES)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        return [(reader.line_num, row) for row in reader]


def _parquet_rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """As `_csv_rows`; the rows are counted from 1."""
    return list(enumerate(read_user_table(path).iter_rows(named=True), start=1))


_COLUMNS = (*NAME_COLUMNS, *TIME_COLUMNS)


def _seconds(value: Any, name: str, place: str) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan

    if not math.isfinite(seconds):
        raise DataError(
            f"labelled pairs: {place}: {name} is {value!r:.60}; expected seconds, such as 12.5"
        )
    return seconds


def _read_vcdb(folder: Path) -> Iterator[_Placed]:
    """The segments of VCDB's annotation files, `annotation/*.txt`.

    A line is query,reference,start,end,start,end with the times of the query first, as
    HH:MM:SS."""
    files = sorted(folder.glob("*.txt")) if folder.is_dir() else []
    if not files:
        raise DataError(
            f"labelled pairs: {folder} has no .txt file; name the folder `annotation` of VCDB"
        )

    for file in files:
        for number, line in enumerate(_annotation_lines(file), start=1):
            if line.strip():
                yield _vcdb_segment(line, f"{file}, line {number}")


def _annotation_lines(file: Path) -> list[str]:
    try:
        data = read_bytes(file, max_bytes=MAX_ANNOTATION_BYTES)
        return data.decode("utf-8-sig", errors="replace").splitlines()
    except OSError as error:
        raise DataError(
            f"labelled pairs: {file} cannot be read ({file_problem(error)}); fetch it again"
        ) from error


def _vcdb_segment(line: str, place: str) -> _Placed:
    parts = [part.strip() for part in line.split(",")]
    times = [_VCDB_TIME.fullmatch(part) for part in parts[2:]]
    if len(parts) != 6 or not parts[0] or not parts[1] or not all(times):
        raise DataError(
            f"labelled pairs: {place} is {line!r:.120}; expected two file names and four times "
            "HH:MM:SS, with commas between. Fetch the file again if it was cut there"
        )

    seconds = []
    for time in times:
        assert time is not None
        hours, minutes, rest = time.groups()
        seconds.append(3600.0 * int(hours) + 60 * int(minutes) + int(rest))

    named = dict(zip(TIME_COLUMNS, seconds, strict=True))
    segment = CopiedSegment(query=parts[0], reference=parts[1], **named)
    return _Placed(place=place, segment=segment, is_own_footage=parts[0] == parts[1])


class _Names:
    """Finds videos by their id or, where only one has it, by their file name."""

    def __init__(self, video_ids: Collection[str]) -> None:
        self._ids = set(video_ids)
        self._of_file = defaultdict[str, list[str]](list)
        for video_id in sorted(self._ids):
            self._of_file[video_id.rpartition("/")[2]].append(video_id)

    def find(self, name: str, place: str) -> str:
        """The id of the video that a file of labels names at this place. Raises DataError."""
        if name in self._ids:
            return name
        candidates = self._of_file.get(name, [])
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise DataError(
                f"labelled pairs: {place}: {len(candidates)} training videos are called "
                f"{name!r:.120}, such as {candidates[0]}; write the id of the one that is meant"
            )

        elsewhere = self._of_file.get(name.rpartition("/")[2])
        if elsewhere:
            advice = f"{elsewhere[0]} has the same file name: if it is meant, write its id"
        else:
            advice = (
                "add it to a source whose split is train and run `hapvr extract`, or remove the "
                "line"
            )

        raise DataError(
            f"labelled pairs: {place}: {name!r:.120} is not a training video with features; "
            f"{advice}"
        )


def _checked(placed: _Placed, names: _Names, length_s: Callable[[str], float]) -> CopiedSegment:
    """The segment with the ids of its videos. Raises DataError for times outside them."""
    segment = placed.segment
    place = placed.place
    videos = {part: names.find(getattr(segment, part), place) for part in NAME_COLUMNS}
    if videos["query"] == videos["reference"]:
        raise DataError(
            f"labelled pairs: {place} pairs {videos['query']} with itself; remove the line"
        )

    for part, video_id in videos.items():
        start_s = getattr(segment, f"{part}_start_s")
        end_s = getattr(segment, f"{part}_end_s")
        longest_s = length_s(video_id)
        if not 0 <= start_s < end_s <= longest_s + ROUNDING_S:
            raise DataError(
                f"labelled pairs: {place}: {part} goes from {start_s:g} s to {end_s:g} s; expected "
                f"a part of {video_id}, which has {longest_s:g} s. Correct the times"
            )

    return segment.model_copy(update=videos)


def _read_distractors(path: Path, names: _Names, paired: Collection[str]) -> Sequence[str]:
    """The videos that a text file names, each once, sorted. Raises DataError."""
    try:
        lines = read_bytes(path, max_bytes=MAX_USER_BYTES).decode("utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise DataError(
            f"labelled pairs: the distractors {path} cannot be read ({file_problem(error)}); "
            "expected a text file with the id of a video in each line"
        ) from error

    distractors = set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        video_id = names.find(line.strip(), place)
        if video_id in paired:
            raise DataError(
                f"labelled pairs: {place}: the distractor {video_id} is in a labelled pair; "
                "remove it from one of the two files"
            )

        distractors.add(video_id)

    return sorted(distractors)


def video_length_s(times: Sequence[float]) -> float:
    """Seconds of a video whose frames were sampled at these times, at least one."""
    if len(times) < 2:
        return float(times[0]) + 1.0
    return float(times[-1]) + float(times[-1] - times[0]) / (len(times) - 1)
