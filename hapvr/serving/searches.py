"""Searches: what they are asked, the jobs that answer, and why they show a video or not."""

from __future__ import annotations

import asyncio
import io
import re
import secrets
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field, model_validator

from hapvr.errors import DataError, VideoError
from hapvr.scorer.access import Deadline
from hapvr.search import DEFAULT_TOP
from hapvr.search.match import SCHEMA, Part, Query as SearchQuery, SearchAnswer, answer_table
from hapvr.serving import jobs
from hapvr.serving.collection import OpenIndex
from hapvr.serving.jobs import Job
from hapvr.serving.refusals import Problem, Refusal, describe, shown_model, without_paths
from hapvr.serving.service import IndexOf, Name, PlaceOf, Service, ServiceOf, SomeName, Values
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
    """A search. error, code: why it failed, else "". answer: None until it is done."""

    job: str
    status: Literal["waiting", "running", "done", "failed"]
    query: str
    answer: SearchAnswer | None


class Explained(BaseModel):
    """lines: a label in the first nine columns, which may be blank, and a text."""

    lines: list[str]


SEARCH_BODY = {"application/json": {"schema": NamedSearch.model_json_schema()}, **FILE_BODY}


@router.post(
    "/search",
    response_model=JobState,
    responses={202: {"model": JobState, "description": "Not done yet: ask for the job"}},
    openapi_extra={"requestBody": {"required": True, "content": SEARCH_BODY}},
)
async def search(
    request: Request,
    service: ServiceOf,
    place: PlaceOf,
    sent: Annotated[UploadSearch, Query()],
    response: Response,
) -> Any:
    """Search for a path, URL or id, as JSON; or for a file that is the body, with the other values
    in the address."""
    with (
        ExitStack() as held
    ):  # the place while a file arrives; file and place until the search has ended
        if is_json(request.headers):
            if request.query_params:
                raise Refusal(
                    400,
                    "wrong_request",
                    "search: what goes with a JSON body is in it, not in the address",
                )
            named = NamedSearch.model_validate_json(await request.body())
            job, read = Job(named.query, named.options()), partial(_read_named, service, named)
            job.address = held.enter_context(place)
        else:
            job = Job(shown_name(sent.name), sent.options())
            suffix = re.search(r"\.[A-Za-z0-9]{1,8}$", job.name)
            path = service.uploads / (secrets.token_hex(8) + (suffix[0] if suffix else ""))
            read = partial(_read_upload, service, path)
            job.address = held.enter_context(place)
            held.callback(path.unlink, missing_ok=True)
            await receive(request, path)

        def work(job: Job) -> SearchAnswer:
            index, timed = service.collection.current(), service.metrics.timed
            while True:
                try:
                    with timed("read"):
                        job.query = read(index, job)
                    found = index.searcher.answer(
                        job.query, job.options, deadline=job.deadline, timed=timed
                    )
                    said = tuple(map(without_paths, found.warnings))
                    return replace(found, warnings=said, model=shown_model(found.model))
                except DataError:
                    before, index = index, service.collection.current(look=True)
                    if index is before:
                        raise
                    # else it was replaced, and removed, meanwhile

        held.enter_context(service.metrics.timed("total"))
        held.callback(service.metrics.ended, job)
        service.jobs.start(job, work, release=held.pop_all().close)
    await asyncio.wait([job.task], timeout=ANSWER_WITHIN_S)
    if job.error is not None:
        raise job.error
    if job.status != "done":
        response.status_code, response.headers["location"] = 202, f"/jobs/{job.id}"
    return _shown(job)


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
    except VideoError as error:  # with the sender's name of the file instead of its temporary place
        said = str(error).replace(str(path), job.name).replace(path.name, job.name)
        raise VideoError(error.reason, said) from error


def _shown(job: Job) -> dict[str, Any]:
    failure = {"error": "", "code": ""} if job.error is None else describe(job.error)[1]
    answer = job.task.result() if job.status == "done" else None
    return {"job": job.id, "status": job.status, "query": job.name, **failure, "answer": answer}


@router.get("/jobs/{job_id}", response_model=JobState)
async def job(
    service: ServiceOf, job_id: str, wait_s: Annotated[float, Query(allow_inf_nan=False)] = 0.0
) -> Any:
    """How a search is doing; waits up to `wait_s` seconds (20 at most) for its end."""
    found = service.jobs.get(job_id)
    await asyncio.wait([found.task], timeout=min(wait_s, 20.0))
    return _shown(found)


@router.delete("/jobs/{job_id}", response_model=JobState)
async def cancel(service: ServiceOf, job_id: str) -> Any:
    """End a search that nobody waits for any more."""
    found = service.jobs.get(job_id)
    found.cancel()
    return _shown(found)


@router.get(
    "/jobs/{job_id}/table", responses={200: {"content": {"text/csv": {}}}}, response_class=Response
)
def table(service: ServiceOf, job_id: str, author: Name = "", note: Name = "") -> Response:
    """What a search has found as CSV, with the columns of `hapvr search --out`; and who keeps it,
    and why."""
    found = service.jobs.get(job_id)
    if found.status != "done":
        raise Refusal(
            409,
            "not_done",
            f"jobs: this search is {found.status}; ask for its table when it is done",
        )
    text, rows = io.StringIO(), answer_table([found.task.result()]).to_pylist()
    said = {"author": author, "note": note}
    write_csv([*SCHEMA.names, *said], (row | said for row in rows), text)
    return Response(text.getvalue(), media_type="text/csv")


@router.get("/jobs/{job_id}/explanation")
async def why(
    service: ServiceOf, index: IndexOf, place: PlaceOf, job_id: str, reference: SomeName
) -> Explained:
    """Why a search shows a video or does not, in the words of `hapvr search --explain`; it searches
    once more."""
    await anyio.to_thread.run_sync(index.metadata, reference)
    job, deadline = service.jobs.get(job_id), Deadline(jobs.SEARCH_TIMEOUT_S)
    work = partial(
        explain, index.searcher, job.read_query(), reference, job.options, deadline=deadline
    )
    with place:
        return Explained(lines=await anyio.to_thread.run_sync(work, limiter=service.reading))
