"""The endpoints, and what they share."""

from __future__ import annotations

import asyncio
import io
import secrets
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
import numpy as np
from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.responses import FileResponse

from hapvr import __version__
from hapvr.data.frames import thumbnail
from hapvr.errors import ArgumentError, DamagedError, DataError, VideoError
from hapvr.scorer.access import Deadline, access_from_environment, limits_from_environment
from hapvr.search.marks import is_digest, read_marks, unmark
from hapvr.search.marks import mark as keep_mark
from hapvr.search.match import SCHEMA, FrameMatrix, SearchAnswer, answer_table
from hapvr.search.match import Query as SearchQuery
from hapvr.serving import answers, jobs
from hapvr.serving.collection import Collection, OpenIndex
from hapvr.serving.duplicates import DuplicateJob, listed
from hapvr.serving.jobs import Job, SearchJobs
from hapvr.serving.metrics import Metrics
from hapvr.serving.refusals import Refusal, describe, without_paths
from hapvr.serving.requests import (
    Count,
    DuplicateFilter,
    MarkedPair,
    Name,
    NamedSearch,
    Offset,
    PairOfVideos,
    SomeName,
    UploadSearch,
    is_json,
    receive,
    shown_name,
    suffix_of,
)
from hapvr.serving.tokens import Caller, caller_of, marker_of, read_tokens
from hapvr.steps.duplicates import outdated_pairs
from hapvr.steps.explanation import explain
from hapvr.steps.project import Project
from hapvr.steps.watch_lists import make_watch_list, watch_lists
from hapvr.tables import write_csv

READS_AT_ONCE = 4
ANSWER_WITHIN_S = 2.0
"""A search that takes longer is answered with the id of a job."""

MAX_WAIT_S = 20.0
MAX_MATRIX_CELLS = 250_000
"""Frame similarities of a pair; of longer videos every n-th frame is compared."""

MEDIA_TYPES = {
    **dict.fromkeys((".mp4", ".m4v", ".mov"), "video/mp4"),
    ".webm": "video/webm",
    ".mkv": "video/x-matroska",
    ".ogv": "video/ogg",
}
"""Media types by suffix; browsers play others no better if they are told more."""

ERRORS: dict[int | str, dict[str, Any]] = {"default": {"model": answers.Problem, "description": "An error"}}
router = APIRouter(dependencies=[Depends(caller_of)], responses=ERRORS)
probes = APIRouter(responses=ERRORS)
"""What tells nothing of the collection, and asks for no token."""


class Service:
    """What the endpoints share."""

    def __init__(self, project: Project, *, model: str | None = None, token_file: Path | None = None) -> None:
        """model: as `Searcher.open` takes it. token_file: as `read_tokens` does. Raises ConfigError for a wrong file, and for
        wrong values of the environment."""
        self.project = project
        self.limits = limits_from_environment(project.config.serving)
        self.access = access_from_environment()
        self.collection = Collection(project, model=model)
        self.jobs = SearchJobs()
        self.duplicate_job = DuplicateJob()
        self.bearers = None if token_file is None else read_tokens(token_file)  # everybody may do everything
        # lets browsers load pictures and videos, until the service ends
        self.ticket = "" if token_file is None else secrets.token_hex()
        self.metrics = Metrics(busy=lambda: self.jobs.busy, index=lambda: self.collection.opened)
        self.uploads = Path()  # where files that are sent lie; see `upload_folder`
        # for what reads frames and compares pairs: few at once, so that other requests find free threads
        self.reading = anyio.CapacityLimiter(READS_AT_ONCE)

    def shown(self, job: Job) -> dict[str, Any]:
        """A job as JSON. answer: with its matches, None until there is one; error, code: why there will be none."""
        failure = {"error": "", "code": ""} if job.error is None else describe(job.error)[1]
        answer = job.task.result() if job.status == "done" else None
        return {"job": job.id, "status": job.status, "query": job.name, **failure, "answer": answer}


