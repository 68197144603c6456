"""Answers of the search service that stay for a while, with small pictures of what was searched
for, and its features.

answers/<job>.json    one answer, as it was given
"""

import json
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hapvr.data.filesystem import DataRoot
from hapvr.errors import DamagedError
from hapvr.search.kept_frames import KeptFrames, read_frames
from hapvr.search.match import SearchAnswer

FOLDER = "answers"
MAX_PICTURES = 60
DAY_S = 86_400
_JOB = re.compile(r"[\w-]{16}", re.ASCII)
_ANSWER = TypeAdapter(SearchAnswer)


@dataclass(frozen=True, kw_only=True)
class KeptAnswer:
    """A search that was answered. name: of its query."""

    job: str
    name: str
    sha256: str
    """Of the query's file; "" of one from a URL."""

    answer: SearchAnswer
    pictures: Mapping[float, bytes]
    """Second of the query -> its frame as JPEG; empty for a query of the collection."""

    frames: KeptFrames | None = None
    """For a closer look at pairs; None for a query of the collection."""


def is_job(name: str) -> bool:
    """Whether a name is one that the service gives to searches, which is safe as a file's name."""
    return _JOB.fullmatch(name) is not None


def keep_answer(root: DataRoot, kept: KeptAnswer) -> None:
    """Write an answer. Raises DataError where the data root cannot be written."""
    pictures = [[second, b64encode(jpeg).decode()] for second, jpeg in kept.pictures.items()]
    answer = _ANSWER.dump_python(kept.answer, mode="json")
    record = {
        "name": kept.name,
        "sha256": kept.sha256,
        "answer": answer,
        "pictures": pictures,
        "frames": None if kept.frames is None else kept.frames.record(),
    }
    with root.write(_place(kept.job)) as stream:
        stream.write(json.dumps(record, ensure_ascii=False).encode())


def read_answer(root: DataRoot, job: str) -> KeptAnswer | None:
    """The answer of a search; None where it is not kept, or not any more. Raises DamagedError for
    a file that is something else."""
    if not is_job(job) or not root.exists(_place(job)):
        return None
    with root.open(_place(job)) as stream:
        text = stream.read()
    try:
        record = json.loads(text)
        pictures = {float(second): b64decode(jpeg) for second, jpeg in record["pictures"]}
        frames = record.get("frames")
        answer = _ANSWER.validate_python(_without_computed(record["answer"]))
        return KeptAnswer(
            job=job,
            name=record["name"],
            sha256=record["sha256"],
            answer=answer,
            pictures=pictures,
            frames=None if frames is None else read_frames(frames),
        )
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        hint = "Remove the file; the search can be repeated"
        raise DamagedError(f"answers: {_place(job)} is damaged. {hint}") from error


def _without_computed(answer: dict[str, Any]) -> dict[str, Any]:
    """Without what follows from the rest."""
    matches = [
        {name: value for name, value in match.items() if name != "offset_s"}
        for match in answer["matches"]
    ]
    rest = {name: value for name, value in answer.items() if name != "headline"}
    return rest | {"matches": matches}


def kept_jobs(root: DataRoot) -> list[str]:
    """Jobs whose answers are kept."""
    names = [file.removesuffix(".json") for file in root.list_files(FOLDER)]
    return [name for name in names if is_job(name)]


def remove_old_answers(root: DataRoot, *, days: float) -> int:
    """Remove what was kept longer than that; returns how many there were."""
    jobs = kept_jobs(root)
    written_ns = root.modified_ns(*map(_place, jobs)) if jobs else []
    limit_s = time.time() - days * DAY_S
    old = [job for job, time_ns in zip(jobs, written_ns, strict=True) if time_ns / 1e9 < limit_s]
    for job in old:
        root.delete(_place(job))
    return len(old)


def forget_answers(root: DataRoot, values: frozenset[str]) -> None:
    """Remove the answers that name one of these ids or contents, or were asked for by it; and
    those that cannot be read, as nobody knows what they hold."""
    for job in kept_jobs(root):
        if _names(root, job, values):
            root.delete(_place(job))


def _names(root: DataRoot, job: str, values: frozenset[str]) -> bool:
    try:
        kept = read_answer(root, job)
    except DamagedError:
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
