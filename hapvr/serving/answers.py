"""What the endpoints answer. A field that is not named here is never sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from hapvr.scorer.segments import Segment
from hapvr.search.marks import Mark, Verdict
from hapvr.search.match import SearchAnswer


class Problem(BaseModel):
    """Every error: one sentence, and a code for programs."""

    error: str
    code: str


class Health(BaseModel):
    """busy: searches that run or wait, and uploads on their way."""

    status: Literal["ok"] = "ok"
    version: str
    busy: int


class JobState(Problem):
    """A search. error, code: why it failed, else "". answer: None until it is done."""

    job: str
    status: Literal["waiting", "running", "done", "failed"]
    query: str
    answer: SearchAnswer | None


class Explained(BaseModel):
    """lines: a label in the first nine columns, which may be blank, and a text."""

    lines: list[str]


class IndexState(BaseModel):
    """problem: why no index answers, or why the newest cannot. ticket: lets a browser load pictures and videos."""

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


class WatchMatch(BaseModel):
    """A row of `hapvr watch`, and what is said of it. Times are of the surest common part, if there is one."""

    watch_list: str
    query: str
    query_id: str
    query_sha256: str
    video_id: str
    similarity: float
    probability: float | None
    verdict: str
    same_file: bool
    mark: str
    query_covered: float | None
    video_covered: float | None
    query_start_s: float | None
    query_end_s: float | None
    video_start_s: float | None
    video_end_s: float | None
    model: str
    since: str


class WatchMatches(BaseModel):
    """lists: the names of all."""

    total: int
    lists: list[str]
    matches: list[WatchMatch]


class WatchListMade(BaseModel):
    """name: of the list."""

    name: str


class GroupedVideo(VideoRow):
    """A video of a group, compared with its medoid, which has no values for that. keep, reason: of copies."""

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
    """total: before limit and offset. shards_searched: those whose videos were searched for as they are now."""

    total: int
    groups: list[Group]
    shards_searched: int
    shards: int


class DuplicateJobState(BaseModel):
    """How far the collection is looked through. error: why the last attempt ended."""

    running: bool
    done: int
    total: int
    error: str


@dataclass(frozen=True, kw_only=True)
class ShownMark(Mark):
    """in_collection: whether both names are those of videos that can be compared."""

    in_collection: bool


class Marks(BaseModel):
    """The oldest first."""

    marks: list[ShownMark]


class Marked(BaseModel):
    """mark: what is said now."""

    mark: Verdict | None


class Matrix(BaseModel):
    """values: a row per frame of the query, a column per frame of the reference. threshold: from which on frames are the same."""

    query_times_s: list[float]
    reference_times_s: list[float]
    threshold: float
    segments: list[Segment]
    values: list[list[float]]
    mark: str
