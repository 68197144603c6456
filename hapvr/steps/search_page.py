"""Answers of searches as one HTML file that needs nothing else: a table per query, with pictures of both sides."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from hapvr.data.frames import VideoFrames, thumbnail
from hapvr.scorer.segments import Segment, clock
from hapvr.scorer.videos import is_picture
from hapvr.search.collection import SearchableCollection
from hapvr.search.match import Match, SearchAnswer
from hapvr.steps.pictures import StoredPictures, nearest
from hapvr.steps.project import Project
from hapvr.video.pool import sample_videos
from hapvr.video.sources import path_of_text

Picture = Callable[[str, float], bytes | None]
"""The JPEG of a video's frame at a second; None where it cannot be had."""

PICTURE_PX = (192, 108)
QUERY_SIDE_PX = 128
STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 20%, transparent) }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem }
h2 { overflow-wrap: anywhere; margin-top: 2.5rem } table { border-collapse: collapse; width: 100% }
td, th { border-top: 1px solid var(--line); padding: .6rem .6rem .6rem 0; text-align: left; vertical-align: top }
td.name { overflow-wrap: anywhere } td.number { font-variant-numeric: tabular-nums; white-space: nowrap }
img { display: block; max-width: 192px; border-radius: 4px } figure { display: inline-block; margin: 0 .5rem .3rem 0 }
figcaption { font-size: 12px; font-variant-numeric: tabular-nums } .note { opacity: .75 } meter { width: 6rem }
"""


def search_page(project: Project, answers: Sequence[SearchAnswer], collection: SearchableCollection) -> str:
    """A whole HTML document."""
    stored, queries = StoredPictures(project, collection.shard_of), _Queries(project)

    def query_picture(name: str, second: float) -> bytes | None:
        return (stored if name in collection.shard_of else queries).at(name, second)

    parts = [
        _answer(answer, query_picture, stored.at, lambda one: collection.metadata.of(one).path) for answer in answers
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Matches</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{STYLE}</style></head><body><h1>Matches</h1>{''.join(parts)}</body></html>\n"
    )


def _answer(
    answer: SearchAnswer, query_picture: Picture, reference_picture: Picture, links: Callable[[str], Path | None]
) -> str:
    parts = [f"<section><h2>{escape(answer.query)}</h2>"]
    if answer.error:
        return f'{parts[0]}<p class="note">{escape(answer.error)}</p></section>'
    parts += [f'<p class="note">Warning: {escape(warning)}</p>' for warning in answer.warnings]
    share = "" if answer.prior is None else f" Probabilities hold where {100 * answer.prior:.3g} % of the pairs match."
    parts.append(
        f'<p class="note">{clock(answer.seconds)} long; compared with {answer.compared} of {answer.videos} videos.{share}</p>'
    )
    if not answer.matches:
        return "".join([*parts, "<p>Nothing found.</p></section>"])
    parts.append(
        "<table><tr><th>#</th><th>video</th><th>probability</th><th>similarity</th><th>matching parts</th></tr>"
    )
    parts += [_match(match, query_picture, reference_picture, links(match.reference)) for match in answer.matches]
    return "".join([*parts, "</table></section>"])


def _match(match: Match, query_picture: Picture, reference_picture: Picture, file: Path | None) -> str:
    name = escape(match.reference)
    if file is not None:
        second = match.segments[0].reference_start_s if match.segments else 0
        name = f'<a href="{escape(file.resolve().as_uri())}#t={second:g}" target="_blank" rel="noopener">{name}</a>'
    chance = ""
    if match.probability is not None:
        chance = f'<meter min="0" max="1" value="{match.probability:.4f}"></meter> {100 * match.probability:.1f} %'
    shown = "".join(_segment(match, part, query_picture, reference_picture) for part in match.segments)
    if match.query_covered is not None and match.reference_covered is not None and match.segments:
        shown += (
            f'<p class="note">{100 * match.query_covered:.0f} % of the query, '
            f"{100 * match.reference_covered:.0f} % of the video</p>"
        )
    marked = '<br><span class="note">marked as a match</span>' if match.mark else ""
    return (
        f'<tr><td class="number">{match.rank}</td><td class="name">{name}{marked}</td>'
        f'<td class="number">{chance}</td><td class="number">{match.similarity:+.3f}</td><td>{shown}</td></tr>'
    )


def _segment(match: Match, part: Segment, query_picture: Picture, reference_picture: Picture) -> str:
    """Pictures of the middle of both sides: many videos begin with black."""
    query, reference = (part.query_start_s, part.query_end_s), (part.reference_start_s, part.reference_end_s)
    pictures = query_picture(match.query, sum(query) / 2), reference_picture(match.reference, sum(reference) / 2)
    return f"<div>{_figure('query', pictures[0], *query)}{_figure('video', pictures[1], *reference)}</div>"


def _figure(title: str, picture: bytes | None, start_s: float, end_s: float) -> str:
    caption = f"<figcaption>{title} {clock(start_s)}-{clock(end_s)}</figcaption>"
    if picture is None:
        return f"<figure>{caption}</figure>"
    small = io.BytesIO()
    thumbnail(picture, size_px=PICTURE_PX).save(small, "JPEG", quality=80)
    data = base64.b64encode(small.getvalue()).decode()
    return f'<figure><img alt="{title} at {clock((start_s + end_s) / 2)}" src="data:image/jpeg;base64,{data}">{caption}</figure>'


class _Queries:
    """Frames of queries that are not videos of the collection; those of the last one are kept."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._last: tuple[str, VideoFrames | None] = ("", None)

    def at(self, name: str, second: float) -> bytes | None:
        if self._last[0] != name:
            self._last = (name, self._decoded(name))
        return nearest(self._last[1], second)

    def _decoded(self, name: str) -> VideoFrames | None:
        if "://" in name or is_picture(name):
            return None
        sampling = self._project.config.sampling.model_copy(update={"short_side_px": QUERY_SIDE_PX})
        video = next(iter(sample_videos([(name, path_of_text(name))], config=sampling)))
        return None if video.reason else VideoFrames(name, video.jpegs, video.timestamps_s)
