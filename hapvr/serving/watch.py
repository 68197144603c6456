"""Watch lists: what they have found, and new ones of queries."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from functools import partial
from operator import itemgetter
from pathlib import Path

import anyio
from fastapi import APIRouter, Request
from pydantic import BaseModel

from hapvr.search.marks import read_marks
from hapvr.serving.service import (
    Count,
    IndexOf,
    MarkerOf,
    Name,
    Offset,
    PlaceOf,
    ServiceOf,
    SomeName,
)
from hapvr.serving.uploads import FILE_BODY, receive
from hapvr.steps.watch_lists import all_matches
from hapvr.steps.watch_queries import make_watch_list, watch_lists

router = APIRouter()


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


@router.get("/watch")
def watch(
    service: ServiceOf, index: IndexOf, watch_list: Name = "", limit: Count = 50, offset: Offset = 0
) -> WatchMatches:
    """What the watch lists have found, the newest first. watch_list: of one list; "" for all."""
    marks = read_marks(service.project.root)
    videos = index.searcher.collection.shard_of
    newest_first = sorted(all_matches(service.project), key=itemgetter("since"), reverse=True)
    rows = [
        row
        for row in newest_first
        if row["video_id"] in videos and watch_list in ("", row["watch_list"])
    ]

    page = []
    for row in rows[offset : offset + limit]:
        files = (row["query_sha256"], row["video_sha256"])
        match = WatchMatch(
            **row,
            same_file=files[0] == files[1],
            query_id=row["query"] if row["query"] in videos else "",
            mark=marks.verdict(*files) or "",
        )
        page.append(match)
    names = [each.name for each in watch_lists(service.project)]
    return WatchMatches(total=len(rows), lists=names, matches=page)


@router.post("/watch", status_code=201, openapi_extra={"requestBody": {"content": FILE_BODY}})
async def watch_for(
    request: Request, service: ServiceOf, index: IndexOf, place: PlaceOf, job: SomeName, _: MarkerOf
) -> WatchListMade:
    """Make a watch list of the query of a search, of which a copy is kept: of the body, for a file
    that was sent; else of the file where it is."""
    query = service.jobs.get(job).read_query()
    sent = service.uploads / secrets.token_hex(8)
    with place, ExitStack() as held:
        held.callback(sent.unlink, missing_ok=True)
        await receive(request, sent)

        file: Path | None = sent
        if not sent.stat().st_size:
            if query.video_id:
                metadata = await anyio.to_thread.run_sync(index.metadata, query.video_id)
                file = metadata.path
            else:
                file = service.access.local_path(query.name)
        make = partial(
            make_watch_list,
            service.project,
            query,
            file or sent,
            max_bytes=service.limits.max_bytes,
        )
        name = await anyio.to_thread.run_sync(make, limiter=service.reading)
        return WatchListMade(name=name)
