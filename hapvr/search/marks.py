"""What people say about pairs of videos: `match` or `not a match`, kept for ever by the content of
the files.

marks/pairs.json    a row per pair; one JSON object, replaced as a whole under a lock

`hapvr.search.marks_table` has them as CSV.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import forgotten_digests, manifest_table, name_digest
from hapvr.errors import ArgumentError, DataError, VideoError
from hapvr.files import digest_of, file_problem, file_sha256
from hapvr.search.collection import CollectionMetadata
from hapvr.search.match import printable

PLACE = "marks/pairs.json"
MARKS_LOCK = "marks"
"""Held by whoever writes marks, from the look at the videos that they name."""
LOCAL_USER = "local user"
"""Who marks pairs on the command line, and in a service without tokens."""

Verdict = Literal["match", "not_a_match"]


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What somebody says about two videos."""

    first: str
    """what the first contains, its SHA-256 in hexadecimal; less than `second`"""
    second: str
    verdict: Verdict
    names: tuple[str, str]
    """what they were called when they were marked, in the same order"""
    since: str
    """ISO 8601, UTC"""
    by: str
    """the name of who marked them"""

    def __post_init__(self) -> None:
        if self.first >= self.second:
            raise ValueError("the digests of a mark are not in order")


@dataclass(frozen=True)
class _Stored:
    """The file at PLACE. sha256: of the pairs."""

    pairs: list[Mark]
    sha256: str

    def __post_init__(self) -> None:
        if self.sha256 != digest_of([asdict(mark) for mark in self.pairs]):
            raise ValueError("these are not the pairs that were written")


class Marks(dict[tuple[str, str], Mark]):
    """The marks of a data root as they were when they were read, by their two digests."""

    def of(self, first: str, second: str) -> Mark | None:
        """The mark of two contents, in either order; None where there is none."""
        return self.get(_key(first, second))

    def verdict(self, first: str, second: str) -> Verdict | None:
        """The verdict on two contents, in either order; None where there is none."""
        mark = self.of(first, second)
        return None if mark is None else mark.verdict

    def verdicts(self) -> list[list[str]]:
        """All verdicts in an order of no meaning: for fingerprints."""
        return sorted([mark.first, mark.second, mark.verdict] for mark in self.values())

    def rows(self) -> list[Mark]:
        """All marks, the oldest first."""
        return sorted(self.values(), key=lambda mark: (mark.since, mark.first, mark.second))


def read_marks(root: DataRoot) -> Marks:
    """The marks of a data root; none where no pair was marked. Raises DamagedError for a file
    that cannot be read."""
    if not root.has_record(PLACE):
        return Marks()
    stored = root.read_json_as(
        PLACE, _Stored, hint="restore it from a copy: nothing can rebuild it"
    )
    return Marks({(mark.first, mark.second): mark for mark in stored.pairs})


def mark_of(
    content_of: Callable[[str], str],
    video: str,
    match: str,
    verdict: Verdict,
    *,
    names: tuple[str, str] | None = None,
    since: str = "",
    by: str = LOCAL_USER,
) -> Mark:
    """A mark of two videos, see `contents`; `keep_marks` keeps it.

    names: what to call them; default is `video` and `match`
    since: ISO 8601; "" for now
    by: who marks them

    Raises: DataError, and ArgumentError for two equal contents.
    """
    shown = names or (video, match)
    name_of = {content_of(video): shown[0], content_of(match): shown[1]}
    if len(name_of) == 1:
        raise ArgumentError(
            f"pairs: {shown[0]} and {shown[1]} have the same content; a mark needs two "
            "different files"
        )

    first, second = sorted(name_of)
    return Mark(
        first=first,
        second=second,
        verdict=verdict,
        names=(printable(name_of[first]), printable(name_of[second])),
        since=since or datetime.now(UTC).isoformat(timespec="seconds"),
        by=by,
    )


def keep_marks(root: DataRoot, marks: Iterable[Mark], *, without: Iterable[Mark] = ()) -> Marks:
    """Keep marks, all or none; each replaces that of the same contents. Returns the marks before.

    without: those that go
    """
    with root.lock(MARKS_LOCK):
        before = read_marks(root)
        removed = set(without)
        kept = {key: mark for key, mark in before.items() if mark not in removed}
        _write(root, kept | {(mark.first, mark.second): mark for mark in marks})

    return before


