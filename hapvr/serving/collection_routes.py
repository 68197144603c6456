"""What the collection holds and what is known of it; and whether the service is well."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query

from hapvr import __version__
from hapvr.errors import DataError
from hapvr.search.current import current_index
from hapvr.serving.known_pairs import Filters, after, listed, matches_of, video_row
from hapvr.serving.refusals import without_places
from hapvr.serving.service import IndexOf, ServiceOf
from hapvr.serving.watched import watched

router = APIRouter()
Limit = Annotated[int, Query(ge=1, le=1000)]
Offset = Annotated[int, Query(ge=0)]
Name = Annotated[str, Query(max_length=4096)]


@router.get("/health")
async def health(service: ServiceOf) -> dict[str, Any]:
    """Whether the service answers; it does so while searches run and while there is no index."""
    return {"status": "ok", "version": __version__, "busy": service.jobs.busy}


@router.get("/index")
def index(service: ServiceOf) -> dict[str, Any]:
    """Which index answers, and the limits of a search. problem: why there is none; remedy within."""
    value: dict[str, Any] = {"busy": service.jobs.busy, "problem": "", "max_bytes": service.limits.max_bytes}
    try:
        found = service.collection.current()
        current = current_index(service.project.root)
    except DataError as error:
        return value | {"videos": 0, "problem": without_places(str(error), service.names)}
    calibration = found.searcher.scorer.calibration
    return value | {
        "videos": found.searcher.num_videos,
        "shards": len(found.searcher.collection.shards()),
        "sources": found.sources,
        "model": current.model if current.model.startswith("models:/") else Path(current.model).name,
        "since": current.since,
        "recall": current.recall,
        "prior": None if calibration is None else calibration.prior,
        "warnings": [without_places(text, service.names) for text in found.searcher.warnings],
        "problem": without_places(service.collection.problem, service.names),
    }


@router.get("/videos")
def videos(index: IndexOf, contains: Name = "", limit: Limit = 50, offset: Offset = 0) -> dict[str, Any]:
    """Videos whose id contains some letters, in order."""
    wanted = contains.casefold()
    found = [video_id for video_id in index.video_ids if wanted in video_id.casefold()]
    shown = found[offset : offset + limit]
    return {"total": len(found), "videos": [video_row(video_id, index.facts(video_id)) for video_id in shown]}


@router.get("/videos/{video_id:path}/matches")
def matches(
    service: ServiceOf,
    index: IndexOf,
    video_id: str,
    limit: Limit = 100,
    offset: Offset = 0,
    rejected: bool = False,
) -> dict[str, Any]:
    """What is known of one video without a search: its pairs of `hapvr duplicates`. rejected: those marked as no match too."""
    index.check(video_id)
    pairs, searched = service.pairs.read(index)
    rows = matches_of((pair for pair in pairs if rejected or pair.mark != "not_a_match"), video_id)
    shown = rows[offset : offset + limit]
    return {"total": len(rows), "searched": index.searcher.collection.shard_of[video_id] in searched, "matches": shown}


@router.get("/videos/{video_id:path}")
def video(index: IndexOf, video_id: str) -> dict[str, Any]:
    """What is known of the file of a video."""
    return video_row(video_id, index.facts(video_id))


@router.get("/watch")
def watch(
    service: ServiceOf, index: IndexOf, watch_list: Name = "", limit: Limit = 50, offset: Offset = 0
) -> dict[str, Any]:
    """What the watch lists have found, the newest first. watch_list: of one list; "" for all."""
    rows = watched(index, watch_list=watch_list)
    names = [one.name for one in service.project.config.watch.lists]
    return {"total": len(rows), "lists": names, "matches": rows[offset : offset + limit]}


@router.get("/duplicates")
def duplicates(
    service: ServiceOf,
    index: IndexOf,
    kind: Name = "",
    folder: Name = "",
    source: Name = "",
    min_probability: float = 0.9,
    limit: Limit = 50,
    cursor: Annotated[str, Query(max_length=20_000)] = "",
) -> dict[str, Any]:
    """Groups of copies and pairs of the other kinds, a piece at a time. next: the cursor of the following piece, or ""."""
    filters = Filters(kind=kind, folder=folder, source=source, min_probability=min_probability)
    pairs, searched = service.pairs.read(index)
    rows = listed(pairs, index, filters)
    shown, following = after(rows, cursor, limit)
    return {
        "total": len(rows),
        "groups": shown,
        "next": following,
        "shards_searched": len(searched),
        "shards": len(index.searcher.collection.shards()),
    }
