"""Pairs of videos: what people say of them, how similar their frames are, what watch lists have
found, groups of copies."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
import numpy as np
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field, model_validator

from hapvr.errors import ArgumentError, DataError
from hapvr.scorer.access import Deadline
from hapvr.scorer.segments import Segment
from hapvr.search import marks as stored
from hapvr.search.duplicates import KINDS, Kind
from hapvr.serving import jobs
from hapvr.serving.collection import OpenIndex
from hapvr.serving.jobs import DuplicateJobState
from hapvr.serving.service import (
    Count,
    IndexOf,
    MarkerOf,
    Name,
    Offset,
    PlaceOf,
    ServiceOf,
    SomeName,
    Values,
)
from hapvr.serving.uploads import FILE_BODY, receive
from hapvr.serving.videos import VideoRow
from hapvr.steps.duplicates import LEAST_PROBABILITY, copy_groups, duplicate_pairs, outdated_pairs
from hapvr.steps.watch_lists import all_matches, make_watch_list, watch_lists
from hapvr.video.sources import is_inside

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
            raise ValueError("wanted one of query (an id) and job (of a search)")
        return self


class MarkedPair(PairOfVideos):
    """mark: None takes a mark back. The SHA-256 of a file is taken for an id, so that every mark of
    GET /pairs can be taken back. name: what to call the query then."""

    name: Name | None = None
    mark: Literal["match", "not_a_match"] | None


@dataclass(frozen=True, kw_only=True)
class ShownMark(stored.Mark):
    """in_collection: whether both names are those of videos that can be compared."""

    in_collection: bool


class Marks(BaseModel):
    """The oldest first."""

    marks: list[ShownMark]


class Marked(BaseModel):
    """mark: what is said now."""

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


@router.get("/pairs", response_model=Marks)
def marks(service: ServiceOf) -> Any:
    """All marks, the oldest first. in_collection: whether both names are those of videos that can
    be compared."""
    index: OpenIndex | None = None
    with suppress(DataError):  # what people said is known without one
        index = service.collection.current()

    def known(name: str, digest: str) -> bool:
        if index is None or name not in index.searcher.collection.shard_of:
            return False
        return index.metadata(name).sha256 == digest

    rows = stored.read_marks(service.project.root).rows()
    there = [all(map(known, row.names, (row.first, row.second))) for row in rows]
    return {
        "marks": [
            asdict(row) | {"in_collection": one} for row, one in zip(rows, there, strict=True)
        ]
    }


@router.patch("/pairs", response_model=Marked)
def mark(asked: MarkedPair, service: ServiceOf, index: IndexOf, caller: MarkerOf) -> Any:
    """Say that two videos match or do not, or take that back."""

    def digest(name: str) -> str:
        return name if stored.is_digest(name) else index.metadata(name).sha256

    if asked.query is not None:
        first, name = digest(asked.query), asked.query
    else:
        job = service.jobs.get(asked.job or "")
        first, name = "" if job.query is None else job.query.sha256, job.name
        if not first:
            raise ArgumentError(
                "pairs: the query of this search is no file that a mark could be kept for; fetch it"
            )
    second, root = digest(asked.reference), service.project.root
    if asked.mark is None:
        stored.unmark(root, first, second)
    else:
        stored.mark(
            root,
            first,
            second,
            asked.mark,
            names=(asked.name or name, asked.reference),
            by=caller.name,
        )
    return {"mark": asked.mark}


@router.get("/pairs/matrix", response_model=Matrix)
async def matrix(service: ServiceOf, index: IndexOf, pair: Annotated[PairOfVideos, Query()]) -> Any:
    """The similarity of frames as numbers: a row per frame of the query, a column per frame of the
    reference; and what people said of the pair."""
    job = service.jobs.get(pair.job) if pair.job is not None else None
    deadline = Deadline(jobs.SEARCH_TIMEOUT_S)

    def compared() -> dict[str, Any]:
        query = index.read_id(pair.query or "") if job is None else job.read_query()
        verdict = stored.read_marks(service.project.root).verdict(
            query.sha256, index.metadata(pair.reference).sha256
        )
        found = index.searcher.matrix(
            query, pair.reference, max_cells=MAX_MATRIX_CELLS, deadline=deadline
        )
        return found | {"values": np.round(found["values"], 3).tolist(), "mark": verdict or ""}

    return await anyio.to_thread.run_sync(compared, limiter=service.reading)


class WatchMatch(BaseModel):
    """A row of `hapvr watch`, and what is said of it. Times are of the surest common part, if there
    is one. query_id: of a query that is a video of the index, otherwise ""."""

    watch_list: str
    query: str
    query_id: str
    query_sha256: str
    video_id: str
    similarity: float
    probability: float | None
    verdict: str
    same_file: bool
    mark: str
    query_covered: float | None
    video_covered: float | None
    query_start_s: float | None
    query_end_s: float | None
    video_start_s: float | None
    video_end_s: float | None
    model: str
    since: str


class WatchMatches(BaseModel):
    """lists: the names of all."""

    total: int
    lists: list[str]
    matches: list[WatchMatch]


class WatchListMade(BaseModel):
    """name: of the list."""

    name: str


@router.get("/watch", response_model=WatchMatches)
def watch(
    service: ServiceOf, index: IndexOf, watch_list: Name = "", limit: Count = 50, offset: Offset = 0
) -> Any:
    """What the watch lists have found, the newest first. watch_list: of one list; "" for all."""
    marks, known = stored.read_marks(service.project.root), index.searcher.collection.shard_of
    rows = [
        row
        | {
            "same_file": row["query_sha256"] == row["video_sha256"],
            "query_id": row["query"] if row["query"] in known else "",
            "mark": marks.verdict(row["query_sha256"], row["video_sha256"]) or "",
        }
        for row in sorted(all_matches(service.project), key=lambda row: row["since"], reverse=True)
        if row["video_id"] in known and watch_list in ("", row["watch_list"])
    ]
    names = [one.name for one in watch_lists(service.project)]
    return {"total": len(rows), "lists": names, "matches": rows[offset : offset + limit]}


@router.post("/watch", status_code=201, openapi_extra={"requestBody": {"content": FILE_BODY}})
async def watch_for(
    request: Request, service: ServiceOf, index: IndexOf, place: PlaceOf, job: SomeName, _: MarkerOf
) -> WatchListMade:
    """Make a watch list of the query of a search, of which a copy is kept: of the body, for a file
    that was sent; else of the file where it is."""
    query, sent = service.jobs.get(job).read_query(), service.uploads / secrets.token_hex(8)
    with place, ExitStack() as held:
        held.callback(sent.unlink, missing_ok=True)
        await receive(request, sent)
        file: Path | None = sent
        if not sent.stat().st_size:
            found = (
                await anyio.to_thread.run_sync(index.metadata, query.video_id)
                if query.video_id
                else None
            )
            file = found.path if found is not None else service.access.local_path(query.name)
        make = partial(
            make_watch_list,
            service.project,
            query,
            file or sent,
            max_bytes=service.limits.max_bytes,
        )
        return WatchListMade(name=await anyio.to_thread.run_sync(make, limiter=service.reading))


class DuplicateFilter(Values):
    """Which groups and pairs are wanted. kind: "" for all. folder: of ids, in whole parts."""

    kind: Kind | Literal[""] = ""
    folder: Name = ""
    min_probability: Annotated[float, Field(ge=LEAST_PROBABILITY, le=1)] = 0.9
    limit: Count = 50
    offset: Offset = 0


class GroupedVideo(VideoRow):
    """A video of a group, compared with its medoid, which has no values for that. keep, reason: of
    copies."""

    medoid: bool
    keep: bool = False
    reason: str = ""
    mark: str = ""
    probability: float | None = None
    verdict: str | None = None
    same_file: bool = False
    query_covered: float | None = None
    reference_covered: float | None = None


class Group(BaseModel):
    """Copies, or a pair of another kind. probability: the least of them all."""

    kind: str
    group: str
    probability: float
    members: list[GroupedVideo]


class Groups(BaseModel):
    """total: before limit and offset. shards_searched: those whose videos were searched for as they
    are now."""

    total: int
    groups: list[Group]
    shards_searched: int
    shards: int


@router.get("/duplicates", response_model=Groups, response_model_exclude_unset=True)
async def duplicates(
    service: ServiceOf, index: IndexOf, wanted: Annotated[DuplicateFilter, Query()]
) -> Any:
    """Groups of copies, then pairs of the other kinds, the largest and surest first, a piece at a
    time."""
    return await anyio.to_thread.run_sync(_groups, index, wanted, limiter=service.reading)


def _groups(index: IndexOf, wanted: DuplicateFilter) -> Groups:
    searcher = index.searcher
    pairs = duplicate_pairs(searcher.project, searcher, min_probability=wanted.min_probability)
    by_ids = {frozenset((pair.first, pair.second)): pair for pair in pairs}

    def row(kind: str, group: str, medoid: str, ids: Sequence[str]) -> dict[str, Any]:
        """What is said of pairs with the medoid, which is the query of what the common parts
        cover."""
        members = [index.video_row(one) | {"medoid": one == medoid} for one in ids]
        for shown in members:
            if (
                pair := by_ids.get(frozenset((medoid, shown["id"])))
            ) is not None:  # the medoid itself is no pair
                shown |= {
                    name: getattr(pair, name)
                    for name in ("probability", "mark", "verdict", "same_file")
                }
                covered = ["query_covered", "reference_covered"][
                    :: 1 if pair.first == medoid else -1
                ]
                shown |= zip(covered, (pair.first_covered, pair.second_covered), strict=True)
        least = min(shown["probability"] for shown in members if not shown["medoid"])
        return {"kind": kind, "group": group, "members": members, "probability": least}

    rows = [
        row(pair.kind, "", pair.first, (pair.first, pair.second))
        for pair in pairs
        if pair.kind != "copy"
    ]
    for name, group in groupby(copy_groups(searcher, pairs), key=lambda member: member.group):
        copies = list(group)
        medoid = next(one.video_id for one in copies if one.medoid)
        rows.append(row("copy", name, medoid, [one.video_id for one in copies]))
        for shown, one in zip(rows[-1]["members"], copies, strict=True):
            shown |= {"keep": one.keep, "reason": one.reason}

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        ids = [one["id"] for one in row["members"]]
        return KINDS.index(row["kind"]), -len(ids), -row["probability"], ids

    rows = [row for row in rows if wanted.kind in ("", row["kind"])]
    rows = [
        row for row in rows if any(is_inside(one["id"], wanted.folder) for one in row["members"])
    ]
    rows.sort(key=place)
    shown, shards = (
        rows[wanted.offset : wanted.offset + wanted.limit],
        set(searcher.collection.shards()),
    )
    searched = len(shards - outdated_pairs(searcher.project, searcher.collection.metadata).keys())
    said = {"total": len(rows), "groups": shown, "shards_searched": searched, "shards": len(shards)}
    return Groups.model_validate(said)


@router.get("/duplicates/job")
def duplicate_job(service: ServiceOf) -> DuplicateJobState:
    """How far the collection is looked through since the service began."""
    return service.duplicate_job.state


@router.post("/duplicates/job", status_code=202)
async def look_through(service: ServiceOf, index: IndexOf, _: MarkerOf) -> DuplicateJobState:
    """Look through what was not looked through yet, as `hapvr duplicates` does; once at a time."""
    return service.duplicate_job.start(index)