def _require_not_forgotten(root: DataRoot, marks: Iterable[Mark]) -> None:
    """Raise VideoError `unknown_id` for a mark that names a forgotten video: marks are also made by
    digest, and come back from tables that were written before."""
    forgotten = forgotten_digests(root)
    for name in chain.from_iterable(mark.names for mark in marks):
        if name_digest(name) in forgotten:
            raise VideoError(
                "unknown_id",
                f"pairs: {name} was forgotten, so it can no longer be marked; leave it out",
            )


def keep_new_marks(
    root: DataRoot, make: Callable[["FileDigests"], list[Mark]]
) -> tuple[list[Mark], Marks]:
    """Keep the marks that `make` gives, all or none. Returns them, and the marks before.

    make: called twice, with the digests of files that it has read: first without the lock, so that
        nobody waits while files are read, then under the lock, so that no video is marked that was
        forgotten meanwhile
    """
    digests = FileDigests()
    make(digests)
    with root.lock(MARKS_LOCK):
        marks = make(digests)
        _require_not_forgotten(root, marks)
        before = keep_marks(root, marks)

    return marks, before


def mark(root: DataRoot, video: str, match: str, verdict: Verdict, **values: Any) -> Mark:
    """Keep a mark of two videos; it replaces an earlier one.

    values: names and by, as of `mark_of`
    """

    def make(digests: FileDigests) -> list[Mark]:
        return [mark_of(contents(root, digests), video, match, verdict, **values)]

    (new_mark,), _ = keep_new_marks(root, make)
    return new_mark


def unmark(root: DataRoot, video: str, match: str) -> Mark | None:
    """Forget the mark of two videos, in either order. Returns it; None where there was none. Raises
    DataError."""
    content_of = contents(root)
    removed = read_marks(root).of(content_of(video), content_of(match))
    if removed is not None:
        keep_marks(root, (), without=[removed])
    return removed


def is_digest(name: str) -> bool:
    """Whether a name is the SHA-256 of a file instead of an id."""
    return re.fullmatch(r"[0-9a-f]{64}", name) is not None


class FileDigests(dict[str, str]):
    """The SHA-256 of files that were read."""

    def __missing__(self, name: str) -> str:
        """Raises OSError and ValueError, as `file_sha256` does."""
        self[name] = file_sha256(Path(name))
        return self[name]


def contents(root: DataRoot, digests: FileDigests | None = None) -> Callable[[str], str]:
    """A function from a name to the SHA-256 of its content. A name is that of a video of the
    collection, a file, or the digest itself; for any other the function raises DataError.

    digests: of files outside the collection, which are not read again
    """
    of_file = FileDigests() if digests is None else digests

    @cache
    def collection() -> tuple[Mapping[str, str], CollectionMetadata]:
        table = manifest_table(root)
        shards = dict(zip(table["video_id"].to_pylist(), table["shard"].to_pylist(), strict=True))
        return shards, CollectionMetadata(root, shards)

    @cache
    def content_of(name: str) -> str:
        if is_digest(name):
            return name
        shards, metadata = collection()
        if name in shards:
            if metadata.of(name).path is None:
                raise DataError(
                    f"pairs: {name} has not been probed, or cannot be read; run `hapvr "
                    "download` first"
                )

            return metadata.of(name).sha256

        try:
            return of_file[name]
        except (OSError, ValueError) as error:
            raise DataError(
                f"pairs: {name!r:.200} is neither a video of the collection nor a readable file "
                f"({file_problem(error)}); expected an id such as SOURCE/NAME.mp4, or a path"
            ) from error

    return content_of


def _write(root: DataRoot, marks: Mapping[tuple[str, str], Mark]) -> None:
    pairs = [asdict(marks[key]) for key in sorted(marks)]
    root.write_json(PLACE, {"pairs": pairs, "sha256": digest_of(pairs)})


def _key(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first < second else (second, first)
