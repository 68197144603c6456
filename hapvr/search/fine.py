"""Fine scores of candidates: the champion's network on the parts of their stored features that may show the query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hapvr.errors import DataError
from hapvr.model.settings import COMPARATOR_STEP
from hapvr.scorer.deadline import Deadline
from hapvr.scorer.scorer import NEVER, EmbeddedVideo, VideoScorer
from hapvr.scorer.videos import SampledFeatures
from hapvr.search.settings import SearchSettings
from hapvr.search.votes import Candidate, Window

CANDIDATES_AT_ONCE = 16
"""Candidates whose features are in memory together."""

FORMAT = 2
"""Of the scores: stored pairs and matches of another one are compared again. 2: windows of one length."""

LEAST_CONTAINED = 0.5
"""Probability of a match from which on a short video counts as shown within the query; what is below only moves the ranks
of unrelated videos (docs/experiments.md)."""


class Videos(Protocol):
    """Where features of the collection come from; see `StoredVideos`."""

    def times(self, video_id: str) -> Sequence[float]:
        """Seconds [T] of the sampled frames."""

    def read(self, video_id: str, times_s: Sequence[float], first: int, last: int) -> SampledFeatures:
        """The frames from `first` to `last` - 1."""


@dataclass(frozen=True, kw_only=True)
class FineScore:
    """similarity in [-1, 1]: of the query with the best piece of the video, or, of a video that is shorter than the query, of
    the video with the query if that is higher and says that it lies within the query: similarities ask how much of the
    first is in the second. rows: which piece, its first and last + 1 frame. num_frames: of the whole video, and seconds:
    how long it lasts."""

    video_id: str
    similarity: float
    rows: tuple[int, int]
    num_frames: int
    seconds: float


def fine_scores(
    query: EmbeddedVideo,
    candidates: Sequence[Candidate],
    *,
    scorer: VideoScorer,
    videos: Videos,
    settings: SearchSettings,
    deadline: Deadline = NEVER,
) -> tuple[list[FineScore], dict[str, str]]:
    """Scores of candidates, best first, and why others have none: video id -> reason.

    A candidate has none if its features are gone, which happens to videos that were removed after they were indexed.
    Raises VideoError `timeout` where the deadline passes before the last is scored.
    """
    scores: list[FineScore] = []
    lost: dict[str, str] = {}
    for start in range(0, len(candidates), CANDIDATES_AT_ONCE):
        pieces: list[tuple[str, tuple[int, int], Sequence[float]]] = []
        embedded: list[EmbeddedVideo] = []
        for candidate in candidates[start : start + CANDIDATES_AT_ONCE]:
            try:
                times = videos.times(candidate.video_id)
                for rows in pieces_of(candidate, times, query=query, settings=settings, fps=scorer.sampling.fps):
                    embedded.append(scorer.embed(videos.read(candidate.video_id, times, *rows), deadline))
                    pieces.append((candidate.video_id, rows, times))
            except DataError as error:
                lost[candidate.video_id] = str(error)
        best: dict[str, FineScore] = {}
        scored = zip(pieces, embedded, scorer.similarities(query, embedded, deadline), strict=True)
        for (video_id, rows, times), piece, similarity in scored:
            if len(piece) == len(times) < len(query):
                (back,) = scorer.similarities(piece, [query], deadline)
                if back > similarity and _is_contained(back, scorer):
                    similarity = back
            if video_id not in best or similarity > best[video_id].similarity:
                best[video_id] = FineScore(
                    video_id=video_id,
                    similarity=similarity,
                    rows=rows,
                    num_frames=len(times),
                    seconds=times[-1] + 1 / scorer.sampling.fps,
                )
        scores += [score for video_id, score in best.items() if video_id not in lost]
    return sorted(scores, key=lambda score: (-score.similarity, score.video_id)), lost


def _is_contained(similarity: float, scorer: VideoScorer) -> bool:
    """Whether this similarity of a video with the query says a match; any does to a model without calibration."""
    calibration = scorer.calibration
    return calibration is None or calibration.probability(similarity) >= LEAST_CONTAINED


def pieces_of(
    candidate: Candidate, times_s: Sequence[float], *, query: EmbeddedVideo, settings: SearchSettings, fps: float
) -> list[tuple[int, int]]:
    """Which frames of a candidate are scored: first and last + 1 of each piece.

    A short video (`whole_frames`) is scored whole, and so is one that no frame voted for. A long one is scored by the
    stretch beside each window that the query's own frames would cover at the voted offset. Similarities of few frames
    depend on their number, so all stretches that a short query is compared with are as long as the query, in whole steps
    of the comparator. Beside a long query they end `margin_s` before and after the votes, and those that touch are one.
    """
    count = len(times_s)
    if count <= settings.whole_frames or not candidate.windows:
        return [(0, count)]
    first_s, last_s = query.clock.times_s[0], query.clock.times_s[-1]
    if len(query) > settings.whole_frames:
        spans = sorted(_span(window, first_s, last_s, margin_s=settings.margin_s) for window in candidate.windows)
        return list(_merged(spans, np.asarray(times_s), slack_s=1 / fps))
    length = -(-len(query) // COMPARATOR_STEP) * COMPARATOR_STEP
    pieces: list[tuple[int, int]] = []
    for window in candidate.windows:
        piece = _around(window.offset_s + (first_s + last_s) / 2, length, times_s, fps=fps)
        if not any(_shared(piece, better) > length / 2 for better in pieces):
            pieces.append(piece)
    return pieces


def stretch_of(score: FineScore) -> tuple[int, int]:
    """First and last + 1 frame of the scored piece with half of its length before and after it, as far as the video goes.

    That is twice the piece, as a video has it that shows the query at half the speed.
    """
    first, last = score.rows
    more = (last - first + 1) // 2
    return max(first - more, 0), min(last + more, score.num_frames)


def _span(window: Window, first_s: float, last_s: float, *, margin_s: float) -> tuple[float, float]:
    """Seconds of the reference that belong to a window."""
    before = min(window.query_start_s - first_s, margin_s)
    after = min(last_s - window.query_end_s, margin_s)
    return window.reference_start_s - before, window.reference_end_s + after


def _merged(spans: Sequence[tuple[float, float]], times: np.ndarray, *, slack_s: float) -> Iterator[tuple[int, int]]:
    """Rows of sorted spans of seconds; those that touch become one."""
    start, end = spans[0]
    for next_start, next_end in [*spans[1:], (np.inf, np.inf)]:
        if next_start <= end + slack_s:
            end = max(end, next_end)
            continue
        first = int(np.searchsorted(times, start - slack_s))
        last = int(np.searchsorted(times, end + slack_s, side="right"))
        if last > first:
            yield first, last
        start, end = next_start, next_end


def _around(middle_s: float, num_frames: int, times_s: Sequence[float], *, fps: float) -> tuple[int, int]:
    """So many rows around a second, moved where the video begins or ends; all rows of a shorter video."""
    first = int(np.searchsorted(times_s, middle_s - num_frames / 2 / fps))
    first = max(min(first, len(times_s) - num_frames), 0)
    return first, min(first + num_frames, len(times_s))


def _shared(piece: tuple[int, int], other: tuple[int, int]) -> int:
    return min(piece[1], other[1]) - max(piece[0], other[0])
