"""One search: a shortlist by frames, fine scores of its candidates by the champion's network, and
segments of those that are shown. Each inner picture of a query is searched for like the whole
picture.

Fine scores compare the parts of query and candidate that may show the same.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from hapvr.errors import DataError, VideoError
from hapvr.model.settings import COMPARATOR_STEP
from hapvr.scorer.access import Deadline
from hapvr.scorer.calibration import Floats
from hapvr.scorer.evidence import FEATURES, EvidenceModel
from hapvr.scorer.scorer import NEVER, EmbeddedVideo, VideoScorer
from hapvr.scorer.segments import MAX_SEGMENTS, Segment, best_run
from hapvr.scorer.videos import Recent
from hapvr.search.collection import CHANGED, SearchableCollection
from hapvr.search.descriptors import ShardIndex, frame_descriptors, unit
from hapvr.search.hashes import RADIUS
from hapvr.search.index import FrameIndex
from hapvr.search.votes import Candidate, unite, vote, vote_by_hash
from hapvr.video.frames import same_pictures

FORMAT = 10
"""Version of the scores: pairs and matches stored with another version are compared again."""

QUERY_FRAMES = 600
"""Frames of a query that are looked up; those of a longer one are spread evenly."""
REGION_FRAMES = 12
"""Frames of a query, spread evenly, whose nine regions are looked up by themselves too: they find
videos that fill only a part of the picture."""
FRAME_HITS = 100
"""Nearest frames that a frame of the query gets from the index."""
HASH_HITS = 1000
"""Frames of near hashes that a frame of the query gets; those that more videos share say little."""
SMALL_COLLECTION = 33
"""Videos up to which all are compared, whether or not a frame votes for them."""
WIDER = 5
"""How many times as many hits are asked for where only some videos may be found."""
TOLERANCE_FRAMES = 1.0
"""Sampled frames by which the offsets of one copy may differ."""

CANDIDATES_AT_ONCE = 16
"""Candidates whose features are in memory together."""
WHOLE_FRAMES = 60
"""Sampled frames up to which a query and a video are compared whole, if both are that short."""
PART_FRAMES = 8
"""Sampled frames of query and video around votes that are compared at least."""

Rows = tuple[int, int]
"""First and last + 1 of some frames."""
Allowed = Callable[[str], bool] | None
"""Which videos may be found, by id; None: all."""
Lost = dict[str, str]
"""Videos that have no scores, as their features are gone: id -> reason."""


@dataclass(frozen=True)
class Pair:
    """Frames of the query and of a candidate that are compared."""

    query: Rows
    reference: Rows


@dataclass(frozen=True, kw_only=True)
class ScoredCandidate:
    """similarity in [-1, 1]: of the best pair of parts, see `pairs_of`; where the video, or its
    part, is the shorter one, the other way round if that is higher: similarities ask how much of
    the first is in the second. frame_run: what the relative similarities of two consecutive frames
    reach, in [-1, 1]. num_pictures: different ones with near hashes at one offset. pairs: all that
    were compared. num_frames: of the whole video, and seconds: how long it lasts. candidate: why it
    was compared. view: number of the query's view that was compared. log_odds: of a match, by all
    evidence; None without a model of it."""

    video_id: str
    similarity: float = -math.inf
    frame_run: float = -math.inf
    num_pictures: int = 0
    pairs: tuple[Pair, ...]
    num_frames: int
    seconds: float
    candidate: Candidate
    view: int = 0
    log_odds: float | None = None


@dataclass(kw_only=True, eq=False)
class SearchEngine:
    """Searches one index with one model. num_videos: in the index. blank: [B, D] descriptors of
    pictures of one colour. candidates: videos that the network compares with a query. evidence:
    None where none was fitted. recent: parts of videos that were compared last.

    Any thread may call it.
    """

    scorer: VideoScorer
    index: FrameIndex | ShardIndex
    collection: SearchableCollection
    num_videos: int
    blank: npt.NDArray[np.float32]
    candidates: int
    evidence: EvidenceModel | None = None
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
        for one in sorted(chain.from_iterable(scored), key=_order):
            best.setdefault(one.video_id, one)
        return list(best.values()), lost

    def score_views(
        self, views: Sequence[EmbeddedVideo], *, allowed: Allowed = None, deadline: Deadline = NEVER
    ) -> tuple[list[list[ScoredCandidate]], Lost]:
        """The candidates of each view of a query, none of one that says nothing; else as `find`."""
        scored, lost, refused = list[list[ScoredCandidate]](), Lost(), list[VideoError]()
        for number, view in enumerate(views):
            found: list[ScoredCandidate] = []
            try:
                found, missing = self.score(
                    view, self.shortlist(view, allowed=allowed), deadline, number=number
                )
                lost |= missing
            except VideoError as error:
                if error.reason != "no_picture":
                    raise
                refused.append(error)
            scored.append(found)
        if len(refused) == len(views):
            raise refused[0]
        return scored, lost

    def shortlist(self, query: EmbeddedVideo, *, allowed: Allowed = None) -> list[Candidate]:
        """Candidates, the most promising first. Raises VideoError `no_picture` where no frame of
        the query says anything."""
        embedded = self.scorer.networks.vectors(query.regions)
        described = frame_descriptors(embedded, blank=self.blank)
        vectors, seconds = described.vectors, np.asarray(query.clock.times_s)
        rows = _spread(np.flatnonzero(described.kept), QUERY_FRAMES)
        if not len(rows):
            raise VideoError(
                "no_picture",
                "query: its frames are black, or of one other colour, throughout, so nothing "
                "can be found by it",
            )
        some = _spread(rows, REGION_FRAMES)
        regions = unit(embedded[some])
        lookups = np.concatenate([vectors[rows], regions.reshape(-1, regions.shape[-1])])
        times = np.concatenate([seconds[rows], np.repeat(seconds[some], regions.shape[1])])
        said = lookups.any(axis=1)  # attention may make nothing of a region
        lookups, times = lookups[said], times[said]
        wider = 1 if allowed is None else WIDER
        hits = self.index.search_frames(lookups, FRAME_HITS * wider)
        options: dict[str, Any] = {
            "num_videos": self.num_videos,
            "tolerance_s": TOLERANCE_FRAMES / self.scorer.sampling.fps,
            "max_candidates": self.candidates,
            "allowed": allowed,
        }
        voted = vote(hits, times, num_hits=FRAME_HITS * wider, **options)
        hashes = self.index.read_hashes()
        hashed = vote_by_hash(
            hashes.search(query.hashes[rows], HASH_HITS), seconds[rows], **options
        )
        num_hashes = int(np.count_nonzero(query.hashes[rows]))
        others = hashes.video_ids() if self.num_videos <= SMALL_COLLECTION else []
        others = [name for name in others if allowed is None or allowed(name)]
        united = unite(hashed, voted, others, max_candidates=self.candidates)
        return [replace(one, num_asked=len(rows), num_asked_hashes=num_hashes) for one in united]

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
        fps, videos = self.scorer.sampling.fps, self.collection
        scored, lost = dict[str, ScoredCandidate](), Lost()
        for start in range(0, len(candidates), CANDIDATES_AT_ONCE):
            parts: list[tuple[Rows, str, EmbeddedVideo]] = []
            for candidate in candidates[start : start + CANDIDATES_AT_ONCE]:
                name = candidate.video_id
                try:
                    times = videos.times(name)
                    clock = videos.clock(name, times)
                    pairs = pairs_of(candidate, times, query=query, fps=fps)
                    embedded = [
                        self._embedded(name, times, pair.reference, deadline) for pair in pairs
                    ]
                except DataError as error:
                    lost[name] = str(error)
                    continue
                parts += [
                    (pair.query, name, one) for pair, one in zip(pairs, embedded, strict=True)
                ]
                scored[name] = ScoredCandidate(
                    video_id=name,
                    pairs=tuple(pairs),
                    num_frames=len(times),
                    seconds=clock.length_s(fps, self.scorer.sampling.max_frames),
                    candidate=candidate,
                    view=number,
                )
            for rows, group in groupby(sorted(parts, key=itemgetter(0)), key=itemgetter(0)):
                found, shown = list(group), query.part(*rows)
                compared = self.scorer.comparisons(shown, [part for *_, part in found], deadline)
                shorter = [part for *_, part in found if len(part) < len(shown)]
                reverse = iter(
                    self.scorer.similarities(shorter, shown, deadline) if shorter else ()
                )
                for (_, name, part), (similarity, matrix) in zip(found, compared, strict=True):
                    if len(part) < len(shown):
                        similarity = max(similarity, next(reverse))
                    best, pictures = (
                        scored[name],
                        same_pictures(shown.hashes, part.hashes, radius=RADIUS),
                    )
                    scored[name] = replace(
                        best,
                        similarity=max(similarity, best.similarity),
                        frame_run=max(best_run(matrix), best.frame_run),
                        num_pictures=max(pictures, best.num_pictures),
                    )
        scores = list(scored.values())
        if self.evidence is not None:
            odds = self.evidence.log_odds(evidence_of(scores)).tolist()
            scores = [replace(one, log_odds=value) for one, value in zip(scores, odds, strict=True)]
        return sorted(scores, key=_order), lost

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
        found = chain.from_iterable(
            self.scorer.matching_segments(query, one, deadline) for one in stretches
        )
        return tuple(
            sorted(found, key=lambda one: -one.score * (one.query_end_s - one.query_start_s))[
                :MAX_SEGMENTS
            ]
        )

    def _embedded(
        self, name: str, times_s: Sequence[float], rows: Rows, deadline: Deadline
    ) -> EmbeddedVideo:
        """Some frames of a video. Raises DataError where it is gone, or was changed since it was
        indexed."""
        found = self.recent.get((name, rows))
        if found is None:
            read = self.collection.read(name, times_s, *rows)
            if not self.index.read_hashes().holds(name, read.clock.times_s, read.hashes):
                raise DataError(CHANGED.format(name))
            found = self.recent.keep((name, rows), self.scorer.embed(read, deadline))
        return found


def evidence_of(candidates: Sequence[ScoredCandidate]) -> Floats:
    """[N, F] in the order of FEATURES, none of which falls where two videos share more. Numbers of
    pictures, and votes at the best offset, are log(1 + x), since twenty seconds are a small share
    of an hour. whole_picture: 1, or 0 where an inner picture of the query was compared."""
    rows = [
        (
            one.similarity,
            one.frame_run,
            math.log1p(one.num_pictures),
            math.log1p(one.candidate.votes),
            one.view == 0,
        )
        for one in candidates
    ]
    return np.array(rows, np.float64).reshape(len(rows), len(FEATURES))


def _order(one: ScoredCandidate) -> tuple[float, float, str]:
    return -(one.log_odds or 0.0), -one.similarity, one.video_id


def _spread(rows: npt.NDArray[np.intp], count: int) -> npt.NDArray[np.intp]:
    """At most this many of the rows, evenly spaced."""
    return (
        rows
        if len(rows) <= count
        else rows[np.linspace(0, len(rows) - 1, count).round().astype(int)]
    )


def pairs_of(
    candidate: Candidate, times_s: Sequence[float], *, query: EmbeddedVideo, fps: float
) -> list[Pair]:
    """Which frames of the query are compared with which of a candidate. All with all if both are
    short (`WHOLE_FRAMES`), or no frame voted for the candidate. Otherwise each window makes a pair:
    the part of the query whose frames voted, of at least `PART_FRAMES`, and the part of the
    candidate at the voted offset. Similarities of few frames depend on their number, so parts have
    whole steps of the comparator, and both parts of a pair the same number, unless a video is
    shorter."""
    count = len(times_s)
    if max(count, len(query)) <= WHOLE_FRAMES or not candidate.windows:
        return [Pair((0, len(query)), (0, count))]
    pairs: list[Pair] = []
    for window in candidate.windows:
        voted = round((window.query_end_s - window.query_start_s) * fps) + 1
        length = -(-min(max(voted, PART_FRAMES), len(query)) // COMPARATOR_STEP) * COMPARATOR_STEP
        middle_s = (window.query_start_s + window.query_end_s) / 2
        shown = _around(middle_s, length, query.clock.times_s, fps=fps)
        middle_s = (query.clock.times_s[shown[0]] + query.clock.times_s[shown[1] - 1]) / 2
        pair = Pair(shown, _around(middle_s + window.offset_s, length, times_s, fps=fps))
        if not any(_same(pair, better) for better in pairs):
            pairs.append(pair)
    return pairs


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


def _around(middle_s: float, num_frames: int, times_s: Sequence[float], *, fps: float) -> Rows:
    """So many rows around a second, moved where the video begins or ends; all rows of a shorter
    video."""
    first = int(np.searchsorted(times_s, middle_s - num_frames / 2 / fps))
    first = max(min(first, len(times_s) - num_frames), 0)
    return first, min(first + num_frames, len(times_s))


def _same(pair: Pair, other: Pair) -> bool:
    """Whether more than half of both parts of a pair are in another one."""
    return all(
        min(part[1], better[1]) - max(part[0], better[0]) > (part[1] - part[0]) / 2
        for part, better in ((pair.query, other.query), (pair.reference, other.reference))
    )
