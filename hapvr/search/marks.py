"""What people say about pairs of videos: `match` or `not a match`, kept forever by the content of the files.

marks/pairs.json    a row per pair; one JSON object, replaced as a whole under a lock
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from hapvr.data.filesystem import DataRoot
from hapvr.errors import ArgumentError, DamagedError
from hapvr.settings import explain

PLACE = "marks/pairs.json"
Verdict = Literal["match", "not_a_match"]


@dataclass(frozen=True, kw_only=True)
class Mark:
    """first, second: what the two videos contain, their SHA-256 in hexadecimal, first < second. names: what they were
    called when they were marked, in the same order. since: ISO 8601, UTC."""

    first: str
    second: str
    verdict: Verdict
    names: tuple[str, str]
    since: str


MARKS = TypeAdapter(list[Mark])


class Marks:
    """The marks of a data root as they were when they were read."""

    def __init__(self, marks: Mapping[tuple[str, str], Mark]) -> None:
        """marks: by their two digests, see `read_marks`."""
        self._marks = dict(marks)

    def __len__(self) -> int:
        return len(self._marks)

    def verdict(self, one: str, other: str) -> Verdict | None:
        """What was said about two contents, in either order; None where nothing was."""
        found = self._marks.get(_key(one, other))
        return None if found is None else found.verdict

    def verdicts(self) -> list[list[str]]:
        """What was said, in an order that says nothing: for fingerprints."""
        return sorted([mark.first, mark.second, mark.verdict] for mark in self._marks.values())

    def rows(self) -> list[Mark]:
        """All marks, the oldest first."""
        return sorted(self._marks.values(), key=lambda mark: (mark.since, mark.first, mark.second))


def read_marks(root: DataRoot) -> Marks:
    """The marks of a data root; none where nobody marked a pair. Raises DamagedError for a file that cannot be read."""
    if not root.exists(PLACE):
        return Marks({})
    try:
        marks = MARKS.validate_python(root.read_json(PLACE)["pairs"])
        if not all(mark.first < mark.second for mark in marks):
            raise ValueError("the digests of a row are not in order")
    except (KeyError, TypeError, ValueError) as error:
        reason = explain(error) if isinstance(error, ValidationError) else error
        raise DamagedError(
            f"marks: {PLACE} below {root.url} is damaged ({reason}); restore it from a copy: nothing can make it again"
        ) from error
    return Marks({(mark.first, mark.second): mark for mark in marks})


def mark_pair(root: DataRoot, one: str, other: str, verdict: Verdict, *, names: tuple[str, str]) -> Mark:
    """Keep what somebody says about two contents; it replaces what was said before. names: of one and other.

    Raises ArgumentError for two equal contents.
    """
    if one == other:
        raise ArgumentError(f"pairs: {names[0]} and {names[1]} have the same content; a mark needs two different files")
    first, second = _key(one, other)
    made = Mark(
        first=first,
        second=second,
        verdict=verdict,
        names=names if first == one else (names[1], names[0]),
        since=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    with root.lock("marks"):
        rows = {(mark.first, mark.second): mark for mark in read_marks(root).rows()}
        _write(root, rows | {(first, second): made})
    return made


def unmark_pair(root: DataRoot, one: str, other: str) -> Mark | None:
    """Forget what was said about two contents, in either order. Returns it; None where nothing was."""
    with root.lock("marks"):
        rows = {(mark.first, mark.second): mark for mark in read_marks(root).rows()}
        gone = rows.pop(_key(one, other), None)
        if gone is not None:
            _write(root, rows)
    return gone


def _write(root: DataRoot, rows: Mapping[tuple[str, str], Mark]) -> None:
    ordered = [asdict(rows[key]) for key in sorted(rows)]
    root.write_json(PLACE, {"pairs": ordered})


def _key(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)
