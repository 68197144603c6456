"""What people say about pairs of videos: `match` or `not a match`, kept forever by the content of the files.

marks/pairs.json    a row per pair; one JSON object, replaced as a whole under a lock
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pyarrow.compute as pc
from pydantic import TypeAdapter, ValidationError

from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import manifest_table
from hapvr.errors import ArgumentError, DamagedError, DataError
from hapvr.provenance import file_sha256
from hapvr.search.collection import CollectionMetadata
from hapvr.search.match import printable
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


def is_digest(name: str) -> bool:
    """Whether a name is the SHA-256 of a file instead of an id."""
    return re.fullmatch(r"[0-9a-f]{64}", name) is not None


def content_of(root: DataRoot, name: str) -> str:
    """The SHA-256 of what a name stands for: a video of the collection, a file, or the digest itself.

    Raises DataError for anything else.
    """
    if is_digest(name):
        return name
    rows = manifest_table(root).filter(pc.field("video_id") == name).to_pylist()
    if rows:
        metadata = CollectionMetadata(root, {name: rows[-1]["shard"]}).of(name)
        if metadata.path is None:
            raise DataError(f"pairs: {name} has not been probed, or cannot be read; run `hapvr download` first")
        return metadata.sha256
    try:
        return file_sha256(Path(name))
    except (OSError, ValueError) as error:
        raise DataError(
            f"pairs: {name!r:.200} is neither a video of the collection nor a readable file ({error}); wanted an id "
            "such as SOURCE/NAME.mp4, or a path"
        ) from error


def mark(root: DataRoot, one: str, other: str, verdict: Verdict) -> Mark:
    """Keep what somebody says about two videos, see `content_of`. Raises DataError and ArgumentError."""
    return mark_pair(
        root, content_of(root, one), content_of(root, other), verdict, names=(printable(one), printable(other))
    )


def unmark(root: DataRoot, one: str, other: str) -> Mark | None:
    """Forget what was said about two videos; None where nothing was. Raises DataError."""
    return unmark_pair(root, content_of(root, one), content_of(root, other))
