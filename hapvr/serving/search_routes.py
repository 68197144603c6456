"""POST /search and what belongs to a search that takes longer."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from hapvr.errors import VideoError
from hapvr.serving.jobs import Job
from hapvr.serving.requests import SearchAsked, UploadAsked, parsed, small_json
from hapvr.serving.service import Service, ServiceOf
from hapvr.serving.uploads import receive

router = APIRouter()


@router.post("/search")
async def search(request: Request, service: ServiceOf) -> Response:
    """Search for a path, URL or id, as JSON; or for a file that is the body, with the other values in the address."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind.startswith("multipart/"):
        raise VideoError(
            "wrong_body", "search: send the file itself as the body, and its name as ?name=, without a form"
        )
    try:
        job = await (_named(request, service) if kind == "application/json" else _uploaded(request, service))
    except ClientDisconnect:  # nobody is there to be answered
        return Response(status_code=400)
    return await _answer(service, job, wait_s=service.settings.answer_within_s)


async def _named(request: Request, service: Service) -> Job:
    """A search that was begun for what a JSON object names; while that arrives it holds no place."""
    asked = await small_json(request, SearchAsked)
    wanted = asked.wanted()
    job = Job(asked.path or asked.url or asked.id or "", video_id=asked.id or "")
    with service.jobs.place() as start:
        return start(job, lambda job: service.search(job, asked, wanted))


async def _uploaded(request: Request, service: Service) -> Job:
    """A search that was begun for the file that is the body."""
    given = parsed(UploadAsked, dict(request.query_params))
    wanted = given.wanted()
    with service.jobs.place() as start:
        upload = await receive(
            request, given.name, max_bytes=service.limits.max_bytes, timeout_s=service.settings.upload_timeout_s
        )
        job = Job(upload.name, release=upload.remove)
        return start(job, lambda job: service.search_upload(job, upload, wanted))


@router.get("/jobs/{job_id}")
async def job(service: ServiceOf, job_id: str, wait_s: Annotated[float, Query(allow_inf_nan=False)] = 0.0) -> Response:
    """How a search is doing; waits up to `wait_s` seconds (20 at most) for its end."""
    found = service.jobs.get(job_id)
    await _ended(found, min(max(wait_s, 0.0), 20.0))
    return JSONResponse(service.shown(found))


@router.delete("/jobs/{job_id}")
async def cancel(service: ServiceOf, job_id: str) -> dict[str, Any]:
    """End a search that nobody waits for any more."""
    found = service.jobs.get(job_id)
    service.jobs.cancel(found)
    return service.shown(found)


async def _answer(service: Service, job: Job, *, wait_s: float) -> Response:
    """Rows, an error, or 202 with the id of the job."""
    await _ended(job, wait_s)
    if job.status == "failed" and job.error is not None:
        raise job.error
    done = job.status == "done"
    return JSONResponse(
        service.shown(job), 200 if done else 202, headers={} if done else {"location": f"/jobs/{job.id}"}
    )


async def _ended(job: Job, wait_s: float) -> None:
    """Wait for the end of a job, but not longer."""
    if job.future is not None and not job.ended.is_set() and wait_s > 0:
        await asyncio.wait([asyncio.wrap_future(job.future)], timeout=wait_s)
