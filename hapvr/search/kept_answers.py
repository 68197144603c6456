"""Answers of the search service that stay for a while, with small pictures of what was searched
for, and its features.

answers/<job>.json    one answer, as it was given, with its digest: a flipped bit is no answer
"""

import json
import re
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Base64Bytes, Field, FiniteFloat, TypeAdapter

from hapvr.data.filesystem import DataRoot
from hapvr.errors import DataError
from hapvr.files import digest_of
from hapvr.search.kept_frames import KeptFrames, read_frames
from hapvr.search.match import SearchAnswer

FOLDER = "answers"
MAX_PICTURES = 60
DAY_S = 86_400
_JOB = re.compile(r"[\w-]{16}", re.ASCII)
_ANSWER = TypeAdapter(SearchAnswer)
HINT = "remove the file; the search can be repeated"


@dataclass(frozen=True, kw_only=True)
class KeptAnswer:
    """A search that was answered. name: of its query. since: when it was asked for, ISO 8601,
    UTC."""

    job: str
    name: str
    since: str
    sha256: str
    """Of the query's file; "" of one from a URL."""

    answer: SearchAnswer
    pictures: Mapping[float, bytes]
    """Second of the query -> its frame as JPEG; empty for a query of the collection."""

    frames: KeptFrames | None = None
    """For a closer look at pairs; None for a query of the collection."""


@dataclass(frozen=True, kw_only=True)
class _Record:
    """What is stored of a `KeptAnswer`."""

    name: str
    since: str
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
    answer: SearchAnswer
    pictures: list[tuple[FiniteFloat, Base64Bytes]]
    frames: dict[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """The file of an answer. record: see `_Record`. sha256: of the record."""

    record: dict[str, Any]
    sha256: str

    def __post_init__(self) -> None:
        if self.sha256 != digest_of(self.record):
            raise ValueError("this is not the answer that was written")


_RECORD = TypeAdapter(_Record)


def is_job(name: str) -> bool:
    """Whether a name is one that the service gives to searches, which is safe as a file's name."""
    return _JOB.fullmatch(name) is not None


def keep_answer(root: DataRoot, kept: KeptAnswer) -> None:
    """Write an answer. Raises DataError where the data root cannot be written."""
    pictures = [[second, b64encode(jpeg).decode()] for second, jpeg in kept.pictures.items()]
    answer = _ANSWER.dump_python(kept.answer, mode="json")
    record = {
        "name": kept.name,
        "since": kept.since,
        "sha256": kept.sha256,
        "answer": answer,
        "pictures": pictures,
        "frames": None if kept.frames is None else kept.frames.record(),
    }
    stored = {"record": record, "sha256": digest_of(record)}
    with root.write(_place(kept.job)) as stream:
        stream.write(json.dumps(stored).encode())


def read_answer(root: DataRoot, job: str) -> KeptAnswer | None:
    """The answer of a search; None where it is not kept, or not any more. Raises DamagedError for
    a file that is something else, DataError for one that cannot be read."""
    if not is_job(job) or not root.exists(_place(job)):
        return None
    stored = root.read_json_as(_place(job), _Stored, hint=HINT)
    with root.corruption_errors(_place(job), hint=HINT):
        record = _RECORD.validate_python(stored.record)
        frames = None if record.frames is None else read_frames(record.frames)

    return KeptAnswer(
        job=job,
        name=record.name,
        since=record.since,
        sha256=record.sha256,
        answer=record.answer,
        pictures=dict(record.pictures),
        frames=frames,
    )


def kept_jobs(root: DataRoot) -> list[str]:
    """Jobs whose answers are kept."""
    names = [file.removesuffix(".json") for file in root.list_files(FOLDER)]
    return [name for name in names if is_job(name)]


def is_old(root: DataRoot, job: str, *, days: float) -> bool:
    """Whether an answer was kept for that long, or nobody knows since when."""
    (written_ns,) = root.modified_ns(_place(job))
    return written_ns / 1e9 <= time.time() - days * DAY_S


def remove_old_answers(root: DataRoot, *, days: float) -> int:
    """Remove what was kept for that long; returns how many there were."""
    old = [job for job in kept_jobs(root) if is_old(root, job, days=days)]
    for job in old:
        remove_answer(root, job)
    return len(old)


def remove_answer(root: DataRoot, job: str) -> None:
    """Remove the answer of a search, if it is there."""
    root.delete(_place(job))


def forget_answers(root: DataRoot, values: frozenset[str]) -> None:
    """Remove the answers that name one of these ids or contents, or were asked for by it; and
    those that cannot be read, as nobody knows what they hold."""
    for job in kept_jobs(root):
        if _names(root, job, values):
            remove_answer(root, job)


def _names(root: DataRoot, job: str, values: frozenset[str]) -> bool:
    try:
        kept = read_answer(root, job)
    except DataError:
        return True

    if kept is None:
        return False
    named = {kept.name, kept.sha256, kept.answer.query_id}
    named |= {match.reference for match in kept.answer.matches}
    return not values.isdisjoint(named)


def seconds_to_keep(answer: SearchAnswer) -> list[float]:
    """The seconds of the query that a page shows: the middle of each common part."""
    seconds = [
        (part.query_start_s + part.query_end_s) / 2
        for match in answer.matches
        for part in match.segments
    ]
    return list(dict.fromkeys(seconds))[:MAX_PICTURES]


def nearest_pictures(
    jpegs: Sequence[bytes], times_s: Sequence[float], seconds: Sequence[float]
) -> dict[float, bytes]:
    """The frame that is nearest to each second, by its own time."""
    pictures: dict[float, bytes] = {}
    for second in seconds:
        row = min(range(len(times_s)), key=lambda row: abs(times_s[row] - second))
        pictures[times_s[row]] = jpegs[row]

    return pictures


def _place(job: str) -> str:
    return f"{FOLDER}/{job}.json"
