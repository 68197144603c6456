"""A candidate of a search with its scores, and what follows from them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hapvr.scorer.course import CommonCourse
from hapvr.scorer.evidence_kinds import FRAME_RUN
from hapvr.scorer.segments import Segment
from hapvr.search.compared_parts import Pair, Rows
from hapvr.search.votes import Candidate


@dataclass(frozen=True, kw_only=True)
class ScoredCandidate:
    """What a search has found out about a video that it compared with the query."""

    video_id: str
    similarity: float = -math.inf
    """in [-1, 1], of the best pair of parts, see `pairs_of`; where the video, or its part, is the
    shorter one, the other way round if that is higher: similarities ask how much of the first is in
    the second"""
    evidence: Mapping[str, float] = field(default_factory=dict)
    """the most that each kind of evidence says of any pair of parts, by name"""
    pairs: tuple[Pair, ...]
    """all that were compared"""
    num_frames: int
    """of the whole video"""
    seconds: float
    """how long the whole video lasts"""
    candidate: Candidate
    """why it was compared"""
    view: int = 0
    """number of the query's view that was compared"""
    is_copy: bool = False
    """whether it was found to show the query's own footage, see `known_copies`; only asked where
    many videos are like the query"""
    log_odds: float | None = None
    """of a match, from all evidence; None without a model of it"""
    segments: tuple[Segment, ...] | None = None
    """common parts, the longest and surest first; None where they were not looked for"""
    course: CommonCourse | None = None
    """of the first of them; None where the videos have not the same course, or where it would
    hardly matter, see `SearchEngine.with_course`"""

    @property
    def frame_run(self) -> float:
        """What the relative similarities of two consecutive frames reach, in [-1, 1]."""
        return self.evidence.get(FRAME_RUN.name, -math.inf)


def stretches_of(score: ScoredCandidate) -> list[Rows]:
    """Where in a video segments are looked for: its compared parts with half of their length before
    and after them. That is twice a part, as a video has it that shows the query at half the speed.
    Stretches that touch are one."""
    longer = []
    for first, last in (pair.reference for pair in score.pairs):
        more = (last - first + 1) // 2
        longer.append((max(first - more, 0), min(last + more, score.num_frames)))

    stretches: list[Rows] = []
    for first, last in sorted(longer):
        if stretches and first <= stretches[-1][1]:
            stretches[-1] = (stretches[-1][0], max(last, stretches[-1][1]))
        else:
            stretches.append((first, last))

    return stretches
