"""One search: a shortlist by frames, fine scores of its candidates by the champion's network, and
segments of those that are shown. Each crop of a query is searched for like the whole picture.

Fine scores compare the parts of query and candidate that may show the same."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hapvr.errors import DataError, VideoError
from hapvr.scorer.access import Deadline
from hapvr.scorer.embedded import EmbeddedVideo
from hapvr.scorer.evidence import EvidenceModel
from hapvr.scorer.evidence_kinds import Comparison, measured, strongest, table_of
from hapvr.scorer.scorer import NEVER, VideoScorer
from hapvr.scorer.segments import MAX_SEGMENTS, Segment, clearest
from hapvr.scorer.videos import Recent
from hapvr.search.collection import CHANGED, SearchableCollection
from hapvr.search.compared_parts import ReadPart, Rows, pairs_of
from hapvr.search.crowds import (
    MOST_HITS,
    all_alike,
    have_same_course,
    known_copies,
    rows_between,
)
from hapvr.search.descriptors import frame_descriptors
from hapvr.search.frame_index import FrameSearch
from hapvr.search.scored import ScoredCandidate, stretches_of
from hapvr.search.video_index import nearest_videos
from hapvr.search.votes import Candidate, vote, with_others

FORMAT = 13
"""Version of the scores: pairs and matches stored with another version are compared again."""

QUERY_FRAMES = 600
"""Frames of a query that are looked up; those of a longer one are spread evenly."""
FRAME_HITS = 100
"""Nearest frames that a frame of the query gets from the index."""
SMALL_COLLECTION = 33
"""Videos up to which all are compared, whether or not a frame votes for them."""
WIDER = 5
"""How many times as many hits are asked for where only some videos may be found, or all that came
are ALIKE."""
TOLERANCE_FRAMES = 1.0
"""Sampled frames by which the offsets of one copy may differ."""

CANDIDATES_AT_ONCE = 16
"""Candidates whose features are in memory together."""
Allowed = Callable[[str], bool] | None
"""Which videos may be found, by id; None: all."""
Lost = dict[str, str]
"""Videos that have no scores, as their features are gone: id -> reason."""


@dataclass(kw_only=True, eq=False)
class SearchEngine:
    """Searches one index with one model. num_videos: in the index. blank: [B, D] descriptors of
    pictures of one colour. candidates: videos that the network compares with a query. evidence:
    None where none was fitted. recent: parts of videos that were compared last.

    Any thread may call it.
    """

    scorer: VideoScorer
    index: FrameSearch
    collection: SearchableCollection
    num_videos: int
    blank: npt.NDArray[np.float32]
    candidates: int
    evidence: EvidenceModel | None = None
    video_index: FrameSearch | None = None
    """of one vector per video, which then chooses the candidates"""
    recent: Recent[tuple[str, Rows], EmbeddedVideo] = field(
        default_factory=lambda: Recent(lambda one: one.regions.nbytes)
    )

    def find(
        self, views: Sequence[EmbeddedVideo], *, allowed: Allowed = None, deadline: Deadline = NEVER
    ) -> tuple[list[ScoredCandidate], Lost]:
        """Candidates of all views of a query, the likeliest first, each by the view that says most
        for it. views: of `VideoScorer.views`. Raises as `shortlist` does, where no view says
        anything, and as `score` does."""
        scored, lost = self.score_views(views, allowed=allowed, deadline=deadline)
        best: dict[str, ScoredCandidate] = {}
        for candidate in sorted(chain.from_iterable(scored), key=_order):
            best.setdefault(candidate.video_id, candidate)
        return list(best.values()), lost

    def score_views(
        self, views: Sequence[EmbeddedVideo], *, allowed: Allowed = None, deadline: Deadline = NEVER
    ) -> tuple[list[list[ScoredCandidate]], Lost]:
        """The candidates of each view of a query, none of one that says nothing; else as `find`."""
        scored: list[list[ScoredCandidate]] = []
        refused: list[VideoError] = []
        lost = Lost()
        for number, view in enumerate(views):
            of_view: list[ScoredCandidate] = []
            try:
                shortlist = self.shortlist(view, allowed=allowed)
                of_view, missing = self.score(view, shortlist, deadline, number=number)
                lost |= missing
            except VideoError as error:
                if error.reason != "no_picture":
                    raise
                refused.append(error)

            scored.append(of_view)

        if len(refused) == len(views):
            raise refused[0]
        return scored, lost

    def shortlist(self, query: EmbeddedVideo, *, allowed: Allowed = None) -> list[Candidate]:
        """Candidates, the most promising first. Raises VideoError `no_picture` where no frame of
        the query says anything."""
        embedded = self.scorer.networks.vectors(query.regions)
        described = frame_descriptors(embedded, blank=self.blank)
        vectors = described.vectors
        seconds = np.asarray(query.clock.times_s)
        rows = _spread(np.flatnonzero(described.kept), QUERY_FRAMES)
        if not len(rows):
            raise VideoError(
                "no_picture",
                "query: its frames are black, or of one other colour, throughout, so nothing "
                "can be found by it",
            )
        if self.video_index is not None:
            return self._nearest_videos(self.video_index, embedded, allowed)
        wanted = FRAME_HITS if allowed is None else FRAME_HITS * WIDER
        hits, num_hits = self._nearest_frames(vectors[rows], wanted)
        max_candidates = self.candidates * num_hits // wanted
        voted = vote(
            hits,
            seconds[rows],
            num_videos=self.num_videos,
            num_hits=num_hits,
            tolerance_s=TOLERANCE_FRAMES / self.scorer.sampling.fps,
            max_candidates=max_candidates,
            allowed=allowed,
        )
        others: list[str] = []
        if self.num_videos <= SMALL_COLLECTION:
            indexed = self.index.frames().video_ids()
            others = [name for name in indexed if allowed is None or allowed(name)]

        candidates = with_others(voted, others, max_candidates=max_candidates)
        return [replace(candidate, num_asked=len(rows)) for candidate in candidates]

    def _nearest_videos(
        self, index: FrameSearch, embedded: npt.NDArray[np.floating], allowed: Allowed
    ) -> list[Candidate]:
        """The videos whose vectors are nearest to that of a query, to be compared whole."""
        wanted = self.candidates if allowed is None else self.candidates * WIDER
        indexed = self.collection.shard_of
        names = [
            name
            for name in nearest_videos(index, embedded, wanted)
            if name in indexed and (allowed is None or allowed(name))
        ]
        return with_others([], names, max_candidates=self.candidates)

    def _nearest_frames(
        self, vectors: npt.NDArray[np.float32], num_hits: int
    ) -> tuple[pa.Table, int]:
        """The nearest frames of some frames of a query, and how many were asked for of each: more
        than `num_hits` where even the last ones are like it, as where there are many copies."""
        hits = self.index.search_frames(vectors, num_hits)
        while num_hits < MOST_HITS and all_alike(hits, len(vectors), num_hits):
            num_hits = min(num_hits * WIDER, MOST_HITS)
            hits = self.index.search_frames(vectors, num_hits)

        return hits, num_hits

    def score(
        self,
        query: EmbeddedVideo,
        candidates: Sequence[Candidate],
        deadline: Deadline = NEVER,
        *,
        number: int = 0,
    ) -> tuple[list[ScoredCandidate], Lost]:
        """Fine scores of candidates, the likeliest first; features may be gone since they were
        indexed. number: of the view. Raises VideoError `timeout` where the deadline passes before
        the last is scored."""
        scored: dict[str, ScoredCandidate] = {}
        lost = Lost()
        for start in range(0, len(candidates), CANDIDATES_AT_ONCE):
            parts: list[ReadPart] = []
            for candidate in candidates[start : start + CANDIDATES_AT_ONCE]:
                name = candidate.video_id
                try:
                    scored[name], read = self._read(query, candidate, number, deadline)
                except DataError as error:
                    lost[name] = str(error)
                else:
                    parts += read

            by_rows = sorted(parts, key=_query_rows)
            for rows, group in groupby(by_rows, key=_query_rows):
                self._compare(query.part(*rows), list(group), scored, deadline)

        scores = list(scored.values())
        if self.evidence is not None:
            scores = self._with_log_odds(query, scores, self.evidence, deadline)
        return sorted(scores, key=_order), lost

    def _read(
        self, query: EmbeddedVideo, candidate: Candidate, number: int, deadline: Deadline
    ) -> tuple[ScoredCandidate, list[ReadPart]]:
        """A candidate of a view before it is compared, and its parts that will be. Raises DataError
        where its features are gone."""
        fps = self.scorer.sampling.fps
        name = candidate.video_id
        times = self.collection.times(name)
        clock = self.collection.clock(name, times)
        pairs = pairs_of(candidate, times, query=query, fps=fps)
        parts = [
            ReadPart(pair.query, name, self._embedded(name, times, pair.reference, deadline))
            for pair in pairs
        ]
        scored = ScoredCandidate(
            video_id=name,
            pairs=tuple(pairs),
            num_frames=len(times),
            seconds=clock.length_s(fps, self.scorer.sampling.max_frames),
            candidate=candidate,
            view=number,
        )
        return scored, parts

    def _compare(
        self,
        shown: EmbeddedVideo,
        parts: Sequence[ReadPart],
        scored: dict[str, ScoredCandidate],
        deadline: Deadline,
    ) -> None:
        """Compare a part of the query with parts of candidates, whose best scores are kept."""
        fps = self.scorer.sampling.fps
        videos = [part.video for part in parts]
        compared = self.scorer.comparisons(shown, videos, deadline)
        shorter = [video for video in videos if len(video) < len(shown)]
        reverse = iter(self.scorer.similarities(shorter, shown, deadline) if shorter else ())
        for part, (similarity, matrix) in zip(parts, compared, strict=True):
            if len(part.video) < len(shown):
                similarity = max(similarity, next(reverse))
            best = scored[part.video_id]
            comparison = Comparison(
                query=shown, reference=part.video, similarity=matrix, view=best.view, fps=fps
            )
            scored[part.video_id] = replace(
                best,
                similarity=max(similarity, best.similarity),
                evidence=strongest(measured(comparison), best.evidence),
            )

    def _with_log_odds(
        self,
        query: EmbeddedVideo,
        scores: Sequence[ScoredCandidate],
        evidence: EvidenceModel,
        deadline: Deadline,
    ) -> list[ScoredCandidate]:
        """The candidates of a view with the log-odds of a match."""
        runs = [score.frame_run for score in scores]

        def shows_same(place: int) -> bool:
            return self.shows_same_footage(query, scores[place], deadline)

        is_copy = known_copies(runs, num_videos=self.num_videos, shows_same=shows_same)
        features = table_of([score.evidence for score in scores])
        odds = evidence.log_odds(features, num_videos=self.num_videos, is_copy=is_copy)
        return [
            replace(score, is_copy=bool(copy), log_odds=float(value))
            for score, copy, value in zip(scores, is_copy, odds, strict=True)
        ]

    def shows_same_footage(
        self, query: EmbeddedVideo, score: ScoredCandidate, deadline: Deadline = NEVER
    ) -> bool:
        """Whether the frames of the longest common part have the same course, so that the video is
        no look-alike of the query but a copy. DataError where it is gone."""
        segments = self.segments(query, score, deadline)
        if not segments:
            return False
        part = segments[0]
        times = self.collection.times(score.video_id)
        shown = rows_between(query.clock.times_s, part.query_start_s, part.query_end_s)
        same = rows_between(times, part.reference_start_s, part.reference_end_s)
        stretch = self._embedded(score.video_id, times, same, deadline)
        return have_same_course(self.scorer, query.part(*shown), stretch)

    def probability(
        self, candidate: ScoredCandidate, *, prior: float | None = None
    ) -> float | None:
        """Of a match, in [0, 1]; None where no evidence was fitted. prior: see
        `EvidenceModel.probability`."""
        if self.evidence is None or candidate.log_odds is None:
            return None
        return self.evidence.probability(candidate.log_odds, prior=prior)

    def segments(
        self, query: EmbeddedVideo, score: ScoredCandidate, deadline: Deadline = NEVER
    ) -> tuple[Segment, ...]:
        """Common parts of a query and the video around the compared parts, the longest and surest
        first. DataError where it is gone."""
        times = self.collection.times(score.video_id)
        stretches = (
            self._embedded(score.video_id, times, rows, deadline) for rows in stretches_of(score)
        )
        parts = chain.from_iterable(
            self.scorer.matching_segments(query, stretch, deadline) for stretch in stretches
        )
        longest_first = sorted(
            parts, key=lambda part: -part.score * (part.query_end_s - part.query_start_s)
        )
        return tuple(clearest(longest_first)[:MAX_SEGMENTS])

    def _embedded(
        self, name: str, times_s: Sequence[float], rows: Rows, deadline: Deadline
    ) -> EmbeddedVideo:
        """Some frames of a video. Raises DataError where it is gone, or was changed since it was
        indexed."""
        kept = self.recent.get((name, rows))
        if kept is not None:
            return kept
        part = self.collection.read(name, times_s, *rows)
        if not self.index.frames().holds(name, part.clock.times_s, part.hashes):
            raise DataError(CHANGED.format(name))
        return self.recent.keep((name, rows), self.scorer.embed(part, deadline))


def _query_rows(part: ReadPart) -> Rows:
    return part.query


def _order(one: ScoredCandidate) -> tuple[float, float, str]:
    return -(one.log_odds or 0.0), -one.similarity, one.video_id


def _spread(rows: npt.NDArray[np.intp], count: int) -> npt.NDArray[np.intp]:
    """At most this many of the rows, evenly spaced."""
    places = np.linspace(0, len(rows) - 1, min(count, len(rows)))
    return np.asarray(rows[places.round().astype(int)])
