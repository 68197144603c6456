"""One search: shortlist by frames and whole videos, and fine scores of its candidates; segments of those that are shown."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hapvr.errors import DataError, VideoError
from hapvr.scorer.access import Deadline
from hapvr.scorer.scorer import NEVER, EmbeddedVideo, VideoScorer
from hapvr.scorer.segments import MAX_SEGMENTS, Segment
from hapvr.search.descriptors import frame_descriptors, video_descriptor
from hapvr.search.fine import ScoredCandidate, Videos, fine_scores, stretches_of
from hapvr.search.index import SearchIndex
from hapvr.search.settings import SearchSettings
from hapvr.search.votes import Candidate, unite, vote

WIDER = 5
"""How many times as many hits are asked for where only some videos may be found."""

TOLERANCE_FRAMES = 1.0
"""Sampled frames by which the offsets of one copy may differ."""


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """candidates: best first. lost: video id -> why a candidate could not be scored. timings_s: part of the work
    -> how long it took."""

    candidates: tuple[ScoredCandidate, ...]
    lost: dict[str, str]
    timings_s: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class SearchEngine:
    """Searches one index with one model. num_videos: in the index. blank: [B, D] descriptors of pictures of one colour.

    Any thread may call it.
    """

    scorer: VideoScorer
    index: SearchIndex
    videos: Videos
    num_videos: int
    blank: npt.NDArray[np.float32]
    settings: SearchSettings

    def shortlist(self, query: EmbeddedVideo, *, allowed: Callable[[str], bool] | None = None) -> list[Candidate]:
        """Candidates, the most promising first. allowed: which videos may be found; None: all.

        Raises VideoError `no_picture` where no frame of the query says anything.
        """
        settings, fps = self.settings, self.scorer.sampling.fps
        embedded = self.scorer.networks.vectors(query.regions)
        described = frame_descriptors(embedded, blank=self.blank, max_frozen_similarity=settings.max_frozen_similarity)
        vectors, kept = described.vectors, described.kept
        rows = spread(np.flatnonzero(kept), settings.query_frames)
        if not len(rows):
            raise VideoError(
                "no_picture",
                "query: its frames are black, or of one other colour, throughout, so nothing can be found by it",
            )
        wider = 1 if allowed is None else WIDER
        lookups, times = vectors[rows], np.asarray(query.clock.times_s)[rows]
        if settings.region_frames:
            some = spread(rows, settings.region_frames)
            regions = unit(embedded[some])
            lookups = np.concatenate([lookups, regions.reshape(-1, regions.shape[-1])])
            times = np.concatenate([times, np.repeat(np.asarray(query.clock.times_s)[some], regions.shape[1])])
            said = lookups.any(axis=1)  # attention may make nothing of a region
            lookups, times = lookups[said], times[said]
        hits = self.index.search_frames(lookups, settings.frame_hits * wider)
        names: list[str] = []
        if settings.video_candidates:
            whole = self.index.search_videos(video_descriptor(vectors[kept]), settings.video_candidates * wider)
            names = whole["video_id"].to_pylist()
        if allowed is not None:
            names = [name for name in names if allowed(name)]
        voted = vote(
            hits,
            times,
            num_videos=self.num_videos,
            tolerance_s=TOLERANCE_FRAMES / fps,
            num_hits=settings.frame_hits * wider,
            max_candidates=settings.candidates,
            allowed=allowed,
        )
        return unite(voted, names[: settings.video_candidates], max_candidates=settings.candidates)

    def rank(
        self, query: EmbeddedVideo, *, allowed: Callable[[str], bool] | None = None, deadline: Deadline = NEVER
    ) -> SearchResult:
        """Scored candidates. Raises VideoError as `shortlist` does, and `timeout` where the deadline passes."""
        began = time.perf_counter()
        candidates = self.shortlist(query, allowed=allowed)
        listed = time.perf_counter()
        scored, lost = fine_scores(query, candidates, scorer=self.scorer, videos=self.videos, deadline=deadline)
        timings = {"shortlist": listed - began, "fine": time.perf_counter() - listed}
        return SearchResult(candidates=tuple(scored), lost=lost, timings_s=timings)

    def score(self, query: EmbeddedVideo, video_id: str) -> ScoredCandidate:
        """A query with the whole of one video. Raises DataError where it has no features any more."""
        whole = Candidate(video_id=video_id, votes=0.0, windows=())
        scores, lost = fine_scores(query, [whole], scorer=self.scorer, videos=self.videos)
        if lost:
            raise DataError(lost[video_id])
        return scores[0]

    def segments(self, query: EmbeddedVideo, score: ScoredCandidate, deadline: Deadline = NEVER) -> tuple[Segment, ...]:
        """Common parts of a query and the video around the compared parts, the longest and surest first. DataError where it
        is gone."""
        times = self.videos.times(score.video_id)
        found: list[Segment] = []
        for rows in stretches_of(score):
            reference = self.scorer.embed(self.videos.read(score.video_id, times, *rows), deadline)
            found += self.scorer.matching_segments(query, reference, deadline)
        return tuple(sorted(found, key=lambda one: -one.score * (one.query_end_s - one.query_start_s))[:MAX_SEGMENTS])


def unit(regions: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Regions [T, R, D], each of unit length; those that attention made nothing of get a length all the same."""
    return np.asarray(regions / np.linalg.norm(regions, axis=-1, keepdims=True).clip(min=1e-6), np.float32)


def spread(rows: npt.NDArray[np.intp], count: int) -> npt.NDArray[np.intp]:
    """At most this many of the rows, evenly spaced."""
    if len(rows) <= count:
        return rows
    places = np.linspace(0, len(rows) - 1, count).round().astype(int)
    return np.asarray(rows[places], np.intp)
