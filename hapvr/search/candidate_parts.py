"""Parts of the videos that a search compares with its query: their embeddings, what they have in
common with it, and whether that has one course."""

from collections.abc import Sequence

from hapvr.errors import DataError
from hapvr.scorer.access import Deadline
from hapvr.scorer.course import CommonCourse, common_course, rows_between, shown_parts
from hapvr.scorer.embedded import EmbeddedVideo
from hapvr.scorer.scorer import NEVER, VideoScorer
from hapvr.scorer.segments import MAX_SEGMENTS, Segment, clearest
from hapvr.scorer.videos import Recent
from hapvr.search.collection import CHANGED, SearchableCollection
from hapvr.search.compared_parts import Rows
from hapvr.search.frame_index import FrameSearch
from hapvr.search.scored import ScoredCandidate, stretches_of


class CandidateParts:
    """Reads parts of the videos of one index; those that were read last stay in memory. Any thread
    may call it."""

    def __init__(
        self, scorer: VideoScorer, index: FrameSearch, collection: SearchableCollection
    ) -> None:
        self._scorer = scorer
        self._index = index
        self._collection = collection
        self._recent: Recent[tuple[str, Rows], EmbeddedVideo] = Recent(
            lambda embedded: embedded.regions.nbytes
        )

    def read(
        self, name: str, times_s: Sequence[float], rows: Rows, deadline: Deadline
    ) -> EmbeddedVideo:
        """Some frames of a video. Raises DataError where it is gone, or was changed since it was
        indexed."""
        kept = self._recent.get((name, rows))
        if kept is not None:
            return kept
        part = self._collection.read(name, times_s, *rows)
        if not self._index.frames().holds(name, part.clock.times_s, part.hashes):
            raise DataError(CHANGED.format(name))
        return self._recent.keep((name, rows), self._scorer.embed(part, deadline))

    def segments(
        self, query: EmbeddedVideo, candidate: ScoredCandidate, deadline: Deadline = NEVER
    ) -> tuple[Segment, ...]:
        """Common parts of a query and the video around the compared parts, the longest and surest
        first. DataError where it is gone."""
        if candidate.segments is not None:
            return candidate.segments
        times = self._collection.times(candidate.video_id)
        parts: list[Segment] = []
        for rows in stretches_of(candidate):
            stretch = self.read(candidate.video_id, times, rows, deadline)
            values = self._scorer.relative_similarity(query, stretch, deadline)
            parts += self._scorer.aligned_parts(values, query.clock, stretch.clock)

        longest_first = sorted(
            parts, key=lambda part: -part.score * (part.query_end_s - part.query_start_s)
        )

        def has_one_course(part: Segment) -> bool:
            return self._course_of(query, candidate, part, deadline) is not None

        shown = shown_parts(self._scorer, query, clearest(longest_first), has_one_course)
        return tuple(shown[:MAX_SEGMENTS])

    def common_course(
        self, query: EmbeddedVideo, candidate: ScoredCandidate, deadline: Deadline = NEVER
    ) -> CommonCourse | None:
        """Of the first of the segments; None where there is none. DataError where the video is
        gone."""
        segments = self.segments(query, candidate, deadline)
        if not segments:
            return None
        return self._course_of(query, candidate, segments[0], deadline)

    def _course_of(
        self, query: EmbeddedVideo, candidate: ScoredCandidate, part: Segment, deadline: Deadline
    ) -> CommonCourse | None:
        """Of one part, as `common_course`."""
        times = self._collection.times(candidate.video_id)
        shown = rows_between(query.clock.times_s, part.query_start_s, part.query_end_s)
        same = rows_between(times, part.reference_start_s, part.reference_end_s)
        stretch = self.read(candidate.video_id, times, same, deadline)
        return common_course(self._scorer, query.part(*shown), stretch)
