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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import forgotten_digests, manifest_table, name_digest
from hapvr.errors import ArgumentError, DataError, VideoError
from hapvr.files import digest_of, file_problem, file_sha256, require_regular
from hapvr.search.collection import CollectionMetadata
from hapvr.search.match import printable
from hapvr.tables import export_csv
from hapvr.video.sources import text_of_path

PLACE = "marks/pairs.json"
MARKS_LOCK = "marks"
"""Held by whoever writes marks, from the look at the videos that they name."""
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
    if not root.exists(PLACE):
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
    """Marks are also made by digest, and come back from tables that were written before.

    Raises: VideoError `unknown_id` for one that names a forgotten video.
    """
    forgotten = forgotten_digests(root)
    for name in chain.from_iterable(mark.names for mark in marks):
        if name_digest(name) in forgotten:
            raise VideoError(
                "unknown_id",
                f"pairs: {name} was forgotten, so nothing is said of it any more; leave it out",
            )


def mark(root: DataRoot, video: str, match: str, verdict: Verdict, **values: Any) -> Mark:
    """Keep a mark of two videos; it replaces an earlier one.

    values: names and by, as of `mark_of`
    """
    digests = FileDigests()
    mark_of(contents(root, digests), video, match, verdict, **values)  # nobody waits for files
    with root.lock(MARKS_LOCK):  # a video that is forgotten meanwhile is not marked
        new = mark_of(contents(root, digests), video, match, verdict, **values)
        _require_not_forgotten(root, [new])
        keep_marks(root, [new])

    return new


def import_marks(root: DataRoot, path: Path) -> tuple[list[Mark], Marks]:
    """Keep the marks of a CSV file, see `read_marks_table`. Returns them, and the marks before."""
    digests = FileDigests()
    read_marks_table(root, path, digests)  # nobody waits for files
    with root.lock(MARKS_LOCK):  # a video that is forgotten meanwhile is not marked
        new = read_marks_table(root, path, digests)
        _require_not_forgotten(root, new)
        before = keep_marks(root, new)

    return new, before


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
    """Gives the SHA-256 of what a name stands for: a video of the collection, a file, or the digest
    itself; else a DataError.

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


def write_marks(marks: Marks, path: Path) -> None:
    """Write all marks, the oldest first: the two SHA-256, the verdict, names, when and by whom."""
    rows = [
        (row.first, row.second, row.verdict, *row.names, row.since, row.by) for row in marks.rows()
    ]
    export_csv(COLUMNS, (dict(zip(COLUMNS, row, strict=True)) for row in rows), path)


def read_marks_table(root: DataRoot, path: Path, digests: FileDigests | None = None) -> list[Mark]:
    """The marks of a CSV file with the columns NEEDED, whose videos are as in `mark_of`; the rest
    of COLUMNS may lack. Raises DataError for a file that is not such a table, and where any line
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
        if len(videos) < len(paths):
            continue
        task: dict[str, Any] = {"data": {"first": first, "second": second, **videos}}
        proposed = {"match": "match", "no match": "not a match"}.get(verdict or "")
        if proposed:
            task["predictions"] = [_prediction(proposed, probability)]
        tasks.append(task)

    return tasks


def _prediction(verdict: str, probability: float | None) -> dict[str, Any]:
    """The choice that a task proposes."""
    choice = {
        "from_name": "verdict",
        "to_name": "second",
        "type": "choices",
        "value": {"choices": [verdict]},
    }
    return {"score": probability, "result": [choice]}


def _write(root: DataRoot, marks: Mapping[tuple[str, str], Mark]) -> None:
    pairs = [asdict(marks[key]) for key in sorted(marks)]
    root.write_json(PLACE, {"pairs": pairs, "sha256": digest_of(pairs)})


def _key(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first < second else (second, first)