def service_of(request: Request) -> Service:
    """The service of the app that got a request."""
    found: Service = request.app.state.service
    return found


def index_of(request: Request) -> OpenIndex:
    """The index of this moment. Raises DataError where there is none."""
    return service_of(request).collection.current()


async def place_of(request: Request) -> AbstractContextManager[None]:
    """A place among the searches for the sender of a request, see `SearchJobs.place`."""
    return service_of(request).jobs.place(request.client.host if request.client else "")


ServiceOf = Annotated[Service, Depends(service_of)]
IndexOf = Annotated[OpenIndex, Depends(index_of)]
PlaceOf = Annotated[AbstractContextManager[None], Depends(place_of)]
MarkerOf = Annotated[Caller, Depends(marker_of)]


# Searches


FILE, _BYTES = "application/octet-stream", {"type": "string", "format": "binary"}
_SENT = {"application/json": {"schema": NamedSearch.model_json_schema()}, FILE: {"schema": _BYTES}}


@router.post(
    "/search",
    response_model=answers.JobState,
    responses={202: {"model": answers.JobState, "description": "Not done yet: ask for the job"}},
    openapi_extra={"requestBody": {"required": True, "content": _SENT}},
)
async def search(
    request: Request, service: ServiceOf, place: PlaceOf, sent: Annotated[UploadSearch, Query()], response: Response
) -> Any:
    """Search for a path, URL or id, as JSON; or for a file that is the body, with the other values in the address."""
    with ExitStack() as held:  # the place while a file arrives; file and place until the search has ended
        if is_json(request.headers):
            named = NamedSearch.model_validate_json(await request.body())
            job = Job(named.query, named.options())
            read = partial(_read_named, service, named)
            held.enter_context(place)
        else:
            job = Job(shown_name(sent.name), sent.options())
            path = service.uploads / (secrets.token_hex(8) + suffix_of(job.name))
            read = partial(_read_upload, service, path)
            held.enter_context(place)
            held.callback(path.unlink, missing_ok=True)
            await receive(request, path)

        def searched(index: OpenIndex, job: Job) -> SearchAnswer:
            timed = service.metrics.timed
            with timed("read"):
                job.query = read(index, job)
            found = index.searcher.answer(job.query, job.options, deadline=job.deadline, timed=timed)
            return replace(found, warnings=tuple(map(without_paths, found.warnings)), model=_shown_model(found.model))

        def work(job: Job) -> SearchAnswer:
            index = service.collection.current()
            try:
                return searched(index, job)
            except DataError:
                newer = service.collection.current()
                if newer is index:
                    raise
                return searched(newer, job)  # the other one was replaced, and removed, meanwhile

        held.enter_context(service.metrics.timed("total"))
        held.callback(service.metrics.ended, job)
        service.jobs.start(job, work, release=held.pop_all().close)
    await asyncio.wait([job.task], timeout=ANSWER_WITHIN_S)
    if job.error is not None:
        raise job.error
    if job.status != "done":
        response.status_code, response.headers["location"] = 202, f"/jobs/{job.id}"
    return service.shown(job)


def _read_named(service: Service, asked: NamedSearch, index: OpenIndex, job: Job) -> SearchQuery:
    if asked.id is not None:
        return index.read_id(asked.id)
    return index.searcher.read(asked.query, access=service.access, limits=service.limits, deadline=job.deadline)


def _read_upload(service: Service, path: Path, index: OpenIndex, job: Job) -> SearchQuery:
    try:
        return index.searcher.read(path, name=job.name, limits=service.limits, deadline=job.deadline)
    except VideoError as error:  # with the sender's name of the file instead of its temporary place
        said = str(error).replace(str(path), job.name).replace(path.name, job.name)
        raise VideoError(error.reason, said) from error


@router.get("/jobs/{job_id}", response_model=answers.JobState)
async def job(service: ServiceOf, job_id: str, wait_s: Annotated[float, Query(allow_inf_nan=False)] = 0.0) -> Any:
    """How a search is doing; waits up to `wait_s` seconds (20 at most) for its end."""
    found = service.jobs.get(job_id)
    await asyncio.wait([found.task], timeout=min(wait_s, MAX_WAIT_S))
    return service.shown(found)


