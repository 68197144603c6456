"""Answers of searches as they are shown now: with the present marks, and where files are stored."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel

from hapvr.search.marks import Mark, Marks
from hapvr.search.match import Match, SearchAnswer, verdict_of
from hapvr.serving.collection import OpenIndex
from hapvr.steps.searcher import SearchOptions
from hapvr.video.sources import is_picture


class Place(BaseModel):
    """Where the file of a video is stored now. path: "" for those who may only read. duration_s:
    None where the file does not say."""

    path: str
    duration_s: float | None


def is_still(name: str) -> bool:
    """Whether a query of this name is a picture, which has neither a length nor parts."""
    return is_picture(Path(name))


def places_of(
    index: OpenIndex | None, answer: SearchAnswer, *, has_paths: bool
) -> dict[str, Place]:
    """The present place of every video of an answer that the index still has."""
    places: dict[str, Place] = {}
    if index is None:
        return places
    for match in answer.matches:
        if match.reference in index.searcher.collection.shard_of:
            row = index.video_row(match.reference, has_paths=has_paths)
            places[match.reference] = Place(path=row["path"], duration_s=row["duration_s"])

    return places


def with_marks(
    answer: SearchAnswer, query_sha256: str, marks: Marks, digest_of: Callable[[str], str]
) -> SearchAnswer:
    """An answer with the present marks: a mark counts from the moment it is made until it is taken
    back.

    digest_of: the SHA-256 of the file of a video; "" for one that is not known any more."""
    matches = []
    for match in answer.matches:
        digest = digest_of(match.reference)
        mark = marks.of(query_sha256, digest) if query_sha256 and digest else None
        matches.append(_marked(match, mark))

    return replace(answer, matches=tuple(matches))


def _marked(match: Match, mark: Mark | None) -> Match:
    """A match with this mark, or with none."""
    verdict = "" if mark is None else mark.verdict
    if verdict == match.mark:
        return match
    return replace(
        match,
        mark=verdict,
        marked_by="" if mark is None else mark.by,
        marked_since="" if mark is None else mark.since,
        verdict=verdict_of(match.probability, mark=verdict, same_file=match.same_file),
    )


def reason_of(lines: Sequence[str], video_id: str, options: SearchOptions) -> str:
    """What the lines of `explain` come to, in a sentence."""
    outcome = lines[1].partition(f"{video_id}: ")[2]
    if outcome.startswith("left out: people"):
        return "Somebody has marked the two as not a match, so it is left out."
    if outcome.startswith("no candidate"):
        return (
            "Other videos have far more pictures in common with yours, so this one was not "
            "compared closely; or it is outside of the folder that was asked for."
        )
    if outcome.startswith("left out: its probability"):
        least = f"{100 * options.min_probability:g} %"
        return f"It was compared, but a match is less likely than the {least} that were asked for."
    if outcome.startswith("left out"):
        return (
            f"It was compared, but at least {options.top} other videos are more alike; ask for "
            "more matches to see it."
        )

    return "It is in the list of the answer."
