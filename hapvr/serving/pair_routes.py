"""Pairs of videos: how similar their frames are, and what people say about them."""

from __future__ import annotations

import io
from dataclasses import asdict
from typing import Annotated, Any

import anyio
import numpy as np
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray
from PIL import Image
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from hapvr.errors import ArgumentError, VideoError
from hapvr.scorer.deadline import Deadline
from hapvr.search import query as search_query
from hapvr.search.marks import mark_pair, read_marks, unmark_pair
from hapvr.search.match import FrameMatrix
from hapvr.serving.collection import OpenIndex
from hapvr.serving.requests import MarkAsked, small_json
from hapvr.serving.service import IndexOf, Service, ServiceOf
from hapvr.stages.marking import is_digest

router = APIRouter()
COLORS = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], float)
"""Of similarities from 0 to 1, evenly apart."""

QueryId = Annotated[str | None, Query(max_length=4096)]
Place = Annotated[str, Query(max_length=4096)]


@router.get("/pairs")
def marks(service: ServiceOf) -> dict[str, Any]:
    """All marks, the oldest first."""
    return {"marks": [asdict(row) for row in read_marks(service.project.root).rows()]}


@router.patch("/pairs")
async def mark(request: Request, service: ServiceOf, index: IndexOf) -> Response:
    """Say that two videos match or do not, or take that back."""
    try:
        asked = await small_json(request, MarkAsked)
    except ClientDisconnect:  # nobody is there to be answered
        return Response(status_code=400)
    return JSONResponse(await anyio.to_thread.run_sync(_mark, service, index, asked))


def _mark(service: Service, index: OpenIndex, asked: MarkAsked) -> dict[str, Any]:
    first, name = _content(service, index, asked.query, asked.job)
    second = _digest(index, asked.reference)
    root = service.project.root
    if asked.mark is None:
        gone = unmark_pair(root, first, second)
        return {"mark": None, "before": None if gone is None else gone.verdict}
    mark_pair(root, first, second, asked.mark, names=(asked.name or name, asked.reference))
    return {"mark": asked.mark}


@router.get("/pairs/matrix")
async def matrix(
    service: ServiceOf, index: IndexOf, reference: Place, query: QueryId = None, job: QueryId = None
) -> dict[str, Any]:
    """The similarity of frames as numbers: a row per frame of the query, a column per frame of the reference."""
    found = await _matrix(service, index, query, job, reference)
    return {
        "query_times_s": found.query_times_s,
        "reference_times_s": found.reference_times_s,
        "threshold": found.threshold,
        "segments": [asdict(segment) for segment in found.segments],
        "values": np.round(found.values, 3).tolist(),
    }


@router.get("/pairs/matrix.png")
async def matrix_picture(
    service: ServiceOf, index: IndexOf, reference: Place, query: QueryId = None, job: QueryId = None
) -> Response:
    """The same as a picture, a pixel per pair of frames."""
    found = await _matrix(service, index, query, job, reference)
    data = io.BytesIO()
    Image.fromarray(colored(found.values)).save(data, "PNG")
    return Response(data.getvalue(), media_type="image/png")


def colored(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Similarities [T, T'] as colours [T, T', 3], dark to light; those below 0 look like 0."""
    places = np.clip(values, 0, 1) * (len(COLORS) - 1)
    channels = [np.interp(places, range(len(COLORS)), COLORS[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


async def _matrix(
    service: Service, index: OpenIndex, query: str | None, job: str | None, reference: str
) -> FrameMatrix:
    index.check(reference)
    _one_of(query, job)
    deadline = Deadline(service.settings.search_timeout_s)

    def compared() -> FrameMatrix:
        asked = _query(service, index, query, job)
        return index.searcher.matrix(asked, reference, max_cells=service.settings.max_matrix_cells, deadline=deadline)

    return await anyio.to_thread.run_sync(compared, limiter=service.reading)


def _query(service: Service, index: OpenIndex, video_id: str | None, job_id: str | None) -> search_query.Query:
    if video_id is not None:
        index.check(video_id)
        return index.searcher.read_id(video_id)
    assert job_id is not None
    found = service.jobs.get(job_id).query
    if found is None:
        raise VideoError("gone", "pairs: the query of this search is not kept any more; search again")
    return found


def _content(service: Service, index: OpenIndex, video_id: str | None, job_id: str | None) -> tuple[str, str]:
    """SHA-256 and name of what a mark is about. Raises ArgumentError for a query that has no file."""
    _one_of(video_id, job_id)
    if video_id is not None:
        return _digest(index, video_id), video_id
    assert job_id is not None
    job = service.jobs.get(job_id)
    if not job.sha256:
        raise ArgumentError("pairs: the query of this search has no file that a mark could be kept for; fetch it first")
    return job.sha256, job.name


def _digest(index: OpenIndex, name: str) -> str:
    """SHA-256 of a video of the collection, or the digest that is given. Raises VideoError `unknown_id`."""
    return name if is_digest(name) else index.facts(name).sha256


def _one_of(query: str | None, job: str | None) -> None:
    if (query is None) == (job is None):
        raise ArgumentError("pairs: wanted one of query (an id) and job (of a search)")
