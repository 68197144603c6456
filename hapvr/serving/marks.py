"""Pairs of videos: the marks that people give them, and how similar their frames are."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import anyio
import numpy as np
from fastapi import APIRouter, Query
from pydantic import BaseModel, model_validator

from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import forgotten_of
from hapvr.errors import ArgumentError, DataError, VideoError
from hapvr.scorer.access import Deadline
from hapvr.scorer.segments import Segment
from hapvr.search import marks as stored
from hapvr.search.collection import VideoMetadata
from hapvr.search.match import Query as SearchQuery
from hapvr.serving import jobs
from hapvr.serving.collection import OpenIndex
from hapvr.serving.refusals import Refusal
from hapvr.serving.service import (
    HasPathsOf,
    IndexOf,
    MarkerOf,
    Name,
    SearchedFor,
    Service,
    ServiceOf,
    SomeName,
    Values,
)

MAX_MATRIX_CELLS = 250_000
"""Frame similarities of a pair; of longer videos every n-th frame is compared."""
router = APIRouter()


class PairOfVideos(Values):
    """query: an id, or job: the search whose query is meant; reference: an id."""

    query: SomeName | None = None
    job: SomeName | None = None
    reference: SomeName

    @model_validator(mode="after")
    def _check_query(self) -> PairOfVideos:
        if (self.query is None) == (self.job is None):
            raise ValueError("expected one of query (an id) and job (of a search)")
        return self


class MarkedPair(PairOfVideos):
    """mark: None takes a mark back. The SHA-256 of a file is taken for an id, so that every mark of
    GET /pairs can be taken back. name: what to call the query then. seen: what the asker knows of
    the pair, "" for no mark; where others have said something else by now, nothing is changed, nor
    where they have said the same."""

    seen: stored.Verdict | Literal[""] | None = None
    name: Name | None = None
    mark: Literal["match", "not_a_match"] | None


@dataclass(frozen=True, kw_only=True)
class ShownMark(stored.Mark):
    """in_collection: whether both names are those of videos that can be compared. paths: where the
    two files are stored now; "" where that is not known, and for those who may only read."""

    in_collection: bool
    paths: tuple[str, str]


class Marks(BaseModel):
    """The oldest first."""

    marks: list[ShownMark]


class Marked(BaseModel):
    """mark: the present one; None where it was taken back."""

    mark: stored.Verdict | None


class Matrix(BaseModel):
    """values: a row per frame of the query, a column per frame of the reference. threshold: from
    which on frames are the same."""

    query_times_s: list[float]
    reference_times_s: list[float]
    threshold: float
    segments: list[Segment]
    values: list[list[float]]
    mark: str


@router.get("/pairs")
def marks(service: ServiceOf, has_paths: HasPathsOf) -> Marks:
    """All marks, the oldest first. in_collection: whether both names are those of videos that can
    be compared."""
    index: OpenIndex | None = None
    with suppress(DataError):  # marks are known without one
        index = service.collection.current()

    shown = []
    for row in stored.read_marks(service.project.root).rows():
        first = _video(index, row.names[0], row.first)
        second = _video(index, row.names[1], row.second)
        paths = (_path(first, has_paths=has_paths), _path(second, has_paths=has_paths))
        in_collection = first is not None and second is not None
        shown.append(ShownMark(**asdict(row), in_collection=in_collection, paths=paths))

    return Marks(marks=shown)


def _video(index: OpenIndex | None, name: str, digest: str) -> VideoMetadata | None:
    """The video of the index that has this name and these bytes; None where there is none."""
    if index is None or name not in index.searcher.collection.shard_of:
        return None
    metadata = index.metadata(name)
    return metadata if metadata.sha256 == digest else None


def _path(video: VideoMetadata | None, *, has_paths: bool) -> str:
    """Where the file of a video is stored now, for callers who may see paths."""
    return (video.path_text or "") if video is not None and has_paths else ""


@router.patch("/pairs")
def mark(asked: MarkedPair, service: ServiceOf, index: IndexOf, caller: MarkerOf) -> Marked:
    """Say that two videos match or do not, or take that back."""
    first = _first_of(asked, service, index)
    second = _digest(index, asked.reference)
    root = service.project.root
    with root.lock(stored.MARKS_LOCK):
        present = stored.read_marks(root).of(first.sha256, second)
        if asked.seen is not None and asked.mark == _verdict_of(present):
            return Marked(mark=asked.mark)

        _require_seen(present, asked.seen)
        if asked.mark is None:
            stored.unmark(root, first.sha256, second)
        else:
            names = (asked.name or first.name, asked.reference)
            for name in (first.video_id, asked.reference):
                if name and not stored.is_digest(name):
                    _require_listed(root, index, name)

            stored.mark(root, first.sha256, second, asked.mark, names=names, by=caller.name)

    return Marked(mark=asked.mark)


def _verdict_of(mark: stored.Mark | None) -> stored.Verdict | None:
    return None if mark is None else mark.verdict


def _require_seen(present: stored.Mark | None, seen: str | None) -> None:
    """Raise Refusal `marked_meanwhile` where the pair has another mark than the asker has seen."""
    verdict = _verdict_of(present) or ""
    if seen is None or verdict == seen:
        return
    is_named = present is not None and present.by != stored.LOCAL_USER
    who = present.by if present is not None and is_named else "somebody else"
    says = {"match": "a match", "not_a_match": "not a match", "": "not marked any more"}[verdict]
    raise Refusal(
        409,
        "marked_meanwhile",
        f"pairs: {who} has changed the mark meanwhile: the pair is {says}, and that was kept; "
        "mark it again if you do not agree",
    )


def _first_of(asked: MarkedPair, service: Service, index: OpenIndex) -> SearchedFor:
    """The first video of a pair that is to be marked.

    Raises:
        VideoError: `unknown_id`.
        ArgumentError: for the query of a search that is not a file.
        Refusal: `unknown_job`.
    """
    if asked.query is not None:
        digest = _digest(index, asked.query)
        return SearchedFor(name=asked.query, sha256=digest, video_id=asked.query)

    first = service.searched_for(asked.job or "")
    if not first.sha256:
        raise ArgumentError(
            "pairs: the query of this search is not a file that a mark could be kept for; fetch it"
        )

    return first


def _require_listed(root: DataRoot, index: OpenIndex, video_id: str) -> None:
    """Raise VideoError `unknown_id` for a video that the index does not have, or that was
    forgotten since it was opened."""
    index.metadata(video_id)
    if forgotten_of(root, [video_id], index.searcher.collection.shard_of):
        raise VideoError(
            "unknown_id",
            f"pairs: {video_id} was forgotten, so nothing is said of it any more; check its id",
        )


def _digest(index: OpenIndex, name: str) -> str:
    """The SHA-256 of the file of a video, or the name where it is one."""
    return name if stored.is_digest(name) else index.metadata(name).sha256


@router.get("/pairs/matrix")
async def matrix(
    service: ServiceOf, index: IndexOf, pair: Annotated[PairOfVideos, Query()]
) -> Matrix:
    """The similarity of frames as numbers: a row per frame of the query, a column per frame of the
    reference; and what people said of the pair."""
    deadline = Deadline(jobs.SEARCH_TIMEOUT_S)

    def compare() -> Matrix:
        query = _compared_query(service, index, pair)
        reference = index.metadata(pair.reference)
        verdict = stored.read_marks(service.project.root).verdict(query.sha256, reference.sha256)
        frames = index.searcher.matrix(
            query, pair.reference, max_cells=MAX_MATRIX_CELLS, deadline=deadline
        )
        values = np.round(frames["values"], 3).tolist()
        return Matrix.model_validate(frames | {"values": values, "mark": verdict or ""})

    return await anyio.to_thread.run_sync(compare, limiter=service.reading)


def _compared_query(service: Service, index: OpenIndex, pair: PairOfVideos) -> SearchQuery:
    """The query of a pair: a video, or what a search was for, of which the answer may be left."""
    if pair.job is None:
        return index.read_id(pair.query or "")
    job = service.jobs.find(pair.job)
    return service.kept.query(pair.job, index) if job is None else job.read_query()
