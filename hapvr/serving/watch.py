"""Watch lists: what they have found, and new ones of queries."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import anyio
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from hapvr.errors import DataError
from hapvr.scorer.access import Deadline
from hapvr.search.marks import read_marks
from hapvr.search.match import Query, verdict_of
from hapvr.serving import jobs
from hapvr.serving.background import Work, WorkState
from hapvr.serving.collection import OpenIndex
from hapvr.serving.refusals import Refusal, without_paths
from hapvr.serving.service import (
    Count,
    HasPathsOf,
    IndexOf,
    MarkerOf,
    Name,
    Offset,
    PlaceOf,
    Service,
    ServiceOf,
    SomeName,
)
from hapvr.serving.uploads import FILE_BODY, receive
from hapvr.serving.videos import PICTURE, Second, Width, query_frame
from hapvr.steps.project import Project
from hapvr.steps.watch_lists import all_matches
from hapvr.steps.watch_queries import LISTS, WatchQuery, make_watch_list, watch_queries
from hapvr.steps.watch_runs import (
    WatchRun,
    last_run_s,
    query_file,
    remove_watch_list,
    run_watch_lists,
)

router = APIRouter()


class WatchMatch(BaseModel):
    """A row of `hapvr watch`, and its mark. Times are of the surest common part, if there
    is one. query_id: of a query that is a video of the index, otherwise "". path: where the file of
    the video lies now; "" for those who may only read. clock_note: what is wrong with the video's
    clock, so that its seconds are not those of players."""

    watch_list: str
    query: str
    query_id: str
    query_sha256: str
    video_id: str
    path: str
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
    clock_note: str


class ShownList(BaseModel):
    """A watch list. removable: whether it was made of a search. queries: SHA-256 of its files that
    can be read, the first few. problem: why it cannot be read. matches: how many it has."""

    name: str
    removable: bool
    num_queries: int
    queries: list[str]
    problem: str
    matches: int


class WatchMatches(BaseModel):
    """lists: all of them. last_run: when a list was compared with the collection last, ISO 8601,
    UTC; "" if none was."""

    total: int
    lists: list[ShownList]
    last_run: str
    matches: list[WatchMatch]


class WatchListMade(BaseModel):
    """name: of the list."""

    name: str


SHOWN_QUERIES = 4
"""Queries of a list that a page shows pictures of."""


@router.get("/watch")
def watch(
    service: ServiceOf,
    index: IndexOf,
    has_paths: HasPathsOf,
    watch_list: Name = "",
    limit: Count = 50,
    offset: Offset = 0,
) -> WatchMatches:
    """What the watch lists have found, the newest first. watch_list: of one list; "" for all."""
    project = service.collection.project
    marks = read_marks(project.root)
    videos = index.searcher.collection.shard_of
    queries = watch_queries(project)
    newest_first = sorted(_present_matches(project, queries), key=itemgetter("since"), reverse=True)
    matches = [row for row in newest_first if row["video_id"] in videos]
    rows = [row for row in matches if watch_list in ("", row["watch_list"])]

    page = []
    for row in rows[offset : offset + limit]:
        files = (row["query_sha256"], row["video_sha256"])
        mark = marks.verdict(*files) or ""
        same_file = files[0] == files[1]
        verdict = verdict_of(row["probability"], mark=mark, same_file=same_file)
        video = index.video_row(row["video_id"], has_paths=has_paths)
        match = WatchMatch(
            **row | {"verdict": verdict or row["verdict"]},
            same_file=same_file,
            path=video["path"],
            clock_note=video["clock_note"],
            query_id=row["query"] if row["query"] in videos else "",
            mark=mark,
        )
        page.append(match)

    run_s = last_run_s(project)
    return WatchMatches(
        total=len(rows),
        lists=_shown_lists(project, queries, Counter(row["watch_list"] for row in matches)),
        last_run=""
        if run_s is None
        else datetime.fromtimestamp(run_s, UTC).isoformat("T", "seconds"),
        matches=page,
    )


def _present_matches(project: Project, queries: Sequence[WatchQuery]) -> list[dict[str, Any]]:
    """The matches of queries that a list has now: another list may have the name of one that was
    removed. All of a list that cannot be read, as of a drive that is offline."""
    unreadable = {query.watch_list.name for query in queries if not query.sha256}
    present = {(query.watch_list.name, query.sha256) for query in queries}
    return [
        row
        for row in all_matches(project)
        if row["watch_list"] in unreadable or (row["watch_list"], row["query_sha256"]) in present
    ]


def _shown_lists(
    project: Project, queries: Sequence[WatchQuery], counts: Mapping[str, int]
) -> list[ShownList]:
    removable = set(project.root.list_folders(LISTS))
    lists = []
    for name in dict.fromkeys(query.watch_list.name for query in queries):
        own = [query for query in queries if query.watch_list.name == name]
        problems = [query.problem for query in own if query.problem]
        digests = [query.sha256 for query in own if query.sha256]
        lists.append(
            ShownList(
                name=name,
                removable=name in removable,
                num_queries=len(own) - len(problems),
                queries=digests[:SHOWN_QUERIES],
                problem=without_paths(problems[0]) if problems else "",
                matches=counts.get(name, 0),
            )
        )

    return lists


@router.get("/watch/job")
def watch_state(service: ServiceOf) -> WorkState:
    """How far comparing the collection with the lists is."""
    return service.watching.state


@router.post("/watch/job", status_code=202)
async def run_lists(service: ServiceOf, _: MarkerOf) -> WorkState:
    """Compare with the lists what was not compared yet, as `hapvr watch` does; once at a time."""
    return start_run(service)


def start_run(service: Service) -> WorkState:
    """Compare with the lists what was not compared yet; once more where that is under way."""

    def run(work: Work) -> None:
        searcher = service.collection.current(look=True).searcher
        require_no_problem(run_watch_lists(service.collection.project, work.bar, searcher=searcher))

    return service.watching.start(run, again=True)


def require_no_problem(run: WatchRun) -> None:
    """Raise DataError for the first thing that a person should know of a run."""
    for problem in run.problems:
        raise DataError(f"watch: {problem}")


@router.delete("/watch/{name}")
async def remove(service: ServiceOf, name: SomeName, _: MarkerOf) -> WatchListMade:
    """Remove a list that was made of a search, with its copy of the query."""
    await anyio.to_thread.run_sync(remove_watch_list, service.collection.project, name)
    return WatchListMade(name=name)


@router.get("/watch-pictures/{sha256}", **PICTURE)
async def watch_picture(
    service: ServiceOf, index: IndexOf, sha256: str, second: Second = None, width: Width = 192
) -> Response:
    """A sampled frame of a query of a watch list, as JPEG; of which second as for a video."""
    read = partial(_read_query, service, index, sha256)
    query = await anyio.to_thread.run_sync(read, limiter=service.reading)
    return await query_frame(index, service, query, second, width)


def _read_query(service: Service, index: OpenIndex, sha256: str) -> Query:
    """Raises Refusal `gone` for a query that no list has any more, and as `Searcher.read`."""
    file = query_file(service.collection.project, sha256)
    if file is None:
        raise Refusal(410, "gone", "watch: no list has this query any more")
    deadline = Deadline(jobs.SEARCH_TIMEOUT_S)
    return index.searcher.read(file, limits=service.limits, deadline=deadline)


@router.post("/watch", status_code=201, openapi_extra={"requestBody": {"content": FILE_BODY}})
async def watch_for(
    request: Request, service: ServiceOf, index: IndexOf, place: PlaceOf, job: SomeName, _: MarkerOf
) -> WatchListMade:
    """Make a watch list of the query of a search, of which a copy is kept: of the body, for a file
    that was sent; else of the file where it is. The collection is compared with it at once."""
    searched = service.searched_for(job)
    sent = service.uploads / secrets.token_hex(8)
    with place, ExitStack() as held:
        held.callback(sent.unlink, missing_ok=True)
        await receive(request, sent)

        file: Path | None = sent
        if not sent.stat().st_size:
            if searched.video_id:
                metadata = await anyio.to_thread.run_sync(index.metadata, searched.video_id)
                file = metadata.path
            else:
                file = service.access.local_path(searched.name)

        make = partial(
            make_watch_list,
            service.collection.project,
            file or sent,
            name=searched.name,
            sha256=searched.sha256,
            max_bytes=service.limits.max_bytes,
        )
        name = await anyio.to_thread.run_sync(make, limiter=service.reading)
        start_run(service)
        return WatchListMade(name=name)