@router.delete("/jobs/{job_id}", response_model=answers.JobState)
async def cancel(service: ServiceOf, job_id: str) -> Any:
    """End a search that nobody waits for any more."""
    found = service.jobs.get(job_id)
    found.cancel()
    return service.shown(found)


@router.get("/jobs/{job_id}/table", responses={200: {"content": {"text/csv": {}}}}, response_class=Response)
def table(service: ServiceOf, job_id: str, author: Name = "", note: Name = "") -> Response:
    """What a search has found as CSV, with the columns of `hapvr search --out`; and who keeps it, and why."""
    found = service.jobs.get(job_id)
    if found.status != "done":
        raise Refusal(
            409, "not_done", f"jobs: this search has no answer, it is {found.status}; ask for it when it is done"
        )
    said, text = {"author": author, "note": note}, io.StringIO()
    rows = [row | said for row in answer_table([found.task.result()]).to_pylist()]
    rows = [{name: _no_formula(value) for name, value in row.items()} for row in rows]
    write_csv([*SCHEMA.names, "author", "note"], rows, text)
    return Response(text.getvalue(), media_type="text/csv")


@router.get("/jobs/{job_id}/explanation")
async def explanation(
    service: ServiceOf, index: IndexOf, place: PlaceOf, job_id: str, reference: SomeName
) -> answers.Explained:
    """Why a search shows a video or does not, in the words of `hapvr search --explain`; it searches once more."""
    index.metadata(reference)
    job, deadline = service.jobs.get(job_id), Deadline(jobs.SEARCH_TIMEOUT_S)
    work = partial(explain, index.searcher, _query_of(job), reference, job.options, deadline=deadline)
    with place:
        return answers.Explained(lines=(await anyio.to_thread.run_sync(work, limiter=service.reading)).lines())


def _query_of(job: Job) -> SearchQuery:
    """What was searched for. Raises Refusal `gone` where it could not be read."""
    if job.query is None:
        raise Refusal(410, "gone", "jobs: the query of this search could not be read; search again")
    return job.query


