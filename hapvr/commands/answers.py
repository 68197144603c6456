"""What a person reads of answers: of searches, and of watch lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hapvr.reasons import said_of

if TYPE_CHECKING:
    from hapvr.search.match import Match, SearchAnswer


def answer_lines(answer: SearchAnswer, *, every: bool) -> list[str]:
    """One query. every: also the videos that do not match."""
    from hapvr.scorer.segments import clock

    if answer.error:
        code, _, message = answer.error.partition(": ")
        return [f"failed   {answer.query}: {said_of(code, message)}"]

    lines = [
        f"query    {answer.query} ({clock(answer.seconds)}), compared with {answer.compared} of "
        f"{answer.videos} videos",
        f"model    {answer.model}{', untrained' if answer.untrained else ''}{_basis(answer)}",
    ]
    if answer.incidents:
        lines.append("asked    which videos show the same incident, also from other cameras")
    lines += [f"warning  {warning}" for warning in answer.warnings]
    lines.append(f"answer   {answer.headline}")

    shown = [match for match in answer.matches if every or match.verdict != "no match"]
    for match in shown:
        lines += _match_lines(match)
    num_hidden = len(answer.matches) - len(shown)
    if num_hidden:
        more = " more" if shown else ""
        lines.append(f"         {num_hidden}{more} that do not match: --all shows them")

    return lines


def _basis(answer: SearchAnswer) -> str:
    """What the verdicts hold for, where there are any."""
    if answer.precision is None or answer.prior is None:
        return ""
    return (
        f"; verdicts at precision {answer.precision:g}, where {100 * answer.prior:.3g} % of the "
        f"{'pairs match' if answer.prior_of == 'pairs' else 'searches have a match'}"
    )


def _match_lines(match: Match) -> list[str]:
    """A video of an answer, and its segments."""
    from hapvr.scorer.calibration import chance
    from hapvr.scorer.segments import UNCERTAIN
    from hapvr.search.match import times

    sure = f"{match.verdict or '':<8}  {chance(match.probability)}"
    remarks = "".join(f"  {remark}" for remark in _remarks(match))
    lines = [
        f"{match.rank:>4}  {sure}  {match.similarity:+.3f}  {match.reference}{remarks}",
    ]
    for part in match.segments:
        speed = "" if part.speed == 1 else f"{part.speed:.1f}x speed, "
        doubt = "" if part.certain else f", {UNCERTAIN}"
        lines.append(f"{'':33}{times(part)}  ({speed}frame similarity {part.score:.2f}{doubt})")

    return lines


def _remarks(match: Match) -> list[str]:
    from hapvr.scorer.query_views import IN_A_PART

    remarks = []
    if match.same_file:
        remarks.append("the same file")
    if match.mark:
        remarks.append("marked as a match")
    if match.inner_picture:
        remarks.append(IN_A_PART)
    if match.offline:
        remarks.append("offline")
    if match.query_covered is None or match.reference_covered is None or not match.segments:
        return remarks
    remarks.append(
        f"covers {100 * match.query_covered:.0f} % of the query, "
        f"{100 * match.reference_covered:.0f} % of the video"
    )
    return remarks


def watched_line(row: Mapping[str, Any]) -> str:
    """A match of a watch list."""
    from hapvr.scorer.calibration import chance

    line = (
        f"{row['watch_list']:<16}  {row['verdict']:<8}  {chance(row['probability'])}  "
        f"{row['query']} - {row['video_id']}"
    )
    if row["query_sha256"] == row["video_sha256"]:
        line += "  the same file"
    return line
