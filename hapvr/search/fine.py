"""Fine scores of candidates: the champion's network on the parts of query and candidate that may show the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import numpy as np

from hapvr.errors import DataError
from hapvr.model.settings import COMPARATOR_STEP
from hapvr.scorer.access import Deadline
from hapvr.scorer.scorer import NEVER, EmbeddedVideo, VideoScorer
from hapvr.scorer.videos import SampledFeatures
from hapvr.search.votes import Candidate

CANDIDATES_AT_ONCE = 16
"""Candidates whose features are in memory together."""

FORMAT = 3
"""Version of the scores: pairs and matches stored with another version are compared again. 3: parts of one length, for the query too."""

WHOLE_FRAMES = 60
"""Sampled frames up to which a query and a video are compared whole, if both are that short."""
PART_FRAMES = 8
"""Sampled frames of query and video around votes that are compared at least."""

Rows = tuple[int, int]
"""First and last + 1 of some frames."""

LEAST_CONTAINED = 0.5
"""Probability of a match from which on a short video counts as shown within the query; what is below only moves the ranks
of unrelated videos."""


class Videos(Protocol):
    """Where features of the collection come from; see `SearchableCollection`."""

    def times(self, video_id: str) -> Sequence[float]:
        """Seconds [T] of the sampled frames."""

    def read(self, video_id: str, times_s: Sequence[float], first: int, last: int) -> SampledFeatures:
        """The frames from `first` to `last` - 1."""


@dataclass(frozen=True)
class Pair:
    """Frames of the query and of a candidate that are compared."""

    query: Rows
    reference: Rows


@dataclass(frozen=True, kw_only=True)
class ScoredCandidate:
    """votes: of the shortlist, 0 if the whole video led to it. similarity in [-1, 1]: of the best pair of parts, see
    `pairs_of`; where the video, or its part, is the shorter one, the other way round if that is higher and says that it
    lies within the query: similarities ask how much of the first is in the second. pairs: all that were compared.
    num_frames: of the whole video, and seconds: how long it lasts."""

    video_id: str
    votes: float
    similarity: float
    pairs: tuple[Pair, ...]
    num_frames: int
    seconds: float


def fine_scores(
    query: EmbeddedVideo,
    candidates: Sequence[Candidate],
    *,
    scorer: VideoScorer,
    videos: Videos,
    deadline: Deadline = NEVER,
) -> tuple[list[ScoredCandidate], dict[str, str]]:
    """Scores of candidates, best first, and why others have none: video id -> reason.

    A candidate has none if its features are gone, which happens to videos that were removed after they were indexed.
    Raises VideoError `timeout` where the deadline passes before the last is scored.
    """
    scores: list[ScoredCandidate] = []
    lost: dict[str, str] = {}
    for start in range(0, len(candidates), CANDIDATES_AT_ONCE):
        times: dict[str, Sequence[float]] = {}
        pairs: dict[Candidate, tuple[Pair, ...]] = {}
        parts: list[tuple[Rows, str, EmbeddedVideo]] = []
        for candidate in candidates[start : start + CANDIDATES_AT_ONCE]:
            name = candidate.video_id
            try:
                times[name] = videos.times(name)
                chosen = pairs_of(candidate, times[name], query=query, fps=scorer.sampling.fps)
                read = [videos.read(name, times[name], *pair.reference) for pair in chosen]
            except DataError as error:
                lost[name] = str(error)
                continue
            pairs[candidate] = tuple(chosen)
            parts += [(pair.query, name, scorer.embed(one, deadline)) for pair, one in zip(chosen, read, strict=True)]
        best = _best(query, parts, scorer, deadline)
        scores += [
            ScoredCandidate(
                video_id=candidate.video_id,
                votes=candidate.votes,
                similarity=best[candidate.video_id],
                pairs=compared,
                num_frames=len(times[candidate.video_id]),
                seconds=times[candidate.video_id][-1] + 1 / scorer.sampling.fps,
            )
            for candidate, compared in pairs.items()
        ]
    return sorted(scores, key=lambda score: (-score.similarity, score.video_id)), lost


def _best(
    query: EmbeddedVideo, parts: Sequence[tuple[Rows, str, EmbeddedVideo]], scorer: VideoScorer, deadline: Deadline
) -> Mapping[str, float]:
    """The highest similarity of each video. parts: rows of the query, id of the video and what is compared of it."""
    best: dict[str, float] = {}
    for rows, group in groupby(sorted(parts, key=lambda part: part[0]), key=lambda part: part[0]):
        names, embedded = zip(*((name, part) for _, name, part in group), strict=True)
        shown = query.part(*rows)
        for name, part, similarity in zip(names, embedded, scorer.similarities(shown, embedded, deadline), strict=True):
            if len(part) < len(shown):
                (back,) = scorer.similarities(part, [shown], deadline)
                if back > similarity and _is_contained(back, scorer):
                    similarity = back
            best[name] = max(similarity, best.get(name, similarity))
    return best


def _is_contained(similarity: float, scorer: VideoScorer) -> bool:
    """Whether this similarity of a video with the query says a match; any does to a model without calibration."""
    calibration = scorer.calibration
    return calibration is None or calibration.probability(similarity) >= LEAST_CONTAINED


def pairs_of(candidate: Candidate, times_s: Sequence[float], *, query: EmbeddedVideo, fps: float) -> list[Pair]:
    """Which frames of the query are compared with which of a candidate.

    All with all if both are short (`WHOLE_FRAMES`), or no frame voted for the candidate. Otherwise each window makes a
    pair: the part of the query whose frames voted, of at least `PART_FRAMES`, and the part of the candidate at the voted
    offset. Similarities of few frames depend on their number, so parts have whole steps of the comparator, and both parts
    of a pair the same number, unless a video is shorter.
    """
    count = len(times_s)
    if max(count, len(query)) <= WHOLE_FRAMES or not candidate.windows:
        return [Pair((0, len(query)), (0, count))]
    pairs: list[Pair] = []
    for window in candidate.windows:
        voted = round((window.query_end_s - window.query_start_s) * fps) + 1
        length = min(_whole_steps(max(voted, PART_FRAMES)), _whole_steps(len(query)))
        middle_s = (window.query_start_s + window.query_end_s) / 2
        shown = _around(middle_s, length, query.clock.times_s, fps=fps)
        middle_s = (query.clock.times_s[shown[0]] + query.clock.times_s[shown[1] - 1]) / 2
        pair = Pair(shown, _around(middle_s + window.offset_s, length, times_s, fps=fps))
        if not any(_same(pair, better) for better in pairs):
            pairs.append(pair)
    return pairs


def stretches_of(score: ScoredCandidate) -> list[Rows]:
    """Where in a video segments are looked for: its compared parts with half of their length before and after them.

    That is twice a part, as a video has it that shows the query at half the speed. Stretches that touch are one.
    """
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


def _whole_steps(num_frames: int) -> int:
    return -(-num_frames // COMPARATOR_STEP) * COMPARATOR_STEP


def _around(middle_s: float, num_frames: int, times_s: Sequence[float], *, fps: float) -> Rows:
    """So many rows around a second, moved where the video begins or ends; all rows of a shorter video."""
    first = int(np.searchsorted(times_s, middle_s - num_frames / 2 / fps))
    first = max(min(first, len(times_s) - num_frames), 0)
    return first, min(first + num_frames, len(times_s))


def _same(pair: Pair, other: Pair) -> bool:
    """Whether more than half of both parts of a pair are in another one."""
    return all(
        min(part[1], better[1]) - max(part[0], better[0]) > (part[1] - part[0]) / 2
        for part, better in ((pair.query, other.query), (pair.reference, other.reference))
    )
