"""Whether the service answers and from which index; and its videos: metadata, files and frames."""

import io
import os
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel
from starlette.responses import FileResponse

from hapvr import __version__
from hapvr.data.frames import thumbnail
from hapvr.errors import DamagedError, DataError
from hapvr.search.marks import read_marks
from hapvr.search.match import Query as SearchQuery
from hapvr.serving.collection import OpenIndex, picture_at
from hapvr.serving.refusals import Refusal, shown_model, without_paths
from hapvr.serving.service import (
    CallerOf,
    Count,
    HasPathsOf,
    IndexOf,
    Name,
    Offset,
    Service,
    ServiceOf,
)

MEDIA_TYPES = {
    ".mp4": "video/mp4",
    ".m4v": "video/mp4",
    ".mov": "video/mp4",
    ".webm": "video/webm",
    ".mkv": "video/x-matroska",
    ".ogv": "video/ogg",
}
"""By suffix; browsers play other files no better if they are told more."""

router = APIRouter()
probes = APIRouter()
"""Endpoints that reveal nothing of the collection and need no token."""


class Health(BaseModel):
    """busy: searches that run or wait, and uploads on their way."""

    status: Literal["ok"] = "ok"
    version: str = __version__
    busy: int


class IndexState(BaseModel):
    """problem: why no index answers, or why the newest cannot. ticket: lets a browser load pictures
    and videos. may_mark: whether who asks may change marks and start work, or only read. has_paths:
    whether they see where files lie, and so may save plans. hosts: from which addresses a search
    may fetch its query; * for any."""

    problem: str
    max_bytes: int
    hosts: list[str]
    ticket: str
    may_mark: bool
    has_paths: bool
    videos: int
    model: str = ""
    untrained: bool = False
    since: str = ""
    recall: float = 0.0
    warnings: list[str] = []


class VideoRow(BaseModel):
    """playable: whether its file existed when it was probed. path: where it lies now; "" for those
    who may only read. clock_note: what is wrong with its clock, so that its seconds are not those
    of players."""

    id: str
    path: str
    num_bytes: int
    duration_s: float | None
    width_px: int
    height_px: int
    codec: str
    playable: bool
    clock_note: str


class Videos(BaseModel):
    """total: before limit and offset."""

    total: int
    videos: list[VideoRow]


@probes.get("/health")
async def health(service: ServiceOf) -> Health:
    """Whether the service answers; it does so while searches run and while there is no index."""
    return Health(busy=service.jobs.busy)


@probes.get("/ready")
def ready(service: ServiceOf) -> Health:
    """Whether searches are answered: index and model are open. Otherwise 503 says why not."""
    searcher = service.collection.current(wait=False).searcher
    if searcher.damage:
        raise DamagedError(searcher.damage[0])
    read_marks(service.project.root)  # as each search does
    if service.processes is not None and not service.processes.num_ready:
        raise DataError("search: the processes that search are starting; ask again")
    return Health(busy=service.jobs.busy)


@router.get("/metrics", responses={200: {"content": {"text/plain": {}}}}, response_class=Response)
def metrics(service: ServiceOf) -> Response:
    """Counts and times since the service began, for Prometheus."""
    return Response(service.metrics.text(), media_type=service.metrics.content_type)


@router.get("/index", response_model_exclude_unset=True)
def index(service: ServiceOf, caller: CallerOf, has_paths: HasPathsOf) -> IndexState:
    """Which index answers, the limits of a search, and what the caller may do. problem: why there
    is none, and what to do."""
    try:
        searcher = service.collection.current().searcher
    except DataError as error:
        problem = without_paths(str(error))
        return IndexState(
            max_bytes=service.limits.max_bytes,
            hosts=sorted(service.access.hosts),
            ticket=service.ticket,
            may_mark=caller.may_mark,
            has_paths=has_paths,
            videos=0,
            problem=problem,
        )

    return IndexState(
        max_bytes=service.limits.max_bytes,
        hosts=sorted(service.access.hosts),
        ticket=service.ticket,
        may_mark=caller.may_mark,
        has_paths=has_paths,
        videos=searcher.num_videos,
        model=shown_model(searcher.model),
        untrained=searcher.untrained,
        since=searcher.current.since,
        recall=searcher.current.recall,
        warnings=[without_paths(text) for text in searcher.warnings],
        problem=without_paths(str(service.collection.problem or "")),
    )


@router.get("/videos")
def videos(
    index: IndexOf,
    has_paths: HasPathsOf,
    contains: Name = "",
    limit: Count = 50,
    offset: Offset = 0,
) -> Videos:
    """Videos whose id contains some letters, or the present name of whose file does, for those who
    may see it, in order."""
    ids = index.ids_with(contains, has_paths=has_paths)
    page = [
        VideoRow(**index.video_row(video_id, has_paths=has_paths))
        for video_id in ids[offset : offset + limit]
    ]
    return Videos(total=len(ids), videos=page)


