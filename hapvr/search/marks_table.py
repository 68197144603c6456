"""Marks as a CSV file, a line per pair: written, and imported from there. Other columns, as a
labelling tool writes them, are skipped."""

import csv
import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from hapvr.data.filesystem import DataRoot
from hapvr.errors import ArgumentError, DataError
from hapvr.files import file_problem, require_regular
from hapvr.search.marks import (
    LOCAL_USER,
    FileDigests,
    Mark,
    Marks,
    Verdict,
    contents,
    keep_new_marks,
    mark_of,
)
from hapvr.tables import export_csv

NEEDED = ("first", "second", "verdict")
COLUMNS = (*NEEDED, "first_name", "second_name", "since", "by")
VERDICTS: dict[str, Verdict] = {"match": "match", "not a match": "not_a_match"}
"""The verdict of a line -> that of a mark; - and _ count as spaces."""


def import_marks(root: DataRoot, path: Path) -> tuple[list[Mark], Marks]:
    """Keep the marks of a CSV file, see `read_marks_table`. Returns them, and the marks before."""
    return keep_new_marks(root, lambda digests: read_marks_table(root, path, digests))


def write_marks(marks: Marks, path: Path) -> None:
    """Write all marks, the oldest first: the two SHA-256, the verdict, names, when and by whom."""
    rows = [
        (row.first, row.second, row.verdict, *row.names, row.since, row.by) for row in marks.rows()
    ]
    export_csv(COLUMNS, (dict(zip(COLUMNS, row, strict=True)) for row in rows), path)


def read_marks_table(root: DataRoot, path: Path, digests: FileDigests | None = None) -> list[Mark]:
    """The marks of a CSV file with the columns NEEDED, and perhaps others of COLUMNS; videos are
    named as in `contents`. Raises DataError for a file that is not such a table, and if any line
    cannot be used, naming the first ones.

    digests: see `contents`
    """
    try:
        require_regular(path)
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.DictReader(file, restval="", strict=True)
            _require_columns(lines.fieldnames or ())
            marks, problems = _marks_of_lines(lines, contents(root, digests))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(
            f"{path}: {file_problem(error)}; expected a CSV file with the columns "
            f"{', '.join(NEEDED)}"
        ) from error

    if problems:
        raise DataError(
            f"{path}: {len(problems)} lines cannot be used, so nothing was marked: "
            f"{'; '.join(problems[:5])}"
        )

    return marks


def _require_columns(names: Sequence[str]) -> None:
    """Raise ValueError unless each column of NEEDED is there, and none of COLUMNS twice."""
    counts = Counter(names)
    missing = [name for name in COLUMNS if name in NEEDED and not counts[name]]
    twice = [name for name in COLUMNS if counts[name] > 1]
    wrong = [name for name in COLUMNS if name in missing or name in twice]
    if wrong:
        raise ValueError(f"it has no column {', '.join(wrong)}, or has it twice")


def _marks_of_lines(
    lines: "csv.DictReader[str]", content_of: Callable[[str], str]
) -> tuple[list[Mark], list[str]]:
    """The marks of all lines, and a sentence for each that cannot be used."""
    marks: dict[tuple[str, str], Mark] = {}
    problems: list[str] = []
    for row in lines:
        try:
            mark = _mark_of_line(content_of, row)
            earlier = marks.setdefault((mark.first, mark.second), mark)
            if earlier.verdict != mark.verdict:
                raise ValueError("it contradicts an earlier line")
        except (ArgumentError, DataError, ValueError) as error:
            problems.append(f"line {lines.line_num}: {error}")

    return list(marks.values()), problems


def _mark_of_line(content_of: Callable[[str], str], row: dict[str, str]) -> Mark:
    """The mark of a line. Raises as `mark_of` does, and ValueError."""
    verdict = VERDICTS.get(re.sub("[-_]", " ", row["verdict"].strip().lower()))
    if verdict is None:
        raise ValueError(f"the verdict is {row['verdict']!r:.80}; expected {' or '.join(VERDICTS)}")
    since = row.get("since", "")
    if since and not _is_moment(since):
        raise ValueError(f"since is {since!r:.80}; expected ISO 8601 or nothing")
    first = row["first"]
    second = row["second"]
    return mark_of(
        content_of,
        first,
        second,
        verdict,
        names=(row.get("first_name") or first, row.get("second_name") or second),
        since=since,
        by=row.get("by") or LOCAL_USER,
    )


def _is_moment(text: str) -> bool:
    """Whether a text is a time in ISO 8601."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False

    return True
