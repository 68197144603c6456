"""Searches: their parameters, and the jobs that answer."""

from __future__ import annotations

import asyncio
import re
import secrets
from contextlib import ExitStack
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field, model_validator

from hapvr.search import DEFAULT_TOP
from hapvr.search.match import Part
from hapvr.serving.answers import JobState, state_of
from hapvr.serving.jobs import Job
from hapvr.serving.refusals import Refusal
from hapvr.serving.search_work import QuerySource
from hapvr.serving.service import HasPathsOf, Name, PlaceOf, ServiceOf, SomeName, Values
from hapvr.serving.uploads import FILE_BODY, is_json, receive, shown_name
from hapvr.steps.searcher import SearchOptions

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
            raise ValueError(
                "expected one of path, url and id, or a file as the body of the request"
            )
        return self


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
            source = QuerySource(video_id=named.id or "", place=named.path or named.url or "")
            job.address = held.enter_context(place)
        else:
            job = Job(shown_name(sent.name), sent.options())
            path = service.uploads / (secrets.token_hex(8) + _suffix(job.name))
            source = QuerySource(upload=path)
            job.address = held.enter_context(place)
            held.callback(path.unlink, missing_ok=True)
            await receive(request, path)

        held.enter_context(service.metrics.timed("total"))
        held.callback(service.metrics.ended, job)
        work = partial(service.answer, source)
        service.jobs.start(job, work, release=held.pop_all().close)

    await asyncio.wait([job.task], timeout=ANSWER_WITHIN_S)
    if job.error is not None:
        raise job.error
    if job.status != "done":
        response.status_code = 202
        response.headers["location"] = f"/jobs/{job.id}"

    return await state_of(service, job, has_paths=has_paths)


def _suffix(name: str) -> str:
    """Of a file's name, where it is an ordinary one; else ""."""
    match = re.search(r"\.[A-Za-z0-9]{1,8}$", name)
    return match[0] if match else ""
