"""Marks as CSV: a line per pair. Other columns, as a labelling tool writes them, are passed over."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from hapvr.data.filesystem import DataRoot
from hapvr.errors import ArgumentError, DataError
from hapvr.files import require_regular, write_atomic
from hapvr.search.marks import LOCAL_USER, Mark, Marks, Verdict, mark_of
from hapvr.tables import MAX_USER_BYTES, write_csv

NEEDED = ("first", "second", "verdict")
COLUMNS = (*NEEDED, "first_name", "second_name", "since", "by")
VERDICTS: dict[str, Verdict] = {"match": "match", "not a match": "not_a_match"}
"""What a line may say; - and _ count as spaces."""
MAX_NAMED = 5
"""Bad lines that an error names."""


def write_marks(marks: Marks, path: Path) -> None:
    """Write all marks, the oldest first: the two SHA-256, the verdict, names, when and by whom."""
    rows = [
        dict(zip(COLUMNS, (row.first, row.second, row.verdict, *row.names, row.since, row.by), strict=True))
        for row in marks.rows()
    ]
    with write_atomic(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        write_csv(COLUMNS, rows, file)


def read_marks_file(root: DataRoot, path: Path) -> list[Mark]:
    """The marks of a CSV file with the columns NEEDED, whose videos are as in `mark_of`; the rest of COLUMNS may lack.

    Raises DataError for a file that is no such table, and where any line cannot be used, naming the first ones.
    """
    made: dict[tuple[str, str], tuple[int, Mark]] = {}
    bad: list[str] = []
    for number, row in _lines(path):
        try:
            mark = _mark(root, row)
            earlier, said = made.setdefault((mark.first, mark.second), (number, mark))
            if said.verdict != mark.verdict:
                raise DataError(f"it contradicts line {earlier}")
        except (ArgumentError, DataError, ValueError) as error:
            bad.append(f"line {number}: {error}")
    if bad:
        more = f"; and {len(bad) - MAX_NAMED} more" if len(bad) > MAX_NAMED else ""
        raise DataError(f"{path}: {'; '.join(bad[:MAX_NAMED])}{more}; nothing was marked: correct these lines")
    return [mark for _, mark in made.values()]


def _lines(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Number and values of each line but the first."""
    try:
        require_regular(path)
        if path.stat().st_size > MAX_USER_BYTES:
            raise ValueError(f"it has more than {MAX_USER_BYTES} bytes")
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="")
            if lacking := [name for name in NEEDED if name not in (reader.fieldnames or ())]:
                raise ValueError(f"it has no column {', '.join(lacking)}")
            yield from ((reader.line_num, {name: row[name] or "" for name in COLUMNS if name in row}) for row in reader)
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path}: {error}; wanted a CSV file with the columns {', '.join(NEEDED)}") from error


def _mark(root: DataRoot, row: dict[str, str]) -> Mark:
    """The mark of a line. Raises as `mark_of` does, and ValueError."""
    verdict = VERDICTS.get(row["verdict"].strip().lower().replace("-", " ").replace("_", " "))
    if verdict is None:
        raise ValueError(f"the verdict is {row['verdict']!r:.80}; wanted {' or '.join(VERDICTS)}")
    since, (one, other) = row.get("since", ""), (row["first"], row["second"])
    if since:
        datetime.fromisoformat(since)
    names = (row.get("first_name") or one, row.get("second_name") or other)
    return mark_of(root, one, other, verdict, names=names, since=since, by=row.get("by") or LOCAL_USER)
