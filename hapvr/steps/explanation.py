"""Why a search shows a video at its place, or not: what each view of the query finds in it, and at
which cut it drops out."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hapvr.errors import DataError, VideoError
from hapvr.scorer import course, evidence_kinds
from hapvr.scorer.access import Deadline
from hapvr.scorer.calibration import chance
from hapvr.scorer.embedded import EmbeddedVideo
from hapvr.scorer.query_views import IN_A_PART
from hapvr.scorer.scorer import NEVER
from hapvr.search.match import Match, Query, times
from hapvr.search.scored import ScoredCandidate
from hapvr.search.votes import Candidate
from hapvr.steps.searcher import Searcher, SearchOptions

BLANK = " " * 9
"""Instead of a label."""


def explain(
    searcher: Searcher,
    query: Query,
    video_id: str,
    options: SearchOptions,
    *,
    deadline: Deadline = NEVER,
) -> list[str]:
    """Search for a query, and report what is found in one video: lines of a label or blanks in the
    first nine columns, and a text. Raises DataError for an unknown id or features that are gone,
    VideoError for a query that shows nothing, `timeout` at the deadline."""
    searcher.collection.require_video(video_id)
    everything = replace(
        options, top=max(searcher.num_videos, 1), min_probability=0.0, segments=False
    )
    answer = searcher.answer(query, everything, deadline=deadline)
    match = next((each for each in answer.matches if each.reference == video_id), None)
    views = searcher.views_of(query, options, deadline)
    scored, _ = searcher.score_views(
        views, allowed=searcher.allowed(query, options), deadline=deadline
    )
    is_candidate = any(
        candidate.video_id == video_id for candidates in scored for candidate in candidates
    )
    outcome = _outcome(match, is_candidate, options)
    lines = [f"query    {query.name}", f"video    {video_id}: {outcome}"]
    if match is not None:
        lines.append(f"rank     {match.rank}  {chance(match.probability)}")
    for number, (view, candidates) in enumerate(zip(views, scored, strict=True)):
        lines += _view_lines(searcher, view, number, candidates, video_id, deadline)
    return lines


def _outcome(match: Match | None, is_candidate: bool, options: SearchOptions) -> str:
    """Whether the video is shown, or why not. match: where nothing is cut off."""
    if match is None and is_candidate:
        return "left out: people marked the pair as no match"
    if match is None:
        return "no candidate: others have more votes (see search.candidates), or it was left out"
    if (match.probability or 0.0) < options.min_probability and not match.mark:
        return f"left out: its probability is below {options.min_probability:g}"
    if match.rank > options.top:
        return f"left out: {options.top} are better"
    return "shown"


def _view_lines(
    searcher: Searcher,
    view: EmbeddedVideo,
    number: int,
    candidates: Sequence[ScoredCandidate],
    video_id: str,
    deadline: Deadline,
) -> list[str]:
    """What a view of the query finds in a video. number: of the view, 0 for the whole picture."""
    names = [candidate.video_id for candidate in candidates]
    article = "a"
    if video_id not in names:
        article = "no"
        candidates = [*candidates, *_score_alone(searcher, view, number, video_id)]
        names.append(video_id)

    place = names.index(video_id)
    scored = searcher.with_course(view, candidates[place], deadline)
    votes = scored.candidate
    where = IN_A_PART if number else "in the whole picture"
    lines = [
        f"view     {where}: {article} candidate, similarity {scored.similarity:+.3f}; "
        f"two frames in a row {scored.frame_run:+.3f}; "
        f"{votes.num_voting} of {votes.num_asked} frames vote for one offset"
    ]
    lines += [f"{BLANK}votes {window.votes:.2f}  {times(window)}" for window in votes.windows]
    segments = searcher.parts.segments(view, scored, deadline)
    lines += [f"{BLANK}common part  {times(segment)}" for segment in segments]
    lines += _evidence_lines(searcher, candidates, place)
    if scored.course is not None:
        lines.append(f"{BLANK}log odds {course.LOG_ODDS:+6.2f}  one course of the common part")
    return lines


def _score_alone(
    searcher: Searcher, view: EmbeddedVideo, number: int, video_id: str
) -> list[ScoredCandidate]:
    """The video compared with a view whose candidate it is not."""
    try:
        alone = searcher.shortlist(view, allowed=lambda name: name == video_id)
    except VideoError:  # the view shows nothing
        alone = []

    if not alone:
        alone = [Candidate(video_id=video_id, votes=0.0, windows=())]
    compared, lost = searcher.score(view, alone, number=number)
    if lost:
        raise DataError(lost[video_id])
    return compared


def _evidence_lines(
    searcher: Searcher, candidates: Sequence[ScoredCandidate], place: int
) -> list[str]:
    """What each kind of evidence adds to the log odds of the candidate at this place."""
    model = searcher.evidence
    if model is None:
        return []
    contributions = model.contributions(
        evidence_kinds.table_of([candidate.evidence for candidate in candidates]),
        num_videos=searcher.num_videos,
        is_copy=np.array([candidate.is_copy for candidate in candidates]),
    )
    added = dict(zip(evidence_kinds.names(), contributions[place].tolist(), strict=True))
    added["intercept"] = model.intercept
    return [
        f"{BLANK}log odds {log_odds:+6.2f}  {name}" for name, log_odds in added.items() if log_odds
    ]
