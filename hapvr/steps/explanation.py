"""Why a search shows a video at its place, or not: what each view of the query finds of it, and at which cut it falls out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hapvr.errors import DataError, VideoError
from hapvr.scorer.access import Deadline
from hapvr.scorer.evidence import FEATURES
from hapvr.scorer.inner_pictures import IN_A_PART
from hapvr.scorer.scorer import NEVER
from hapvr.scorer.segments import Segment
from hapvr.search.engine import ScoredCandidate, evidence_of
from hapvr.search.match import Query, chance, times
from hapvr.search.votes import Candidate
from hapvr.steps.searcher import Searcher, SearchOptions


@dataclass(frozen=True, kw_only=True)
class ViewEvidence:
    """What one view of a query finds of a video. found: the fine score and why it was compared; is_candidate: whether a search
    compares it, too. log_odds: name of what is known -> what it adds, empty from a model without evidence."""

    found: ScoredCandidate
    is_candidate: bool
    log_odds: Mapping[str, float]
    segments: tuple[Segment, ...]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """outcome: "shown", or at which cut the video falls out. rank: among all candidates, from 1, and probability of a match, in
    [0, 1], as in the answer; None where it is no candidate or the model gives none. views: the whole picture first."""

    query: str
    video_id: str
    outcome: str
    rank: int | None
    probability: float | None
    views: tuple[ViewEvidence, ...]

    def lines(self) -> list[str]:
        """What people read: in each line a label in the first nine columns, which may be blank, and a text."""
        lines = [f"query    {self.query}", f"video    {self.video_id}: {self.outcome}"]
        if self.rank is not None:
            lines.append(f"rank     {self.rank}  {chance(self.probability)}")
        for view in self.views:
            where, said = IN_A_PART if view.found.view else "in the whole picture", view.found.candidate
            lines.append(
                f"view     {where}: {'a' if view.is_candidate else 'no'} candidate, similarity {view.found.similarity:+.3f}; "
                f"{said.num_voting} of {said.num_asked} frames vote for one offset; "
                f"{said.num_hashed} of {said.num_asked_hashes} hashes are near, {said.num_aligned} at one offset"
            )
            lines += [f"{'':9}votes {one.votes:.2f}  {times(one)}" for one in said.windows]
            lines += [f"{'':9}common part  {times(part)}" for part in view.segments]
            lines += [f"{'':9}log odds {added:+6.2f}  {name}" for name, added in view.log_odds.items() if added]
        return lines


def explain(
    searcher: Searcher, query: Query, video_id: str, options: SearchOptions, *, deadline: Deadline = NEVER
) -> Explanation:
    """Search for a query, and say what is found of one video. Raises DataError for an unknown id or features that are gone,
    VideoError for a query that shows nothing, and `timeout` where the deadline passes."""
    searcher.collection.metadata.of(video_id)
    everything = replace(options, top=max(searcher.num_videos, 1), min_probability=0.0, segments=False)
    matches = {match.reference: match for match in searcher.answer(query, everything, deadline=deadline).matches}
    row, views, rows = matches.get(video_id), searcher.views_of(query, options, deadline), []
    scored, _ = searcher.score_views(views, allowed=searcher.allowed(query, options), deadline=deadline)
    for number, (view, found) in enumerate(zip(views, scored, strict=True)):
        names = [one.video_id for one in found]
        if not (is_candidate := video_id in names):
            try:
                alone = searcher.shortlist(view, allowed=lambda one: one == video_id)
            except VideoError:  # the view shows nothing
                alone = []
            alone = alone or [Candidate(video_id=video_id, votes=0.0, windows=())]
            compared, lost = searcher.score(view, alone, number=number)
            if lost:
                raise DataError(lost[video_id])
            found, names = [*found, *compared], [*names, video_id]
        one, added = found[names.index(video_id)], dict[str, float]()
        if (model := searcher.evidence) is not None:
            parts = model.contributions(evidence_of(found))[names.index(video_id)].tolist()
            added = {**dict(zip(FEATURES, parts, strict=True)), "intercept": model.intercept}
        segments = searcher.segments(view, one, deadline)
        rows.append(ViewEvidence(found=one, is_candidate=is_candidate, log_odds=added, segments=segments))
    if row is None and any(one.is_candidate for one in rows):
        outcome = "left out: people marked the pair as no match"
    elif row is None:
        outcome = "no candidate: others have more votes, more near hashes or a nearer mean (see search.candidates), or it was left out"
    elif (row.probability or 0.0) < options.min_probability and not row.mark:
        outcome = f"left out: its probability is below {options.min_probability:g}"
    else:
        outcome = f"left out: {options.top} are better" if row.rank > options.top else "shown"
    rank, probability = (None, None) if row is None else (row.rank, row.probability)
    return Explanation(
        query=query.name, video_id=video_id, outcome=outcome, rank=rank, probability=probability, views=tuple(rows)
    )
