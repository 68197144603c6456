"""Fine scores of candidates: the champion's network on the parts of their stored features that may show the query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hapvr.errors import DataError
from hapvr.scorer.deadline import Deadline
from hapvr.scorer.scorer import NEVER, EmbeddedVideo, VideoScorer
from hapvr.scorer.videos import SampledFeatures
from hapvr.search.settings import SearchSettings
from hapvr.search.votes import Candidate, Window

CANDIDATES_AT_ONCE = 16
"""Candidates whose features are in memory together."""


class Videos(Protocol):
    """Where features of the collection come from; see `StoredVideos`."""

    def times(self, video_id: str) -> Sequence[float]:
        """Seconds [T] of the sampled frames."""

    def read(self, video_id: str, times_s: Sequence[float], first: int, last: int) -> SampledFeatures:
        """The frames from `first` to `last` - 1."""


@dataclass(frozen=True, kw_only=True)
class FineScore:
    """similarity in [-1, 1]: of the query with the best piece of the video, or of the video with the query if that is higher
    and the video the shorter one: similarities ask how much of the first is in the second. rows: which piece, its first and
    last + 1 frame. num_frames: of the whole video, and seconds: how long it lasts."""

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
        for (video_id, rows, times), piece, forth in scored:
            similarity = forth
            if len(piece) == len(times) < len(query):
                similarity = max(forth, *scorer.similarities(piece, [query], deadline))
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


def pieces_of(
    candidate: Candidate, times_s: Sequence[float], *, query: EmbeddedVideo, settings: SearchSettings, fps: float
) -> list[tuple[int, int]]:
    """Which frames of a candidate are scored: first and last + 1 of each piece.

    A short video is scored whole, and so is one that no frame voted for. Of a long one it is the stretch beside each
    window that the query's own frames, up to `margin_s` before and after the votes, would cover at the voted offset.
    """
    count = len(times_s)
    if count <= settings.whole_frames or not candidate.windows:
        return [(0, count)]
    first_s, last_s = query.clock.times_s[0], query.clock.times_s[-1]
    spans = sorted(_span(window, first_s, last_s, margin_s=settings.margin_s) for window in candidate.windows)
    return list(_merged(spans, np.asarray(times_s), slack_s=1 / fps))


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
