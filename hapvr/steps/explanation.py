"""Why a search shows a video at its place, or not: what each view of the query finds of it, and at
which cut it falls out."""

from dataclasses import replace

import numpy as np

from hapvr.errors import DataError, VideoError
from hapvr.scorer.access import Deadline
from hapvr.scorer.evidence import FEATURES
from hapvr.scorer.query_views import IN_A_PART
from hapvr.scorer.scorer import NEVER
from hapvr.search.engine import evidence_of
from hapvr.search.match import Query, chance, times
from hapvr.search.votes import Candidate
from hapvr.steps.searcher import Searcher, SearchOptions


def explain(
    searcher: Searcher,
    query: Query,
    video_id: str,
    options: SearchOptions,
    *,
    deadline: Deadline = NEVER,
) -> list[str]:
    """Search for a query, and say what is found of one video: lines of a label or blanks in the
    first nine columns, and a text. Raises DataError for an unknown id or features that are gone,
    VideoError for a query that shows nothing, `timeout` at the deadline."""
    everything = replace(
        options, top=max(searcher.num_videos, 1), min_probability=0.0, segments=False
    )
    matches = {
        match.reference: match
        for match in searcher.answer(query, everything, deadline=deadline).matches
    }
    row, views = matches.get(video_id), searcher.views_of(query, options, deadline)
    scored, _ = searcher.score_views(
        views, allowed=searcher.allowed(query, options), deadline=deadline
    )
    lines: list[str] = []
    for number, (view, found) in enumerate(zip(views, scored, strict=True)):
        names = [one.video_id for one in found]
        where, is_candidate = IN_A_PART if number else "in the whole picture", video_id in names
        if not is_candidate:
            try:
                alone = searcher.shortlist(view, allowed=lambda one: one == video_id)
            except VideoError:  # the view shows nothing
                alone = []
            alone = alone or [Candidate(video_id=video_id, votes=0.0, windows=())]
            compared, lost = searcher.score(view, alone, number=number)
            if lost:
                raise DataError(lost[video_id])
            found, names = [*found, *compared], [*names, video_id]
        one = found[names.index(video_id)]
        said = one.candidate
        lines.append(
            f"view     {where}: {'a' if is_candidate else 'no'} candidate, similarity "
            f"{one.similarity:+.3f}; "
            f"two frames in a row {one.frame_run:+.3f}; "
            f"{said.num_voting} of {said.num_asked} frames vote for one offset"
        )
        lines += [f"{'':9}votes {window.votes:.2f}  {times(window)}" for window in said.windows]
        lines += [
            f"{'':9}common part  {times(part)}" for part in searcher.segments(view, one, deadline)
        ]
        if (model := searcher.evidence) is not None:
            parts = [
                *model.contributions(
                    evidence_of(found),
                    num_videos=searcher.num_videos,
                    is_copy=np.array([one.is_copy for one in found]),
                )[names.index(video_id)].tolist(),
                model.intercept,
            ]
            known = zip((*FEATURES, "intercept"), parts, strict=True)
            lines += [f"{'':9}log odds {added:+6.2f}  {name}" for name, added in known if added]
    if row is not None:
        lines.insert(0, f"rank     {row.rank}  {chance(row.probability)}")
    if row is None and any(video_id == one.video_id for found in scored for one in found):
        outcome = "left out: people marked the pair as no match"
    elif row is None:
        outcome = "no candidate: others have more votes (see search.candidates), or it was left out"
    elif (row.probability or 0.0) < options.min_probability and not row.mark:
        outcome = f"left out: its probability is below {options.min_probability:g}"
    else:
        outcome = f"left out: {options.top} are better" if row.rank > options.top else "shown"
    return [f"query    {query.name}", f"video    {video_id}: {outcome}", *lines]
