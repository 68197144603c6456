"""Marks as CSV: a line per pair. Other columns, as a labelling tool writes them, are passed over."""

from __future__ import annotations

import csv
from datetime import datetime
from pathlib import Path

from hapvr.data.filesystem import DataRoot
from hapvr.errors import ArgumentError, DataError
from hapvr.files import require_regular, write_atomic
from hapvr.search.marks import LOCAL_USER, Mark, Marks, Verdict, mark_of
from hapvr.tables import write_csv

NEEDED = ("first", "second", "verdict")
COLUMNS = (*NEEDED, "first_name", "second_name", "since", "by")
VERDICTS: dict[str, Verdict] = {"match": "match", "not a match": "not_a_match"}
"""What a line may say; - and _ count as spaces."""
MAX_NAMED = 5
"""Bad lines that an error names."""


def write_marks(marks: Marks, path: Path) -> None:
    """Write all marks, the oldest first: the two SHA-256, the verdict, names, when and by whom."""
    rows = [(row.first, row.second, row.verdict, *row.names, row.since, row.by) for row in marks.rows()]
    with write_atomic(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        write_csv(COLUMNS, (dict(zip(COLUMNS, row, strict=True)) for row in rows), file)


def read_marks_table(root: DataRoot, path: Path) -> list[Mark]:
    """The marks of a CSV file with the columns NEEDED, whose videos are as in `mark_of`; the rest of COLUMNS may lack.

    Raises DataError for a file that is no such table, and where any line cannot be used, naming the first ones.
    """
    made: dict[tuple[str, str], Mark] = {}
    bad: list[str] = []
    try:
        require_regular(path)
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.DictReader(file, restval="")
            if lacking := set(NEEDED).difference(lines.fieldnames or ()):
                raise ValueError(f"it has no column {', '.join(sorted(lacking))}")
            for row in lines:
                try:
                    mark = _mark(root, row)
                    if made.setdefault((mark.first, mark.second), mark).verdict != mark.verdict:
                        raise ValueError("it contradicts an earlier line")
                except (ArgumentError, DataError, ValueError) as error:
                    bad.append(f"line {lines.line_num}: {error}")
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path}: {error}; wanted a CSV file with the columns {', '.join(NEEDED)}") from error
    if bad:
        raise DataError(f"{path}: {len(bad)} lines cannot be used, so nothing was marked: {'; '.join(bad[:MAX_NAMED])}")
    return list(made.values())


def _mark(root: DataRoot, row: dict[str, str]) -> Mark:
    """The mark of a line. Raises as `mark_of` does, and ValueError."""
    one, other, said = (row[name] for name in NEEDED)
    verdict = VERDICTS.get(said.strip().lower().replace("-", " ").replace("_", " "))
    if verdict is None:
        raise ValueError(f"the verdict is {said!r:.80}; wanted {' or '.join(VERDICTS)}")
    since, by = row.get("since", ""), row.get("by") or LOCAL_USER
    if since:
        datetime.fromisoformat(since)
    names = (row.get("first_name") or one, row.get("second_name") or other)
    return mark_of(root, one, other, verdict, names=names, since=since, by=by)
