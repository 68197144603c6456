"""What people say about pairs of videos: `match` or `not a match`, kept forever by the content of
the files.

marks/pairs.json    a row per pair; one JSON object, replaced as a whole under a lock

They travel as CSV, a line per pair. Other columns, as a labelling tool writes them, are passed
over. Pairs to be judged become tasks of Label Studio: JSON to import there, whose export as CSV is
what `hapvr pairs import` reads.
"""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import manifest_table
from hapvr.errors import ArgumentError, DataError
from hapvr.files import digest_of, file_sha256, require_regular
from hapvr.search.collection import CollectionMetadata
from hapvr.search.match import printable
from hapvr.tables import export_csv
from hapvr.video.sources import text_of_path

PLACE = "marks/pairs.json"
LOCAL_USER = "local user"
"""Who marks pairs on the command line, and in a service without tokens."""

Verdict = Literal["match", "not_a_match"]
Pair = tuple[str, str, str | None, float | None]
"""Ids, or the file of a query; verdict of a search; probability of a match, None where nobody
knows."""

NEEDED = ("first", "second", "verdict")
COLUMNS = (*NEEDED, "first_name", "second_name", "since", "by")
VERDICTS: dict[str, Verdict] = {"match": "match", "not a match": "not_a_match"}
"""What a line may say; - and _ count as spaces."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """first, second: what the two videos contain, their SHA-256 in hexadecimal, first < second.
    names: what they were called when they were marked, in the same order. since: ISO 8601, UTC. by:
    the name of who said it."""

    first: str
    second: str
    verdict: Verdict
    names: tuple[str, str]
    since: str
    by: str

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

    def of(self, one: str, other: str) -> Mark | None:
        """The mark of two contents, in either order; None where there is none."""
        return self.get(_key(one, other))

    def verdict(self, one: str, other: str) -> Verdict | None:
        """What was said about two contents, in either order; None where nothing was."""
        return found.verdict if (found := self.of(one, other)) else None

    def verdicts(self) -> list[list[str]]:
        """What was said, in an order that says nothing: for fingerprints."""
        return sorted([mark.first, mark.second, mark.verdict] for mark in self.values())

    def rows(self) -> list[Mark]:
        """All marks, the oldest first."""
        return sorted(self.values(), key=lambda mark: (mark.since, mark.first, mark.second))


def read_marks(root: DataRoot) -> Marks:
    """The marks of a data root; none where nobody marked a pair. Raises DamagedError for a file
    that cannot be read."""
    if not root.exists(PLACE):
        return Marks()
    stored = root.read_json_as(
        PLACE, _Stored, hint="restore it from a copy: nothing can make it again"
    )
    return Marks({(mark.first, mark.second): mark for mark in stored.pairs})


def mark_of(
    content_of: Callable[[str], str],
    one: str,
    other: str,
    verdict: Verdict,
    *,
    names: tuple[str, str] | None = None,
    since: str = "",
    by: str = LOCAL_USER,
) -> Mark:
    """What somebody says about two videos, see `contents`; it is kept by `keep_marks`. names: what
    to call them; default is one and other. since: ISO 8601; "" for now. by: who says it. Raises
    DataError, and ArgumentError for two equal contents."""
    shown = names or (one, other)
    named = dict(zip(map(content_of, (one, other)), shown, strict=True))
    if len(named) == 1:
        raise ArgumentError(
            f"pairs: {shown[0]} and {shown[1]} have the same content; a mark needs two "
            "different files"
        )
    first, second = sorted(named)
    names = (printable(named[first]), printable(named[second]))
    since = since or datetime.now(UTC).isoformat(timespec="seconds")
    return Mark(first=first, second=second, verdict=verdict, names=names, since=since, by=by)


def keep_marks(root: DataRoot, made: Iterable[Mark], *, without: Iterable[Mark] = ()) -> Marks:
    """Keep marks, all or none; each replaces what was said of the same contents before. without:
    those that go. Returns the marks before."""
    with root.lock("marks"):
        before, gone = read_marks(root), set(without)
        kept = {key: one for key, one in before.items() if one not in gone}
        _write(root, kept | {(one.first, one.second): one for one in made})
    return before


def mark(root: DataRoot, one: str, other: str, verdict: Verdict, **said: Any) -> Mark:
    """Keep what somebody says about two videos; it replaces what was said before. said: names and
    by, as of `mark_of`."""
    made = mark_of(contents(root), one, other, verdict, **said)
    keep_marks(root, [made])
    return made


def unmark(root: DataRoot, one: str, other: str) -> Mark | None:
    """Forget what was said about two videos, in either order. Returns it; None where nothing was.
    Raises DataError."""
    key = _key(*map(contents(root), (one, other)))
    if (gone := read_marks(root).get(key)) is not None:
        keep_marks(root, (), without=[gone])
    return gone


def is_digest(name: str) -> bool:
    """Whether a name is the SHA-256 of a file instead of an id."""
    return re.fullmatch(r"[0-9a-f]{64}", name) is not None


def contents(root: DataRoot) -> Callable[[str], str]:
    """Gives the SHA-256 of what a name stands for: a video of the collection, a file, or the digest
    itself; else a DataError."""

    @cache
    def known() -> tuple[Mapping[str, str], CollectionMetadata]:
        table = manifest_table(root)
        shards = dict(zip(table["video_id"].to_pylist(), table["shard"].to_pylist(), strict=True))
        return shards, CollectionMetadata(root, shards)

    @cache
    def content_of(name: str) -> str:
        if is_digest(name):
            return name
        shards, metadata = known()
        if name in shards:
            if metadata.of(name).path is None:
                raise DataError(
                    f"pairs: {name} has not been probed, or cannot be read; run `hapvr "
                    "download` first"
                )
            return metadata.of(name).sha256
        try:
            return file_sha256(Path(name))
        except (OSError, ValueError) as error:
            said = (
                f"{name!r:.200} is neither a video of the collection nor a readable file ({error})"
            )
            raise DataError(
                f"pairs: {said}; wanted an id such as SOURCE/NAME.mp4, or a path"
            ) from error

    return content_of


def write_marks(marks: Marks, path: Path) -> None:
    """Write all marks, the oldest first: the two SHA-256, the verdict, names, when and by whom."""
    rows = [
        (row.first, row.second, row.verdict, *row.names, row.since, row.by) for row in marks.rows()
    ]
    export_csv(COLUMNS, (dict(zip(COLUMNS, row, strict=True)) for row in rows), path)


def read_marks_table(root: DataRoot, path: Path) -> list[Mark]:
    """The marks of a CSV file with the columns NEEDED, whose videos are as in `mark_of`; the rest
    of COLUMNS may lack. Raises DataError for a file that is no such table, and where any line
    cannot be used, naming the first ones."""
    made: dict[tuple[str, str], Mark] = {}
    bad, content_of = list[str](), contents(root)
    try:
        require_regular(path)
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.DictReader(file, restval="", strict=True)
            named = Counter(lines.fieldnames or ())
            if wrong := [
                name for name in COLUMNS if named[name] > 1 or (name in NEEDED and not named[name])
            ]:
                raise ValueError(f"it has no column {', '.join(wrong)}, or has it twice")
            for row in lines:
                try:
                    mark = _mark(content_of, row)
                    if made.setdefault((mark.first, mark.second), mark).verdict != mark.verdict:
                        raise ValueError("it contradicts an earlier line")
                except (ArgumentError, DataError, ValueError) as error:
                    bad.append(f"line {lines.line_num}: {error}")
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(
            f"{path}: {error}; wanted a CSV file with the columns {', '.join(NEEDED)}"
        ) from error
    if bad:
        raise DataError(
            f"{path}: {len(bad)} lines cannot be used, so nothing was marked: {'; '.join(bad[:5])}"
        )
    return list(made.values())


def _mark(content_of: Callable[[str], str], row: dict[str, str]) -> Mark:
    """The mark of a line. Raises as `mark_of` does, and ValueError."""
    one, other, said = (row[name] for name in NEEDED)
    if (verdict := VERDICTS.get(re.sub("[-_]", " ", said.strip().lower()))) is None:
        raise ValueError(f"the verdict is {said!r:.80}; wanted {' or '.join(VERDICTS)}")
    if since := row.get("since", ""):
        datetime.fromisoformat(since)
    names = (row.get("first_name") or one, row.get("second_name") or other)
    return mark_of(
        content_of, one, other, verdict, names=names, since=since, by=row.get("by") or LOCAL_USER
    )


def label_studio_tasks(
    pairs: Iterable[Pair], path_of: Callable[[str], Path | None]
) -> list[dict[str, Any]]:
    """A task for each pair of which both videos have a file, as it serves them with / as the root
    of local files. It proposes a verdict unless that is unsure."""
    tasks = []
    for first, second, verdict, probability in pairs:
        paths = {"first_video": path_of(first), "second_video": path_of(second)}
        videos = {
            name: f"/data/local-files/?d={quote(text_of_path(path)[1:])}"
            for name, path in paths.items()
            if path
        }
        choice = {"from_name": "verdict", "to_name": "second", "type": "choices"}
        said = {"match": "match", "no match": "not a match"}.get(verdict or "")
        predictions = [{"score": probability, "result": [choice | {"value": {"choices": [said]}}]}]
        if len(videos) == len(paths):
            task = {"data": {"first": first, "second": second, **videos}}
            tasks.append(task | {"predictions": predictions} if said else task)
    return tasks


def _write(root: DataRoot, marks: Mapping[tuple[str, str], Mark]) -> None:
    pairs = [asdict(marks[key]) for key in sorted(marks)]
    root.write_json(PLACE, {"pairs": pairs, "sha256": digest_of(pairs)})


def _key(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)
