"""The pairs of one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hapvr.errors import ArgumentError, VideoError
from hapvr.scorer.access import Deadline
from hapvr.scorer.course import LEAST_PROBABILITY, FrameComparer, course_of_segment
from hapvr.scorer.embedded import EmbeddedVideo
from hapvr.scorer.requests import RequestVideos
from hapvr.scorer.segments import Segment
from hapvr.scorer.videos import SampledFeatures
from hapvr.settings import ServingConfig


@dataclass(frozen=True)
class PairScore:
    """How similar two videos are."""

    query: str
    reference: str
    similarity: float | None
    """In [-1, 1], higher is closer; None with the reason in `error` where a video cannot be used.
    """
    probability: float | None = None
    """Of a match, in [0, 1]; None from a model without calibration."""
    one_course: bool = False
    """Whether aligned frames have the same course, which makes a match likelier, see
    `hapvr.scorer.course`; not tested where a match is unlikely in any case."""
    segments: tuple[Segment, ...] | None = None
    """None where not asked for."""
    error: str = ""
    warning: str = ""
    """Why the numbers are not to be trusted, see `VideoScorer.warning` and `FrameTimes`; empty if
    nothing is wrong."""


class PairScorer(FrameComparer, Protocol):
    """Compares two videos, see `hapvr.scorer.scorer.VideoScorer`."""

    warning: str

    def embed(self, video: SampledFeatures, deadline: Deadline) -> EmbeddedVideo: ...

    def pair_similarity(
        self, query: EmbeddedVideo, reference: EmbeddedVideo, deadline: Deadline
    ) -> float: ...

    def probability(self, similarity: float, *, one_course: bool = False) -> float | None: ...

    def matching_segments(
        self, query: EmbeddedVideo, reference: EmbeddedVideo, deadline: Deadline
    ) -> tuple[Segment, ...]: ...


class PairRequest:
    """The pairs of one request, scored one after the other."""

    def __init__(
        self,
        scorer: PairScorer,
        videos: RequestVideos,
        limits: ServingConfig,
        deadline: Deadline,
        *,
        segments: bool,
    ) -> None:
        self._scorer = scorer
        self._videos = videos
        self._limits = limits
        self._deadline = deadline
        self._segments = segments
        self._num_frame_pairs = 0
        self._last_query: tuple[str, EmbeddedVideo] | None = None

    def score(self, query: str, reference: str) -> PairScore:
        """The row of a pair; with an error where it cannot be scored."""
        try:
            return self._score(query, reference)
        except VideoError as error:
            reason = f"{error.reason}: {error}"
        # features that are not finite, from pictures that overflow the networks
        except ArgumentError as error:
            reason = f"not_scored: {error}"

        return PairScore(query, reference, None, error=reason, warning=self._scorer.warning)

    def _score(self, query: str, reference: str) -> PairScore:
        """Raises VideoError and ArgumentError."""
        scorer = self._scorer
        self._deadline.check()
        first = self._embedded_query(query)
        features = self._videos.get(reference)
        self._count_frame_pairs(len(first) * len(features.regions))
        second = scorer.embed(features, self._deadline)

        similarity = scorer.pair_similarity(first, second, self._deadline)
        may_match = (scorer.probability(similarity) or 0.0) >= LEAST_PROBABILITY
        segments: tuple[Segment, ...] = ()
        if self._segments or may_match:
            segments = scorer.matching_segments(first, second, self._deadline)
        one_course = False
        if segments and may_match:
            one_course = course_of_segment(scorer, first, second, segments[0]) is not None
        notes = (scorer.warning, *first.clock.notes, *second.clock.notes)
        return PairScore(
            query,
            reference,
            similarity,
            probability=scorer.probability(similarity, one_course=one_course),
            one_course=one_course,
            segments=segments if self._segments else None,
            warning="; ".join(filter(None, notes)),
        )

    def _embedded_query(self, name: str) -> EmbeddedVideo:
        """The embedding of a query, which is kept for the pairs that follow."""
        if self._last_query is None or self._last_query[0] != name:
            embedded = self._scorer.embed(self._videos.get(name), self._deadline)
            self._last_query = (name, embedded)
        return self._last_query[1]

    def _count_frame_pairs(self, number: int) -> None:
        """Raise VideoError once the pairs of the request have more pairs of frames than allowed."""
        self._num_frame_pairs += number
        if self._num_frame_pairs > self._limits.max_frame_pairs:
            raise VideoError(
                "too_much_work",
                f"request: more than {self._limits.max_frame_pairs} pairs of frames; "
                "send fewer or shorter videos, or see serving.max_frame_pairs",
            )
