"""Groups of copies and pairs of other kinds, and the job that looks for them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from hapvr.search.duplicates import KINDS, DuplicatePair, Kind
from hapvr.search.plan import write_plan
from hapvr.serving.collection import OpenIndex
from hapvr.serving.jobs import DuplicateJobState
from hapvr.serving.refusals import Refusal
from hapvr.serving.service import (
    Count,
    HasPathsOf,
    IndexOf,
    MarkerOf,
    Name,
    Offset,
    ServiceOf,
    Values,
)
from hapvr.serving.videos import VideoRow
from hapvr.steps.duplicate_groups import copy_groups, make_duplicate_groups
from hapvr.steps.duplicate_pairs import duplicate_pairs, outdated_pairs
from hapvr.steps.pair_search import LEAST_PROBABILITY
from hapvr.steps.planned_moves import remember_plan
from hapvr.video.sources import is_inside

router = APIRouter()

PairsByIds = Mapping[frozenset[str], DuplicatePair]


class DuplicateFilter(Values):
    """Which groups and pairs are wanted; "" is for all.

    surety: "certain" for groups all of whose videos match, "unsure" for those that need a look.
    folder: of ids, in whole parts."""

    kind: Kind | Literal[""] = ""
    surety: Literal["certain", "unsure", ""] = ""
    folder: Name = ""
    min_probability: Annotated[float, Field(ge=LEAST_PROBABILITY, le=1)] = 0.9
    limit: Count = 50
    offset: Offset = 0


class PlanForm(Values):
    """form: a table, or a script that acts only when it is told to."""

    form: Literal["csv", "sh"]


class GroupedVideo(VideoRow):
    """A video of a group, compared with its medoid, which has no values for that. keep, reason: of
    copies."""

    medoid: bool
    keep: bool = False
    reason: str = ""
    mark: str = ""
    probability: float | None = None
    verdict: str | None = None
    same_file: bool = False
    query_covered: float | None = None
    reference_covered: float | None = None


class Group(BaseModel):
    """Copies, or a pair of another kind. probability: the least of them all."""

    kind: str
    group: str
    probability: float
    members: list[GroupedVideo]


class Groups(BaseModel):
    """total: before limit and offset. shards_searched: those whose present videos were all searched
    for."""

    total: int
    groups: list[Group]
    shards_searched: int
    shards: int


@router.get("/duplicates", response_model_exclude_unset=True)
async def duplicates(
    service: ServiceOf,
    index: IndexOf,
    has_paths: HasPathsOf,
    wanted: Annotated[DuplicateFilter, Query()],
) -> Groups:
    """Groups of copies, then pairs of the other kinds, the largest and surest first, a piece at a
    time."""
    work = partial(_groups, index, wanted, has_paths=has_paths)
    return await anyio.to_thread.run_sync(work, limiter=service.reading)


def _groups(index: OpenIndex, wanted: DuplicateFilter, *, has_paths: bool) -> Groups:
    searcher = index.searcher
    pairs = duplicate_pairs(searcher.project, searcher, min_probability=wanted.min_probability)
    by_ids = {frozenset((pair.first, pair.second)): pair for pair in pairs}
    rows = _pair_rows(index, pairs, by_ids) + _copy_rows(index, pairs, by_ids)
    rows = [row for row in rows if _is_wanted(row, wanted)]
    rows.sort(key=_order)
    page = rows[wanted.offset : wanted.offset + wanted.limit]
    for member in chain.from_iterable(row["members"] for row in page):
        member |= index.video_row(member["id"], has_paths=has_paths)

    shards = set(searcher.collection.shards())
    outdated = outdated_pairs(searcher.project, searcher.collection.metadata)
    groups = {
        "total": len(rows),
        "groups": page,
        "shards_searched": len(shards - outdated.keys()),
        "shards": len(shards),
    }
    return Groups.model_validate(groups)


def _pair_rows(
    index: OpenIndex, pairs: Sequence[DuplicatePair], by_ids: PairsByIds
) -> list[dict[str, Any]]:
    """A group of two for each pair that is of another kind than a copy."""
    rows = []
    for pair in pairs:
        if pair.kind != "copy":
            members = _members(index, pair.first, (pair.first, pair.second), by_ids)
            rows.append(_row(pair.kind, "", members))

    return rows


def _copy_rows(
    index: OpenIndex, pairs: Sequence[DuplicatePair], by_ids: PairsByIds
) -> list[dict[str, Any]]:
    """Groups of copies, with what to keep and why."""
    rows = []
    copies = copy_groups(index.searcher, pairs)
    for name, group in groupby(copies, key=lambda member: member.group):
        videos = list(group)
        medoid = next(video.video_id for video in videos if video.medoid)
        ids = [video.video_id for video in videos]
        members = _members(index, medoid, ids, by_ids)
        for member, video in zip(members, videos, strict=True):
            member["keep"] = video.keep
            member["reason"] = video.reason

        rows.append(_row("copy", name, members))

    return rows


def _row(kind: str, group: str, members: Sequence[dict[str, Any]]) -> dict[str, Any]:
    least = min(member["probability"] for member in members if not member["medoid"])
    return {"kind": kind, "group": group, "members": members, "probability": least}


def _members(
    index: OpenIndex, medoid: str, ids: Iterable[str], by_ids: PairsByIds
) -> list[dict[str, Any]]:
    """The videos of a group, compared with the medoid, which is the query of what the common parts
    cover."""
    members = []
    for video_id in ids:
        member: dict[str, Any] = {"id": video_id, "medoid": video_id == medoid}
        pair = by_ids.get(frozenset((medoid, video_id)))
        if pair is not None:  # the medoid itself is not a pair
            first_is_query = pair.first == medoid
            member |= {
                "probability": pair.probability,
                "mark": pair.mark,
                "verdict": pair.verdict,
                "same_file": pair.same_file,
                "query_covered": pair.first_covered if first_is_query else pair.second_covered,
                "reference_covered": pair.second_covered if first_is_query else pair.first_covered,
            }

        members.append(member)

    return members


def _is_wanted(row: dict[str, Any], wanted: DuplicateFilter) -> bool:
    if wanted.kind not in ("", row["kind"]):
        return False
    if wanted.surety not in ("", _surety(row)):
        return False
    return any(is_inside(member["id"], wanted.folder) for member in row["members"])


def _surety(row: Mapping[str, Any]) -> str:
    """Whether a group needs a look: one whose videos do not all match, or are alike while no
    stretch of them could be matched second by second; a pair that people have marked needs none."""
    compared = [member for member in row["members"] if not member["medoid"]]
    is_decided = all(member["mark"] or member["same_file"] for member in compared)
    is_aligned = row["kind"] != "same_incident" or is_decided
    is_match = all(member["verdict"] == "match" for member in compared)
    return "certain" if is_match and is_aligned else "unsure"


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    """Copies before other kinds, then the largest, then the surest."""
    ids = [member["id"] for member in row["members"]]
    return (KINDS.index(row["kind"]), -len(ids), -row["probability"], ids)


@router.post(
    "/duplicates/plan",
    responses={200: {"content": {"application/octet-stream": {}}}},
    response_class=Response,
)
async def plan(
    service: ServiceOf,
    index: IndexOf,
    has_paths: HasPathsOf,
    _: MarkerOf,
    wanted: Annotated[PlanForm, Query()],
) -> Response:
    """What could be kept, linked or moved, as `hapvr duplicates --plan` writes it. Nothing happens
    to a file before somebody runs the script. Refused where no paths are shown, as it names where
    each file is."""
    if not has_paths:
        raise Refusal(
            403,
            "no_paths",
            "duplicates: a plan says where files are, which this service shows to nobody without "
            "a token; run `hapvr duplicates --plan` on its machine",
        )

    work = partial(_plan, index, wanted.form)
    content = await anyio.to_thread.run_sync(work, limiter=service.reading)
    return Response(content, media_type="application/octet-stream")


def _plan(index: OpenIndex, form: str) -> bytes:
    searcher = index.searcher
    members = make_duplicate_groups(searcher.project, searcher)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / f"plan.{form}"
        write_plan(place, members)
        remember_plan(searcher.project, members)
        return place.read_bytes()


@router.get("/duplicates/job")
def duplicate_job(service: ServiceOf) -> DuplicateJobState:
    """How far the collection is looked through since the service began."""
    return service.duplicate_job.state


@router.post("/duplicates/job", status_code=202)
async def look_through(service: ServiceOf, index: IndexOf, _: MarkerOf) -> DuplicateJobState:
    """Look through what was not looked through yet, as `hapvr duplicates` does; once at a time."""
    return service.duplicate_job.start(index)