def _no_formula(value: Any) -> Any:
    """A cell that a spreadsheet takes for text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


# The collection


@probes.get("/health")
async def health(service: ServiceOf) -> answers.Health:
    """Whether the service answers; it does so while searches run and while there is no index."""
    return answers.Health(version=__version__, busy=service.jobs.busy)


@probes.get("/ready")
def ready(service: ServiceOf) -> answers.Health:
    """Whether searches are answered: index and model are open. Otherwise 503 says why not."""
    searcher = service.collection.current(wait=False).searcher
    if searcher.damage:
        raise DamagedError(searcher.damage[0])
    return answers.Health(version=__version__, busy=service.jobs.busy)


@router.get("/metrics", responses={200: {"content": {"text/plain": {}}}}, response_class=Response)
def metrics(service: ServiceOf) -> Response:
    """Counts and times since the service began, for Prometheus."""
    return Response(service.metrics.text(), media_type=service.metrics.content_type)


@router.get("/index", response_model=answers.IndexState, response_model_exclude_unset=True)
def index(service: ServiceOf) -> Any:
    """Which index answers, and the limits of a search. problem: why there is none, and what to do."""
    value: dict[str, Any] = {"max_bytes": service.limits.max_bytes, "ticket": service.ticket}
    try:
        searcher = service.collection.current().searcher
    except DataError as error:
        return value | {"videos": 0, "problem": without_paths(str(error))}
    return value | {
        "videos": searcher.num_videos,
        "model": _shown_model(searcher.model),
        "untrained": searcher.untrained,
        "since": searcher.current.since,
        "recall": searcher.current.recall,
        "warnings": [without_paths(text) for text in searcher.warnings],
        "problem": without_paths(str(service.collection.problem or "")),
    }


def _shown_model(name: str) -> str:
    """A model for others: no folder of this machine."""
    return name if name.startswith("models:/") else Path(name).name


@router.get("/videos", response_model=answers.Videos)
def videos(index: IndexOf, contains: Name = "", limit: Count = 50, offset: Offset = 0) -> Any:
    """Videos whose id contains some letters, in order."""
    found = [video_id for video_id in index.video_ids if contains.casefold() in video_id.casefold()]
    return {"total": len(found), "videos": [index.video_row(one) for one in found[offset : offset + limit]]}


@router.get("/videos/{video_id:path}", response_model=answers.VideoRow)
def video(index: IndexOf, video_id: str) -> Any:
    """What is known of the file of a video."""
    return index.video_row(video_id)


@router.get("/watch", response_model=answers.WatchMatches)
def watch(service: ServiceOf, index: IndexOf, watch_list: Name = "", limit: Count = 50, offset: Offset = 0) -> Any:
    """What the watch lists have found, the newest first. watch_list: of one list; "" for all."""
    rows = index.watched(watch_list)
    names = [one.name for one in watch_lists(service.project)]
    return {"total": len(rows), "lists": names, "matches": rows[offset : offset + limit]}


@router.post("/watch", status_code=201, openapi_extra={"requestBody": {"content": {FILE: {"schema": _BYTES}}}})
async def watch_for(
    request: Request, service: ServiceOf, index: IndexOf, place: PlaceOf, job: SomeName, _: MarkerOf
) -> answers.WatchListMade:
    """Make a watch list of the query of a search, of which a copy is kept: of the body, for a file that was sent; else of
    the file where it is."""
    query, sent = _query_of(service.jobs.get(job)), service.uploads / secrets.token_hex(8)
    with place, ExitStack() as held:
        held.callback(sent.unlink, missing_ok=True)
        await receive(request, sent)
        file: Path | None = sent
        if not sent.stat().st_size:
            file = index.metadata(query.video_id).path if query.video_id else service.access.local_path(query.name)
        make = partial(make_watch_list, service.project, query, file or sent, max_bytes=service.limits.max_bytes)
        return answers.WatchListMade(name=await anyio.to_thread.run_sync(make, limiter=service.reading))


@router.get("/duplicates", response_model=answers.Groups, response_model_exclude_unset=True)
def duplicates(index: IndexOf, wanted: Annotated[DuplicateFilter, Query()]) -> Any:
    """Groups of copies and pairs of the other kinds, a piece at a time."""
    rows, shards = listed(index, wanted), set(index.searcher.collection.shards())
    return {
        "total": len(rows),
        "groups": rows[wanted.offset : wanted.offset + wanted.limit],
        "shards_searched": len(shards - outdated_pairs(index.searcher.project).keys()),
        "shards": len(shards),
    }


@router.get("/duplicates/job")
def duplicate_job(service: ServiceOf) -> answers.DuplicateJobState:
    """How far the collection is looked through since the service began."""
    return service.duplicate_job.state


@router.post("/duplicates/job", status_code=202)
async def look_through(service: ServiceOf, index: IndexOf, _: MarkerOf) -> answers.DuplicateJobState:
    """Look through what was not looked through yet, as `hapvr duplicates` does; once at a time."""
    return service.duplicate_job.start(index)


# Media


@router.head("/media/{video_id:path}", include_in_schema=False)
@router.get("/media/{video_id:path}", response_class=FileResponse)
def media(index: IndexOf, video_id: str) -> Response:
    """The file of a video, whole or by ranges. One whose size is not that of the indexed file is refused."""
    metadata, code = index.metadata(video_id), ""
    if metadata.path is None or not metadata.path.is_file():
        code, state = "gone", "is not there any more"
    elif metadata.num_bytes not in (0, metadata.path.stat().st_size):
        code, state = "replaced", "has another size than when it was indexed"
    if code:
        hint = "make its shard again (`hapvr download`, `sample`, `extract`), then run `hapvr index update`"
        raise Refusal(410, code, f"media: the file of {video_id} {state}; {hint}")
    assert metadata.path is not None
    kind = MEDIA_TYPES.get(metadata.path.suffix.lower(), "application/octet-stream")
    return FileResponse(metadata.path, media_type=kind, headers={"cache-control": "private, max-age=60"})


@router.get("/thumbnails/{video_id:path}", responses={200: {"content": {"image/jpeg": {}}}}, response_class=Response)
async def picture(
    index: IndexOf,
    service: ServiceOf,
    video_id: str,
    second: Annotated[float | None, Query(ge=0, allow_inf_nan=False)] = None,
    width: Annotated[int, Query(ge=16, le=640)] = 192,
) -> Response:
    """The sampled frame that is nearest to a second, as JPEG; without one, the first that is not of one colour."""
    index.metadata(video_id)

    def made() -> bytes | None:
        pictures, small = index.pictures, io.BytesIO()
        jpeg = pictures.at(video_id, second)
        if jpeg is not None:
            thumbnail(jpeg, size_px=(width, width)).save(small, "JPEG", quality=80)
        return small.getvalue()

    found = await anyio.to_thread.run_sync(made, limiter=service.reading)
    if not found:
        sentence = f"thumbnails: there are no frames of {video_id}; features alone were imported, or it is gone"
        raise Refusal(410, "gone", sentence)
    return Response(found, media_type="image/jpeg", headers={"cache-control": "private, max-age=600"})


# Pairs


@router.get("/pairs", response_model=answers.Marks)
def marks(service: ServiceOf, index: IndexOf) -> Any:
    """All marks, the oldest first. in_collection: whether both names are those of videos that can be compared."""

    def known(name: str, digest: str) -> bool:
        return name in index.searcher.collection.shard_of and index.metadata(name).sha256 == digest

    rows = read_marks(service.project.root).rows()
    return {
        "marks": [asdict(row) | {"in_collection": all(map(known, row.names, (row.first, row.second)))} for row in rows]
    }


@router.patch("/pairs", response_model=answers.Marked)
def mark(asked: MarkedPair, service: ServiceOf, index: IndexOf, caller: MarkerOf) -> Any:
    """Say that two videos match or do not, or take that back."""

    def digest(name: str) -> str:
        return name if is_digest(name) else index.metadata(name).sha256

    if asked.query is not None:
        first, name = digest(asked.query), asked.query
    else:
        job = service.jobs.get(asked.job or "")
        first, name = "" if job.query is None else job.query.sha256, job.name
        if not first:
            raise ArgumentError(
                "pairs: the query of this search has no file that a mark could be kept for; fetch it first"
            )
    second, root = digest(asked.reference), service.project.root
    if asked.mark is None:
        unmark(root, first, second)
    else:
        keep_mark(root, first, second, asked.mark, names=(asked.name or name, asked.reference), by=caller.name)
    return {"mark": asked.mark}


@router.get("/pairs/matrix", response_model=answers.Matrix)
async def matrix(service: ServiceOf, index: IndexOf, pair: Annotated[PairOfVideos, Query()]) -> Any:
    """The similarity of frames as numbers: a row per frame of the query, a column per frame of the reference; and what
    people said of the pair."""
    job = service.jobs.get(pair.job) if pair.job is not None else None
    content, deadline = index.metadata(pair.reference).sha256, Deadline(jobs.SEARCH_TIMEOUT_S)

    def compared() -> tuple[FrameMatrix, str]:
        query = index.read_id(pair.query or "") if job is None else _query_of(job)
        verdict = read_marks(service.project.root).verdict(query.sha256, content)
        found = index.searcher.matrix(query, pair.reference, max_cells=MAX_MATRIX_CELLS, deadline=deadline)
        return found, verdict or ""

    found, verdict = await anyio.to_thread.run_sync(compared, limiter=service.reading)
    return vars(found) | {"values": np.round(found.values, 3).tolist(), "mark": verdict}
