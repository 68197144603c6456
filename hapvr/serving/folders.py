"""The collection as its owners see it: folders, files that cannot be used and why, and taking in
what has come since."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
from fastapi import APIRouter
from pydantic import BaseModel

from hapvr.collection import add_folders, collection_rows, update_collection
from hapvr.data.shards import STATUS_OK
from hapvr.errors import DataError
from hapvr.reasons import plain_reason
from hapvr.serving.background import Work, WorkState
from hapvr.serving.collection import OpenIndex, collection_place, present_project
from hapvr.serving.refusals import Refusal, without_paths
from hapvr.serving.service import HasPathsOf, MarkerOf, Service, ServiceOf
from hapvr.serving.watch import require_no_problem
from hapvr.steps.planned_moves import set_aside
from hapvr.steps.project import Project
from hapvr.steps.source_listing import LOCAL
from hapvr.steps.watch_runs import run_watch_lists
from hapvr.video.settings import PARTS

router = APIRouter()


class Folder(BaseModel):
    """A source of videos. path: "" for those who may only read. there: whether it can be read
    now. videos: of it that can be searched."""

    name: str
    path: str
    there: bool
    videos: int


class Unusable(BaseModel):
    """A file that cannot be searched. code, error, plain: why, see `Problem`."""

    id: str
    code: str
    error: str
    plain: str


class Partial(BaseModel):
    """A file of which only a part can be searched. missing: what its frames lack."""

    id: str
    missing: str


class CollectionState(BaseModel):
    """updated: when the index that answers was written, ISO 8601, UTC; "" where there is none.
    partial: files of which only a part can be searched. can_update: whether the service can take in
    new files itself."""

    videos: int
    updated: str
    folders: list[Folder]
    unusable: list[Unusable]
    partial: list[Partial]
    can_update: bool


@router.get("/collection")
async def collection(service: ServiceOf, has_paths: HasPathsOf) -> CollectionState:
    """What the collection holds, of which folders, and which files cannot be used and why."""

    def look() -> CollectionState:
        index: OpenIndex | None = None
        with suppress(DataError):  # there may be none yet
            index = service.collection.current()
        updated = ""
        if index is not None:
            updated = datetime.fromtimestamp(index.changed_s, UTC).isoformat(timespec="seconds")
        return CollectionState(
            videos=0 if index is None else index.searcher.num_videos,
            updated=updated,
            folders=_folders(service.project, index, has_paths=has_paths),
            unusable=unusable_files(service.project),
            partial=_partial_files(service.project),
            can_update=collection_place(service.project) is not None,
        )

    return await anyio.to_thread.run_sync(look, limiter=service.reading)


def _folders(project: Project, index: OpenIndex | None, *, has_paths: bool) -> list[Folder]:
    video_ids = [] if index is None else index.video_ids
    counts = Counter(video_id.partition("/")[0] for video_id in video_ids)
    folders = []
    for source in present_project(project).config.sources:
        path = str(getattr(source, "path", ""))
        place = project.path(Path(path)) if path else None
        folders.append(
            Folder(
                name=source.name,
                path=str(place) if has_paths and place is not None else "",
                there=source.kind not in LOCAL or (place is not None and os.path.exists(place)),
                videos=sum(counts[f"{source.name}{part}"] for part in PARTS),
            )
        )

    return folders


def unusable_files(project: Project) -> list[Unusable]:
    """Files that were found and cannot be searched, but for those that a plan has set aside."""
    try:
        rows = [row for row in collection_rows(project) if row["status"] != STATUS_OK]
    except DataError:  # files are being read for the first time
        return []

    aside = set_aside(project, [row["video_id"] for row in rows])
    return [_unusable(row) for row in rows if row["video_id"] not in aside]


def _partial_files(project: Project) -> list[Partial]:
    with suppress(DataError):
        rows = [row for row in collection_rows(project) if row.get("is_partial")]
        return [Partial(id=row["video_id"], missing=without_paths(row["message"])) for row in rows]
    return []


def unusable_reason(project: Project, name: str) -> str:
    """Why a file cannot be searched that is called by its id or the end of it; "" where no such
    file is known."""
    for file in unusable_files(project):
        if file.id == name or file.id.endswith(f"/{name.lstrip('/')}"):
            return f"{file.id} cannot be searched: {file.plain or file.error}"
    return ""


def _unusable(row: dict[str, Any]) -> Unusable:
    code = row["reason"] or ""
    message = row["message"] or ""
    return Unusable(
        id=row["video_id"],
        code=code,
        error=without_paths(message),
        plain=plain_reason(code, message),
    )


@router.get("/collection/job")
def update_state(service: ServiceOf) -> WorkState:
    """How far taking in new files is."""
    return service.updating.state


@router.post("/collection/job", status_code=202)
async def update(service: ServiceOf, _: MarkerOf) -> WorkState:
    """Take in what has come to the folders and what has gone from them, as `hapvr index add` does
    without a folder, and run the watch lists; once at a time."""
    if collection_place(service.project) is None:
        sentence = (
            "collection: this one is kept up to date by its configuration; run `hapvr index update`"
        )
        raise Refusal(409, "not_here", sentence)

    return service.updating.start(lambda work: _update(service, work))


def _update(service: Service, work: Work) -> None:
    place = collection_place(service.project)
    assert place is not None
    project = add_folders(place, [], overrides=service.project.overrides)
    _, copies = update_collection(project, work.bar)
    watched = None if copies is None else run_watch_lists(project, work.bar)
    service.collection.current(look=True)
    if watched is not None:
        require_no_problem(watched)
