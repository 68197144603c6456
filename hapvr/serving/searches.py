"""Searches: their parameters, the jobs that answer, and why they show a video or not."""

from __future__ import annotations

import asyncio
import io
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field, model_validator

from hapvr.errors import DataError, HapvrError, VideoError
from hapvr.scorer.access import Deadline
from hapvr.search import DEFAULT_TOP
from hapvr.search.marks import read_marks
from hapvr.search.match import SCHEMA, Part, Query as SearchQuery, SearchAnswer, answer_table
from hapvr.serving import jobs
from hapvr.serving.collection import OpenIndex
from hapvr.serving.folders import unusable_reason
from hapvr.serving.jobs import Job
from hapvr.serving.refusals import Problem, Refusal, describe, shown_model, without_paths
from hapvr.serving.service import (
    HasPathsOf,
    IndexOf,
    Name,
    PlaceOf,
    Service,
    ServiceOf,
    SomeName,
    Values,
)
from hapvr.serving.shown import Place, is_still, places_of, reason_of, with_marks
from hapvr.serving.uploads import FILE_BODY, is_json, receive, shown_name
from hapvr.steps.explanation import explain
from hapvr.steps.searcher import SearchOptions
from hapvr.tables import write_csv

ANSWER_WITHIN_S = 2.0
"""A search that takes longer is answered with the id of a job."""
router = APIRouter()


class QueryOptions(Values):
    """How to search, with the meanings of `hapvr search`."""

    top: Annotated[int, Field(le=10_000)] = DEFAULT_TOP
    from_: Annotated[float | None, Field(alias="from")] = None
    to: float | None = None
    at: float | None = None
    min_probability: float = 0.0
    prior: float | None = None
    folder: Name = ""
    segments: bool = True
    incidents: bool = False

    def options(self) -> SearchOptions:
        """Raises ArgumentError for values out of range."""
        names = {"top", "min_probability", "prior", "folder", "segments", "incidents"}
        values = self.model_dump(include=names)
        return SearchOptions(part=Part.named(self.at, self.from_, self.to), **values)


class UploadSearch(QueryOptions):
    """name: of the file that is the body; its suffix says whether it is a still picture."""

    name: Name = ""


class NamedSearch(QueryOptions):
    """One of path (a file or still picture of this machine), url, and id (of a video of the
    collection)."""

    path: SomeName | None = None
    url: SomeName | None = None
    id: SomeName | None = None

    @property
    def query(self) -> str:
        return self.path or self.url or self.id or ""

    @model_validator(mode="after")
    def _check_query(self) -> NamedSearch:
        if sum(query is not None for query in (self.path, self.url, self.id)) != 1:
            raise ValueError("wanted one of path, url and id, or a file as the body of the request")
        return self


class JobState(Problem):
    """A search. still: whether a picture was searched for. error, code: why it failed, else "".
    answer: None until it is done, with the marks of this moment. places: of its videos."""

    job: str
    status: Literal["waiting", "running", "done", "failed"]
    query: str
    still: bool
    answer: SearchAnswer | None
    places: dict[str, Place]


class Explained(BaseModel):
    """reason: why a video is shown or not, in a sentence. lines: all that was found of it, each a
    label in the first nine columns, which may be blank, and a text; none of a file that cannot be
    used."""

    reason: str
    lines: list[str]


SECONDS = ("query_start", "query_end", "ref_start", "ref_end", "offset")
"""Columns of a table that are times."""

SEARCH_BODY = {"application/json": {"schema": NamedSearch.model_json_schema()}, **FILE_BODY}


@router.post(
    "/search",
    responses={202: {"model": JobState, "description": "Not done yet: ask for the job"}},
    openapi_extra={"requestBody": {"required": True, "content": SEARCH_BODY}},
)
async def search(
    request: Request,
    service: ServiceOf,
    place: PlaceOf,
    sent: Annotated[UploadSearch, Query()],
    has_paths: HasPathsOf,
    response: Response,
) -> JobState:
    """Search for a path, URL or id, as JSON; or for a file that is the body, with the other values
    in the address."""
    # Holds the place while a file arrives, and place and file until the search has ended.
    with ExitStack() as held:
        if is_json(request.headers):
            if request.query_params:
                sentence = "search: what goes with a JSON body is in it, not in the address"
                raise Refusal(400, "wrong_request", sentence)
            named = NamedSearch.model_validate_json(await request.body())
            job = Job(named.query, named.options())
            read = partial(_read_named, service, named)
            job.address = held.enter_context(place)
        else:
            job = Job(shown_name(sent.name), sent.options())
            path = service.uploads / (secrets.token_hex(8) + _suffix(job.name))
            read = partial(_read_upload, service, path)
            job.address = held.enter_context(place)
            held.callback(path.unlink, missing_ok=True)
            await receive(request, path)

        held.enter_context(service.metrics.timed("total"))
        held.callback(service.metrics.ended, job)
        work = partial(_search, service, read)
        service.jobs.start(job, work, release=held.pop_all().close)

    await asyncio.wait([job.task], timeout=ANSWER_WITHIN_S)
    if job.error is not None:
        raise job.error
    if job.status != "done":
        response.status_code = 202
        response.headers["location"] = f"/jobs/{job.id}"
    return await _state(service, job, has_paths=has_paths)


def _suffix(name: str) -> str:
    """Of a file's name, where it is an ordinary one; else ""."""
    match = re.search(r"\.[A-Za-z0-9]{1,8}$", name)
    return match[0] if match else ""


