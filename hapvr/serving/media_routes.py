"""Videos and pictures of the collection, by id alone."""

from __future__ import annotations

import io
import stat
from typing import Annotated

import anyio
from fastapi import APIRouter, Query, Response
from starlette.responses import FileResponse

from hapvr.errors import VideoError
from hapvr.serving.service import IndexOf, ServiceOf
from hapvr.storage.frames import thumbnail

router = APIRouter()
MEDIA_TYPES = {
    ".mp4": "video/mp4",
    ".m4v": "video/mp4",
    ".mov": "video/mp4",
    ".webm": "video/webm",
    ".mkv": "video/x-matroska",
    ".ogv": "video/ogg",
}
"""By suffix; browsers play others no better if they are told more."""


@router.head("/media/{video_id:path}", include_in_schema=False)
@router.get("/media/{video_id:path}")
def media(index: IndexOf, video_id: str) -> Response:
    """The file of a video, whole or by ranges. One whose size is not that of the indexed file is refused."""
    facts = index.facts(video_id)
    path = facts.path
    try:
        found = None if path is None else path.stat()
    except (OSError, ValueError):
        found = None
    if path is None or found is None or not stat.S_ISREG(found.st_mode):
        raise VideoError(
            "gone",
            f"media: the file of {video_id} is not there any more; `hapvr index update` forgets it once it is gone",
        )
    if facts.num_bytes and found.st_size != facts.num_bytes:
        raise VideoError(
            "replaced",
            f"media: the file of {video_id} has {found.st_size} bytes now, and {facts.num_bytes} when it was indexed; make "
            "its shard again (`hapvr download`, `sample`, `extract`), then run `hapvr index update`",
        )
    kind = MEDIA_TYPES.get(path.suffix.lower(), "application/octet-stream")
    return FileResponse(path, media_type=kind, headers={"cache-control": "private, max-age=60"})


@router.get("/thumbnails/{video_id:path}")
async def picture(
    index: IndexOf,
    service: ServiceOf,
    video_id: str,
    second: Annotated[float, Query(ge=0, allow_inf_nan=False)] = 0.0,
    width: Annotated[int, Query(ge=16, le=640)] = 192,
) -> Response:
    """The sampled frame that is nearest to a second, as JPEG."""
    index.check(video_id)

    def made() -> bytes | None:
        jpeg = index.pictures.at(video_id, second)
        if jpeg is None:
            return None
        small = io.BytesIO()
        thumbnail(jpeg, size_px=(width, width)).save(small, "JPEG", quality=80)
        return small.getvalue()

    found = await anyio.to_thread.run_sync(made, limiter=service.reading)
    if found is None:
        raise VideoError(
            "gone", f"thumbnails: there are no frames of {video_id}; features alone were imported, or it is gone"
        )
    return Response(found, media_type="image/jpeg", headers={"cache-control": "private, max-age=600"})
