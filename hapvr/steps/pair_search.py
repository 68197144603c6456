"""Searches for the videos that share footage with one of the collection, and measures of each pair
what groups of copies are made by."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hapvr.errors import DataError, VideoError
from hapvr.scorer.embedded import EmbeddedVideo
from hapvr.scorer.segments import Segment
from hapvr.search.duplicates import (
    COVERED,
    DuplicatePair,
    probability_with_course,
    same_course,
)
from hapvr.search.match import coverage, thin, without_repeats
from hapvr.search.scored import ScoredCandidate
from hapvr.steps.searcher import Searcher

LEAST_PROBABILITY = 0.5
"""Pairs below it are not stored, so a threshold above it can be changed without searching again."""
LEAST_ALIGNED = 0.025
"""Less probable candidates are not aligned: also with one course they would be below
LEAST_PROBABILITY."""
ALIGNED_FRAMES = 64
"""Frames of a common part that are compared with those of the other video, at most."""


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One video of a pair."""

    video_id: str
    covered: float
    """part of it that the other one shows"""
    start_s: float
    """where the longest and surest common part begins"""
    similarity: float
    """of its aligned frames with those of the other"""


def pairs_of_video(searcher: Searcher, video_id: str) -> Iterator[DuplicatePair]:
    """Other videos that share footage with one of the collection, the likeliest first; none for one
    that shows nothing.

    Raises: DataError where features of a candidate are gone.
    """
    query = searcher.scorer.embed(searcher.collection.whole(video_id))
    try:
        shortlist = searcher.shortlist(query, allowed=lambda name: name != video_id)
        candidates, lost = searcher.score(query, shortlist)
    except VideoError:
        return

    if lost:
        raise DataError(
            f"{next(iter(lost.values()))}; no pairs of the shard of {video_id} were stored"
        )

    for candidate in candidates:
        probability = searcher.probability(candidate) or 0.0
        if probability < LEAST_ALIGNED:
            continue
        pair = _pair(searcher, video_id, query, candidate, probability)
        if pair.probability >= LEAST_PROBABILITY:
            yield pair


def _pair(
    searcher: Searcher,
    video_id: str,
    query: EmbeddedVideo,
    candidate: ScoredCandidate,
    probability: float,
) -> DuplicatePair:
    """A query and a candidate as they are stored, in order of their ids.

    probability: by their similarity alone
    """
    sampling = searcher.scorer.sampling
    segments = searcher.segments(query, candidate)
    covered = _covered(
        segments,
        query_s=query.clock.length_s(sampling.fps, sampling.max_frames),
        reference_s=candidate.seconds,
    )
    query_start_s = 0.0
    reference_start_s = 0.0
    similarities = (0.0, 0.0)
    if segments:
        query_start_s = segments[0].query_start_s
        reference_start_s = segments[0].reference_start_s
        similarities = _aligned_similarities(searcher, video_id, candidate.video_id, segments[0])

    query_side = _Side(
        video_id=video_id,
        covered=covered[0],
        start_s=query_start_s,
        similarity=similarities[0],
    )
    reference_side = _Side(
        video_id=candidate.video_id,
        covered=covered[1],
        start_s=reference_start_s,
        similarity=similarities[1],
    )
    if min(similarities) > 0:
        probability = probability_with_course(probability)

    first, second = sorted((query_side, reference_side), key=lambda side: side.video_id)
    metadata = searcher.collection.metadata
    return DuplicatePair(
        first=first.video_id,
        second=second.video_id,
        first_sha256=metadata.of(first.video_id).sha256,
        second_sha256=metadata.of(second.video_id).sha256,
        similarity=candidate.similarity,
        probability=probability,
        first_covered=first.covered,
        second_covered=second.covered,
        first_start_s=first.start_s,
        second_start_s=second.start_s,
        frame_similarity=(first.similarity + second.similarity) / 2,
        asymmetry=first.similarity - second.similarity,
    )


def _covered(
    segments: Sequence[Segment], *, query_s: float, reference_s: float
) -> tuple[float, float]:
    """`coverage` of a pair; a video does not show a much longer one whole by showing the same part
    once more."""
    shorter_s, longer_s = sorted((query_s, reference_s))
    if shorter_s < COVERED * longer_s:
        segments = without_repeats(segments)
    return coverage(segments, query_s=query_s, reference_s=reference_s)


def _aligned_similarities(
    searcher: Searcher, query_id: str, reference_id: str, segment: Segment
) -> tuple[float, float]:
    """Mean similarity of the aligned frames of a common part, query with reference and the other
    way round; 0 where they have not the same course."""
    query_rows = _rows_between(searcher, query_id, segment.query_start_s, segment.query_end_s)
    reference_rows = _rows_between(
        searcher, reference_id, segment.reference_start_s, segment.reference_end_s
    )
    count = max(min(ALIGNED_FRAMES, len(query_rows), len(reference_rows)), 1)
    query = _frames(searcher, query_id, query_rows, count)
    reference = _frames(searcher, reference_id, reference_rows, count)

    similarity = searcher.scorer.relative_similarity
    forth = similarity(query, reference)
    back = similarity(reference, query)
    own = (similarity(query, query) + similarity(reference, reference)) / 2
    if not same_course((forth + back.T) / 2, own):
        return 0.0, 0.0
    return float(np.diag(forth).mean()), float(np.diag(back).mean())


def _rows_between(searcher: Searcher, video_id: str, start_s: float, end_s: float) -> range:
    """The sampled frames of a part of a video; there may be none."""
    times_s = searcher.collection.times(video_id)
    first, end = np.searchsorted(times_s, (start_s, end_s)).tolist()
    return range(first, end)


def _frames(searcher: Searcher, video_id: str, rows: range, count: int) -> EmbeddedVideo:
    """So many frames of a part of a video, evenly apart."""
    videos = searcher.collection
    end = max(rows.stop, rows.start + 1)
    part = videos.read(video_id, videos.times(video_id), rows.start, end)
    return searcher.scorer.embed(thin(part, count))