@router.get("/videos/{video_id:path}")
def video(index: IndexOf, has_paths: HasPathsOf, video_id: str) -> VideoRow:
    """Metadata of a video and its file."""
    return VideoRow(**index.video_row(video_id, has_paths=has_paths))


@router.head("/media/{video_id:path}", include_in_schema=False)
@router.get("/media/{video_id:path}", response_class=FileResponse)
def media(index: IndexOf, video_id: str) -> Response:
    """The file of a video, whole or by ranges. One whose size is not that of the indexed file is
    refused."""
    metadata = index.metadata(video_id)
    path = metadata.path
    hint = (
        "rebuild its shard (`hapvr download --retry-failed`, `sample`, `extract`), "
        "then run `hapvr index update`"
    )
    if path is None or not os.path.isfile(path):
        sentence = f"media: the file of {video_id} is not there any more; {hint}"
        raise Refusal(410, "gone", sentence)
    if metadata.num_bytes not in (0, path.stat().st_size):
        sentence = f"media: the file of {video_id} has another size than when it was indexed"
        raise Refusal(410, "replaced", f"{sentence}; {hint}")

    kind = MEDIA_TYPES.get(path.suffix.lower(), "application/octet-stream")
    return FileResponse(path, media_type=kind, headers={"cache-control": "private, max-age=60"})


PICTURE: Any = {
    "responses": {200: {"content": {"image/jpeg": {}}}},
    "response_class": Response,
}
"""Documents an answer that is a picture."""

Second = Annotated[float | None, Query(ge=0, allow_inf_nan=False)]
Width = Annotated[int, Query(ge=16, le=640)]


@router.get("/thumbnails/{video_id:path}", **PICTURE)
async def picture(
    index: IndexOf, service: ServiceOf, video_id: str, second: Second = None, width: Width = 192
) -> Response:
    """The sampled frame that is nearest to a second, as JPEG; without one, the first that is not of
    one colour."""

    def read_picture() -> bytes | None:
        index.metadata(video_id)
        return index.picture(video_id, second)

    jpeg = await anyio.to_thread.run_sync(read_picture, limiter=service.reading)
    if jpeg is None:
        sentence = (
            f"thumbnails: {video_id} has no frames; it is gone, or only features were imported"
        )
        raise Refusal(410, "gone", sentence)

    return await small_picture(service, jpeg, width)


@router.get("/query-pictures/{job_id}", **PICTURE)
async def query_picture(
    index: IndexOf, service: ServiceOf, job_id: str, second: Second = None, width: Width = 192
) -> Response:
    """A sampled frame of the query of a search, as JPEG; of which second as for a video."""
    job = service.jobs.find(job_id)
    if job is not None:
        return await query_frame(index, service, job.read_query(), second, width)

    kept = await anyio.to_thread.run_sync(service.kept.read, job_id)
    if kept is None:
        raise Refusal(404, "unknown_job", "pictures: this search is not kept any more")
    if kept.answer.query_id:
        return await picture(index, service, kept.answer.query_id, second, width)
    if not kept.pictures:
        raise Refusal(410, "gone", f"pictures: {kept.name} has no frames any more")
    jpeg = picture_at(list(kept.pictures.values()), list(kept.pictures), second)
    return await small_picture(service, jpeg, width)


async def query_frame(
    index: OpenIndex, service: Service, query: SearchQuery, second: float | None, width: int
) -> Response:
    """A sampled frame of a query that was read. Raises Refusal `gone` where there is none."""

    def read_picture() -> bytes | None:
        if query.video_id:
            return index.picture(query.video_id, second)
        frames = query.features.jpegs
        return picture_at(frames, query.features.clock.times_s, second) if frames else None

    jpeg = await anyio.to_thread.run_sync(read_picture, limiter=service.reading)
    if jpeg is None:
        raise Refusal(410, "gone", f"pictures: {query.name} has no frames any more")
    return await small_picture(service, jpeg, width)


async def small_picture(service: Service, jpeg: bytes, width: int) -> Response:
    """A frame as an answer, no wider and no higher than `width`."""

    def shrink() -> bytes:
        small = io.BytesIO()
        thumbnail(jpeg, size_px=(width, width)).save(small, "JPEG", quality=80)
        return small.getvalue()

    content = await anyio.to_thread.run_sync(shrink, limiter=service.reading)
    headers = {"cache-control": "private, max-age=600"}
    return Response(content, media_type="image/jpeg", headers=headers)