def _search(
    service: Service, read: Callable[[OpenIndex, Job], SearchQuery], job: Job
) -> SearchAnswer:
    """Read the query and answer it; again where the index was replaced and removed meanwhile."""
    index = service.collection.current()
    timed = service.metrics.timed
    while True:
        try:
            with timed("read"):
                job.query = read(index, job)
            answer = index.searcher.answer(
                job.query, job.options, deadline=job.deadline, timed=timed
            )
        except DataError:
            newer = service.collection.current(look=True)
            if newer is index:
                raise
            index = newer
            continue
        warnings = tuple(map(without_paths, answer.warnings))
        return replace(answer, warnings=warnings, model=shown_model(answer.model))


def _read_named(service: Service, asked: NamedSearch, index: OpenIndex, job: Job) -> SearchQuery:
    if asked.id is not None:
        return index.read_id(asked.id)
    return index.searcher.read(
        asked.query, access=service.access, limits=service.limits, deadline=job.deadline
    )


def _read_upload(service: Service, path: Path, index: OpenIndex, job: Job) -> SearchQuery:
    try:
        return index.searcher.read(
            path, name=job.name, limits=service.limits, deadline=job.deadline
        )
    except VideoError as error:
        # With the sender's name of the file instead of its temporary place.
        sentence = str(error).replace(str(path), job.name).replace(path.name, job.name)
        raise VideoError(error.reason, sentence) from error


async def _state(service: Service, job: Job, *, has_paths: bool) -> JobState:
    failure = {"error": "", "code": ""} if job.error is None else describe(job.error)[1]
    answer: SearchAnswer | None = None
    places: dict[str, Place] = {}
    if job.status == "done":
        look = partial(_answer_and_places, service, job, has_paths=has_paths)
        answer, places = await anyio.to_thread.run_sync(look)
    return JobState(
        job=job.id,
        status=job.status,
        query=job.name,
        still=is_still(job.name),
        error=failure["error"],
        code=failure["code"],
        answer=answer,
        places=places,
    )


def _answer_and_places(
    service: Service, job: Job, *, has_paths: bool
) -> tuple[SearchAnswer, dict[str, Place]]:
    answer = present_answer(service, job)
    return answer, places_of(service.collection.opened, answer, has_paths=has_paths)


def present_answer(service: Service, job: Job) -> SearchAnswer:
    """The answer of a search that is done, with the marks of this moment."""
    answer = job.task.result()
    index = service.collection.opened
    if index is None or job.query is None:
        return answer

    def digest_of(video_id: str) -> str:
        with suppress(HapvrError):  # a video that was forgotten since
            return index.metadata(video_id).sha256
        return ""

    try:
        marks = read_marks(service.project.root)
    except DataError:  # the data root is away: what was answered stands
        return answer
    return with_marks(answer, job.query.sha256, marks, digest_of)


@router.get("/jobs/{job_id}")
async def job(
    service: ServiceOf,
    has_paths: HasPathsOf,
    job_id: str,
    wait_s: Annotated[float, Query(allow_inf_nan=False)] = 0.0,
) -> JobState:
    """How a search is doing; waits up to `wait_s` seconds (20 at most) for its end."""
    search = service.jobs.get(job_id)
    await asyncio.wait([search.task], timeout=min(wait_s, 20.0))
    return await _state(service, search, has_paths=has_paths)


@router.delete("/jobs/{job_id}")
async def cancel(service: ServiceOf, has_paths: HasPathsOf, job_id: str) -> JobState:
    """End a search that nobody waits for any more."""
    search = service.jobs.get(job_id)
    search.cancel()
    return await _state(service, search, has_paths=has_paths)


@router.get(
    "/jobs/{job_id}/table", responses={200: {"content": {"text/csv": {}}}}, response_class=Response
)
def table(service: ServiceOf, job_id: str, author: Name = "", note: Name = "") -> Response:
    """What a search has found as CSV, with the columns of `hapvr search --out`, rounded, and who
    keeps it, and why."""
    search = service.jobs.get(job_id)
    if search.status != "done":
        sentence = f"jobs: this search is {search.status}; ask for its table when it is done"
        raise Refusal(409, "not_done", sentence)
    rows = answer_table([present_answer(service, search)]).to_pylist()
    record = {"author": author, "note": note}
    text = io.StringIO()
    write_csv([*SCHEMA.names, *record], [_rounded(row) | record for row in rows], text)
    return Response(text.getvalue(), media_type="text/csv")


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with as many decimals as are worth something: seconds have two, other numbers four."""
    return {
        name: round(value, 2 if name in SECONDS else 4) if isinstance(value, float) else value
        for name, value in row.items()
    }


@router.get("/jobs/{job_id}/explanation")
async def why(
    service: ServiceOf, index: IndexOf, place: PlaceOf, job_id: str, reference: SomeName
) -> Explained:
    """Why a search shows a video or does not: in a sentence, and in the words of `hapvr search
    --explain`; it searches once more. A file of the folders that cannot be used says why."""
    if reference not in index.searcher.collection.shard_of:
        unusable = await anyio.to_thread.run_sync(unusable_reason, service.project, reference)
        if unusable:
            return Explained(reason=unusable, lines=[])
    await anyio.to_thread.run_sync(index.metadata, reference)
    search = service.jobs.get(job_id)
    work = partial(
        explain,
        index.searcher,
        search.read_query(),
        reference,
        search.options,
        deadline=Deadline(jobs.SEARCH_TIMEOUT_S),
    )
    with place:
        lines = await anyio.to_thread.run_sync(work, limiter=service.reading)
        return Explained(reason=reason_of(lines, reference, search.options), lines=lines)
