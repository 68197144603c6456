"""Searches for the videos that share footage with one of the collection; groups of copies are made
from these pairs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hapvr.errors import DataError, VideoError
from hapvr.scorer.embedded import EmbeddedVideo
from hapvr.scorer.segments import Segment
from hapvr.search.duplicates import COVERED, DuplicatePair
from hapvr.search.match import coverage, without_repeats
from hapvr.search.scored import ScoredCandidate
from hapvr.steps.searcher import Searcher

LEAST_PROBABILITY = 0.5
"""Less probable pairs are not stored, so a threshold above this one can be changed without
searching again."""


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
    """Other videos that share footage with one of the collection, the likeliest first; none for a
    video that shows nothing.

    Raises: DataError where features of a candidate are gone.
    """
    query = searcher.scorer.embed(searcher.collection.whole(video_id))
    try:
        candidates, lost = searcher.find([query], allowed=lambda name: name != video_id)
    except VideoError:
        return

    if lost:
        raise DataError(
            f"{next(iter(lost.values()))}; no pairs of the shard of {video_id} were stored"
        )

    for candidate in candidates:
        probability = searcher.probability(candidate) or 0.0
        if probability >= LEAST_PROBABILITY:
            yield _pair(searcher, video_id, query, candidate, probability)


def _pair(
    searcher: Searcher,
    video_id: str,
    query: EmbeddedVideo,
    candidate: ScoredCandidate,
    probability: float,
) -> DuplicatePair:
    """The pair of a query and a candidate in the form in which it is stored, in the order of their
    ids."""
    sampling = searcher.scorer.sampling
    segments = searcher.parts.segments(query, candidate)
    covered = _covered(
        segments,
        query_s=query.clock.length_s(sampling.fps, sampling.max_frames),
        reference_s=candidate.seconds,
    )
    query_start_s = 0.0
    reference_start_s = 0.0
    similarity_of_query = 0.0
    similarity_of_reference = 0.0
    if segments:
        query_start_s = segments[0].query_start_s
        reference_start_s = segments[0].reference_start_s

    if candidate.course is not None:
        similarity_of_query = candidate.course.of_query
        similarity_of_reference = candidate.course.of_reference

    query_side = _Side(
        video_id=video_id,
        covered=covered[0],
        start_s=query_start_s,
        similarity=similarity_of_query,
    )
    reference_side = _Side(
        video_id=candidate.video_id,
        covered=covered[1],
        start_s=reference_start_s,
        similarity=similarity_of_reference,
    )

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
    """`coverage` of a pair. A video that shows the same part several times does not count as
    showing a much longer one whole."""
    shorter_s, longer_s = sorted((query_s, reference_s))
    if shorter_s < COVERED * longer_s:
        segments = without_repeats(segments)
    return coverage(segments, query_s=query_s, reference_s=reference_s)
