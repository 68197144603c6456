"""What searches have found: the state of a job, its answer as a table, and why it shows a video or
not. Answers that are kept outlive their jobs."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel

from hapvr.errors import DataError, HapvrError
from hapvr.scorer.access import Deadline
from hapvr.search.kept_answers import KeptAnswer
from hapvr.search.marks import read_marks
from hapvr.search.match import SCHEMA, SearchAnswer, answer_table
from hapvr.serving import jobs
from hapvr.serving.collection import OpenIndex
from hapvr.serving.folders import unusable_reason
from hapvr.serving.jobs import Job
from hapvr.serving.refusals import Problem, Refusal, describe
from hapvr.serving.service import HasPathsOf, IndexOf, Name, PlaceOf, Service, ServiceOf, SomeName
from hapvr.serving.shown import Place, is_still, places_of, reason_of, with_marks
from hapvr.steps.explanation import explain
from hapvr.tables import write_csv

router = APIRouter()


class JobState(Problem):
    """A search. still: whether a picture was searched for. error, code, plain: why it failed, else
    "". answer: None until it is done, with the marks of this moment. places: of its videos. since:
    when it was asked for, ISO 8601, UTC."""

    job: str
    status: Literal["waiting", "running", "done", "failed"]
    query: str
    still: bool
    answer: SearchAnswer | None
    places: dict[str, Place]
    since: str


class Explained(BaseModel):
    """reason: why a video is shown or not, in a sentence. lines: all that was found of it, each a
    label in the first nine columns, which may be blank, and a text; none of a file that cannot be
    used."""

    reason: str
    lines: list[str]


SECONDS = ("query_start", "query_end", "ref_start", "ref_end", "offset")
"""Columns of a table that are times."""


async def state_of(service: Service, job: Job, *, has_paths: bool) -> JobState:
    """A search as it is shown now."""
    failure = (
        {"error": "", "code": "", "plain": ""} if job.error is None else describe(job.error)[1]
    )
    answer: SearchAnswer | None = None
    places: dict[str, Place] = {}
    if job.status == "done":
        sha256 = "" if job.query is None else job.query.sha256
        look = partial(_answer_and_places, service, job.task.result(), sha256, has_paths=has_paths)
        answer, places = await anyio.to_thread.run_sync(look)

    return JobState(
        job=job.id,
        status=job.status,
        query=job.name,
        still=is_still(job.name),
        error=failure["error"],
        code=failure["code"],
        plain=failure["plain"],
        answer=answer,
        places=places,
        since=job.since,
    )


async def _state_of_kept(service: Service, kept: KeptAnswer, *, has_paths: bool) -> JobState:
    look = partial(_answer_and_places, service, kept.answer, kept.sha256, has_paths=has_paths)
    answer, places = await anyio.to_thread.run_sync(look)
    return JobState(
        job=kept.job,
        status="done",
        query=kept.name,
        still=is_still(kept.name),
        error="",
        code="",
        answer=answer,
        places=places,
        since=kept.since,
    )


def _answer_and_places(
    service: Service, answer: SearchAnswer, sha256: str, *, has_paths: bool
) -> tuple[SearchAnswer, dict[str, Place]]:
    present = present_answer(service, answer, sha256)
    return present, places_of(_index(service), present, has_paths=has_paths)


def _index(service: Service) -> OpenIndex | None:
    """The index of this moment, which a service that has just begun opens first."""
    with suppress(DataError):
        return service.collection.current()
    return None


def present_answer(service: Service, answer: SearchAnswer, sha256: str) -> SearchAnswer:
    """An answer with the marks of this moment. sha256: of its query's file; "" where there is
    none."""
    index = _index(service)
    if index is None:
        return answer

    def digest_of(video_id: str) -> str:
        with suppress(HapvrError):  # a video that was forgotten since
            return index.metadata(video_id).sha256
        return ""

    try:
        marks = read_marks(service.project.root)
    except DataError:  # the data root is offline: what was answered stands
        return answer

    return with_marks(answer, sha256, marks, digest_of)


async def kept_of(service: Service, job_id: str) -> KeptAnswer:
    """The answer of a search whose job has gone. Raises Refusal `unknown_job` where it was not
    kept."""
    kept = await anyio.to_thread.run_sync(service.kept.read, job_id)
    if kept is None:
        service.jobs.get(job_id)  # says that there is none
        raise Refusal(404, "unknown_job", "jobs: the answer has gone just now; search again")

    return kept


@router.get("/jobs/{job_id}")
async def job(
    service: ServiceOf,
    has_paths: HasPathsOf,
    job_id: str,
    wait_s: Annotated[float, Query(allow_inf_nan=False)] = 0.0,
) -> JobState:
    """How a search is doing; waits up to `wait_s` seconds (20 at most) for its end. An answer stays
    at this address as long as `retention.answer_days` says."""
    search = service.jobs.find(job_id)
    if search is None:
        kept = await kept_of(service, job_id)
        return await _state_of_kept(service, kept, has_paths=has_paths)

    await asyncio.wait([search.task], timeout=min(wait_s, 20.0))
    return await state_of(service, search, has_paths=has_paths)


@router.delete("/jobs/{job_id}")
async def cancel(service: ServiceOf, has_paths: HasPathsOf, job_id: str) -> JobState:
    """Cancel a search."""
    search = service.jobs.get(job_id)
    search.cancel()
    return await state_of(service, search, has_paths=has_paths)


@router.get(
    "/jobs/{job_id}/table", responses={200: {"content": {"text/csv": {}}}}, response_class=Response
)
async def table(service: ServiceOf, job_id: str, author: Name = "", note: Name = "") -> Response:
    """What a search has found as CSV, with the columns of `hapvr search --out`, rounded, and who
    keeps it, and why."""
    search = service.jobs.find(job_id)
    if search is None:
        kept = await kept_of(service, job_id)
        answer = kept.answer
        sha256 = kept.sha256
    elif search.status != "done":
        sentence = f"jobs: this search is {search.status}; ask for its table when it is done"
        raise Refusal(409, "not_done", sentence)
    else:
        answer = search.task.result()
        sha256 = search.read_query().sha256

    def write() -> str:
        rows = answer_table([present_answer(service, answer, sha256)]).to_pylist()
        record = {"author": author, "note": note}
        text = io.StringIO()
        write_csv([*SCHEMA.names, *record], [_rounded(row) | record for row in rows], text)
        return text.getvalue()

    return Response(await anyio.to_thread.run_sync(write), media_type="text/csv")


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with as many decimals as are worth something: seconds have two, other numbers four."""
    return {
        name: round(value, 2 if name in SECONDS else 4) if isinstance(value, float) else value
        for name, value in row.items()
    }


@router.get("/jobs/{job_id}/explanation")
async def why(
    service: ServiceOf,
    index: IndexOf,
    place: PlaceOf,
    has_paths: HasPathsOf,
    job_id: str,
    reference: SomeName,
) -> Explained:
    """Why a search shows a video or does not: in a sentence, and in the words of `hapvr search
    --explain`; it searches once more. A file of the folders that cannot be used says why. The name
    of a file will do where one video is called so."""
    reference = await anyio.to_thread.run_sync(partial(index.id_of, reference, has_paths=has_paths))
    if reference not in index.searcher.collection.shard_of:
        unusable = await anyio.to_thread.run_sync(unusable_reason, service.project, reference)
        if unusable:
            return Explained(reason=unusable, lines=[])

    await anyio.to_thread.run_sync(index.metadata, reference)
    search = service.live_job(job_id)
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
