"""Whether the service answers and from which index, and the videos of it: what is known of them,
their files and frames."""

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
from hapvr.serving.refusals import Refusal, shown_model, without_paths
from hapvr.serving.service import Count, IndexOf, Name, Offset, ServiceOf

MEDIA_TYPES = dict.fromkeys((".mp4", ".m4v", ".mov"), "video/mp4")
MEDIA_TYPES |= {".webm": "video/webm", ".mkv": "video/x-matroska", ".ogv": "video/ogg"}
"""Media types by suffix; browsers play others no better if they are told more."""

router = APIRouter()
probes = APIRouter()
"""What tells nothing of the collection, and asks for no token."""


class Health(BaseModel):
    """busy: searches that run or wait, and uploads on their way."""

    status: Literal["ok"] = "ok"
    version: str = __version__
    busy: int


class IndexState(BaseModel):
    """problem: why no index answers, or why the newest cannot. ticket: lets a browser load pictures
    and videos."""

    problem: str
    max_bytes: int
    ticket: str
    videos: int
    model: str = ""
    untrained: bool = False
    since: str = ""
    recall: float = 0.0
    warnings: list[str] = []


class VideoRow(BaseModel):
    """playable: whether its file existed when it was probed."""

    id: str
    num_bytes: int
    duration_s: float | None
    width_px: int
    height_px: int
    codec: str
    playable: bool


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
    return Health(busy=service.jobs.busy)


@router.get("/metrics", responses={200: {"content": {"text/plain": {}}}}, response_class=Response)
def metrics(service: ServiceOf) -> Response:
    """Counts and times since the service began, for Prometheus."""
    return Response(service.metrics.text(), media_type=service.metrics.content_type)


@router.get("/index", response_model=IndexState, response_model_exclude_unset=True)
def index(service: ServiceOf) -> Any:
    """Which index answers, and the limits of a search. problem: why there is none, and what to
    do."""
    value: dict[str, Any] = {"max_bytes": service.limits.max_bytes, "ticket": service.ticket}
    try:
        searcher = service.collection.current().searcher
    except DataError as error:
        return value | {"videos": 0, "problem": without_paths(str(error))}
    return value | {
        **{
            "videos": searcher.num_videos,
            "model": shown_model(searcher.model),
            "untrained": searcher.untrained,
        },
        **{"since": searcher.current.since, "recall": searcher.current.recall},
        "warnings": [without_paths(text) for text in searcher.warnings],
        "problem": without_paths(str(service.collection.problem or "")),
    }


@router.get("/videos", response_model=Videos)
def videos(index: IndexOf, contains: Name = "", limit: Count = 50, offset: Offset = 0) -> Any:
    """Videos whose id contains some letters, in order."""
    found = [video_id for video_id in index.video_ids if contains.casefold() in video_id.casefold()]
    return {
        "total": len(found),
        "videos": [index.video_row(one) for one in found[offset : offset + limit]],
    }


@router.get("/videos/{video_id:path}", response_model=VideoRow)
def video(index: IndexOf, video_id: str) -> Any:
    """What is known of the file of a video."""
    return index.video_row(video_id)


@router.head("/media/{video_id:path}", include_in_schema=False)
@router.get("/media/{video_id:path}", response_class=FileResponse)
def media(index: IndexOf, video_id: str) -> Response:
    """The file of a video, whole or by ranges. One whose size is not that of the indexed file is
    refused."""
    metadata, code, state = index.metadata(video_id), "gone", "is not there any more"
    if (path := metadata.path) is not None and os.path.isfile(path):
        if metadata.num_bytes in (0, path.stat().st_size):
            kind = MEDIA_TYPES.get(path.suffix.lower(), "application/octet-stream")
            return FileResponse(
                path, media_type=kind, headers={"cache-control": "private, max-age=60"}
            )
        code, state = "replaced", "has another size than when it was indexed"
    hint = (
        "make its shard again (`hapvr download --retry-failed`, `sample`, `extract`), "
        "then run `hapvr index update`"
    )
    raise Refusal(410, code, f"media: the file of {video_id} {state}; {hint}")


@router.get(
    "/thumbnails/{video_id:path}",
    responses={200: {"content": {"image/jpeg": {}}}},
    response_class=Response,
)
async def picture(
    index: IndexOf,
    service: ServiceOf,
    video_id: str,
    second: Annotated[float | None, Query(ge=0, allow_inf_nan=False)] = None,
    width: Annotated[int, Query(ge=16, le=640)] = 192,
) -> Response:
    """The sampled frame that is nearest to a second, as JPEG; without one, the first that is not of
    one colour."""

    def made() -> bytes | None:
        index.metadata(video_id)
        small, jpeg = io.BytesIO(), index.picture(video_id, second)
        if jpeg is not None:
            thumbnail(jpeg, size_px=(width, width)).save(small, "JPEG", quality=80)
        return small.getvalue()

    found = await anyio.to_thread.run_sync(made, limiter=service.reading)
    if not found:
        raise Refusal(
            410,
            "gone",
            f"thumbnails: {video_id} has no frames; it is gone, or only features were imported",
        )
    return Response(
        found, media_type="image/jpeg", headers={"cache-control": "private, max-age=600"}
    )
