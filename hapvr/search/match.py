"""What is asked, the part of a video or a picture, and what a search answers: matches, their
segments and coverage, also as tables.

A table has a row per matching segment, with the column names of VSC2022's `matches.csv` first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter, computed_field

from hapvr.errors import ArgumentError, DataError, VideoError
from hapvr.scorer import DEFAULT_PRECISION
from hapvr.scorer.calibration import Verdict
from hapvr.scorer.segments import Segment, clock
from hapvr.scorer.videos import SampledFeatures
from hapvr.search.votes import Window

REPEATED = 0.5
"""Part of a segment that earlier ones cover, above which it shows nothing new."""
MOMENT_S = 1.0
"""How far before and after a moment the query goes that is named by one second."""

CANNOT_SAY = "unsure: ranked by similarity only, since the model was fitted on no searches"

SCHEMA = pa.schema(
    [
        ("query_id", pa.string()),
        ("ref_id", pa.string()),
        ("query_start", pa.float64()),
        ("query_end", pa.float64()),
        ("ref_start", pa.float64()),
        ("ref_end", pa.float64()),
        ("score", pa.float64()),
        ("rank", pa.int64()),
        ("similarity", pa.float64()),
        ("probability", pa.float64()),
        ("query_covered", pa.float64()),
        ("ref_covered", pa.float64()),
        ("offset", pa.float64()),
        ("mark", pa.string()),
        ("marked_by", pa.string()),
        ("marked_since", pa.string()),
        ("verdict", pa.string()),
        ("same_file", pa.bool_()),
        ("inner_picture", pa.bool_()),
        ("model", pa.string()),
        ("error", pa.string()),
    ]
)
"""Times in seconds. score: of the segment, in [-1, 1], or of the pair where there is no segment;
then there are no times."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Seconds of a query, from its first frame on. end_s: None for its end. Raises ArgumentError
    unless 0 <= start < end."""

    start_s: float = 0.0
    end_s: float | None = None

    def __post_init__(self) -> None:
        end = math.inf if self.end_s is None else self.end_s
        if not (math.isfinite(self.start_s) and 0 <= self.start_s < end):
            raise ArgumentError(
                f"part: from {self.start_s} to {self.end_s} s; expected 0 <= from < to"
            )

    @classmethod
    def named(cls, at_s: float | None, start_s: float | None, end_s: float | None) -> Part | None:
        """The second before and after a moment, or the seconds between two; None where none is
        given. Raises ArgumentError."""
        if at_s is None:
            return (
                None
                if start_s is None and end_s is None
                else cls(start_s=start_s or 0.0, end_s=end_s)
            )
        if start_s is not None or end_s is not None:
            raise ArgumentError("at and from/to: expected one of the two")
        return cls(start_s=max(at_s - MOMENT_S, 0.0), end_s=at_s + MOMENT_S)


@dataclass(frozen=True, kw_only=True, eq=False)
class Query:
    """A video or picture to search for. sha256: of the file, "" from a URL. video_id: of a video of
    the collection, else ""."""

    name: str
    features: SampledFeatures
    sha256: str = ""
    video_id: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What speaks against believing answers to it."""
        clock = self.features.clock
        warnings: list[str] = []
        if clock.missing:
            warnings.append(f"only a part of {self.name} can be read: {clock.missing}")
        if clock.clock_note:
            warnings.append(f"{self.name}: {clock.clock_note}")
        return tuple(warnings)


def thin(video: SampledFeatures, count: int) -> SampledFeatures:
    """At most `count` of the frames, evenly apart, with their own times."""
    if len(video.regions) <= count:
        return video
    return video.take(np.linspace(0, len(video.regions) - 1, count).round().astype(int).tolist())


def cut(video: SampledFeatures, part: Part, *, name: str, fps: float) -> SampledFeatures:
    """The sampled frames of a part, with their own times. Raises VideoError `no_frames` where it
    has none. fps: of the sampling; a frame stands for the 1 / fps seconds from its time on."""
    times = np.asarray(video.clock.times_s)
    end = math.inf if part.end_s is None else part.end_s
    rows = np.flatnonzero((times + 1 / fps > part.start_s) & (times < end))
    if not len(rows):
        last = times[-1] + 1 / fps if len(times) else 0.0
        raise VideoError(
            "no_frames",
            f"query: {name} lasts {last:.1f} s and has no frame from {part.start_s:g} s on; "
            "name another part",
        )

    return video.take(rows.tolist())


def printable(text: str) -> str:
    """A text that can be written as UTF-8: bytes of a file's name that are not are written as
    \\xNN, as in `text_of_path`."""
    return re.sub("[\ud800-\udfff]", lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", text)


@dataclass(frozen=True, kw_only=True)
class Match:
    """A video of the collection that may show footage of the query.

    rank: from 1. similarity in [-1, 1], as `hapvr score` gives for the compared parts of query and
    reference. probability: of a match, from all evidence, in [0, 1], for the prior of
    the answer; None from a model without evidence. segments: the longest and surest first.
    query_covered, reference_covered: parts of both that segments cover, in [0, 1]; None where no
    segments were looked for. mark: "match" where somebody marked the pair, else ""; marked_by,
    marked_since: who and when (ISO 8601, UTC). verdict: see `verdict_of`. same_file: whether query
    and video have the same bytes. inner_picture: whether a part of the query's picture matches
    rather than the whole, see `hapvr.scorer.query_views`. offline: whether the video's file is
    not where it was, as while its drive is offline.
    """

    query: str
    reference: str
    rank: int
    similarity: float
    probability: float | None
    segments: tuple[Segment, ...] = ()
    query_covered: float | None = None
    reference_covered: float | None = None
    mark: str = ""
    marked_by: str = ""
    marked_since: str = ""
    verdict: Verdict | None = None
    same_file: bool = False
    inner_picture: bool = False
    offline: bool = False

    @computed_field  # type: ignore[prop-decorator]  # pydantic's way
    @property
    def offset_s(self) -> float | None:
        """Time in the reference less time in the query at the beginning of the first segment."""
        return (
            self.segments[0].reference_start_s - self.segments[0].query_start_s
            if self.segments
            else None
        )


@dataclass(frozen=True, kw_only=True)
class SearchAnswer:
    """What one query gives. Without an error, no match means that nothing was found.

    query_id: of a query that is a video of the collection, else "". incidents: whether videos of
    the same incident were asked for, not copies. seconds: of the searched part of the query. prior:
    share of matches for which the probabilities hold, among candidates (`prior_of` pairs), or of
    searches with a match. compared: how many videos were scored of those that the collection has.
    warnings: what speaks against believing the answer. model: `models:/NAME/VERSION` or a bundle;
    untrained: whether nothing in it was trained. precision: of the verdicts; None where the model
    gives no probabilities. error: why there is no answer; empty if there is one.
    """

    query: str
    query_id: str = ""
    incidents: bool = False
    matches: tuple[Match, ...] = ()
    seconds: float = 0.0
    prior: float | None = None
    prior_of: Literal["pairs", "searches"] = "pairs"
    compared: int = 0
    videos: int = 0
    warnings: tuple[str, ...] = ()
    model: str = ""
    untrained: bool = False
    precision: float | None = None
    error: str = ""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def headline(self) -> str:
        """The answer in a few words; empty where there is none."""
        if self.error:
            return ""
        if not self.matches:
            return "nothing found"
        return self._headline_of_matches()

    def _headline_of_matches(self) -> str:
        match = sum(row.verdict == "match" for row in self.matches)
        unsure = sum(row.verdict == "unsure" for row in self.matches)
        matching = "1 video matches" if match == 1 else f"{match} videos match"
        if self.precision is None and not match:
            return CANNOT_SAY
        if self.precision is None and len(self.matches) > match:
            return f"{matching}; the others are {CANNOT_SAY}"
        if match and unsure:
            return f"{matching}, {unsure} unsure"
        if match:
            return matching
        if unsure:
            videos = "video" if unsure == 1 else "videos"
            return f"unsure: {unsure} {videos} may match"

        return "probably nothing here"


def answer_or_error(query: str, search: Callable[[], SearchAnswer]) -> SearchAnswer:
    """What a search for a query gives; one that cannot be used is an answer with an error."""
    try:
        return search()
    except (VideoError, DataError) as error:
        reason = f"{error.reason}: {error}" if isinstance(error, VideoError) else str(error)
        return without_answer(query, reason)


def without_answer(query: str, reason: str) -> SearchAnswer:
    """What stands for the answer to a query that has none. reason: why."""
    return SearchAnswer(query=printable(query), error=printable(reason))


def verdict_of(
    probability: float | None, *, mark: str = "", same_file: bool = False
) -> Verdict | None:
    """The verdict on a pair at DEFAULT_PRECISION: by people, by equal bytes, by its probability;
    None where there is none."""
    if mark or same_file:
        return "match" if mark in ("", "match") else "no match"
    if probability is None:
        return None
    if probability >= DEFAULT_PRECISION:
        return "match"
    return "no match" if probability <= 1 - DEFAULT_PRECISION else "unsure"


def times(part: Segment | Window) -> str:
    """A common part, or where votes agree on one, as people read it."""
    return (
        f"query {clock(part.query_start_s)}-{clock(part.query_end_s)} = "
        f"{clock(part.reference_start_s)}-{clock(part.reference_end_s)}"
    )


def coverage(
    segments: Sequence[Segment], *, query_s: float, reference_s: float
) -> tuple[float, float]:
    """Parts of the query and of the reference that the segments cover, each in [0, 1]; what
    overlaps counts once."""
    query_covered_s = _covered_s(map(_of_query, segments))
    reference_covered_s = _covered_s(map(_of_reference, segments))
    return _share(query_covered_s, query_s), _share(reference_covered_s, reference_s)


def without_repeats(segments: Sequence[Segment]) -> list[Segment]:
    """The segments, in order, without those that show mostly what earlier ones already do, in
    either video: where little happens, one part is like many of the other video."""
    kept: list[Segment] = []
    for segment in segments:
        if not any(_is_repeat(segment, kept, side) for side in (_of_query, _of_reference)):
            kept.append(segment)

    return kept


Span = tuple[float, float]


def _of_query(segment: Segment) -> Span:
    return segment.query_start_s, segment.query_end_s


def _of_reference(segment: Segment) -> Span:
    return segment.reference_start_s, segment.reference_end_s


def _is_repeat(
    segment: Segment, earlier: Iterable[Segment], side: Callable[[Segment], Span]
) -> bool:
    """Whether earlier segments cover more than REPEATED of one, in the video of that side."""
    spans = [side(other) for other in earlier]
    start_s, end_s = side(segment)
    new_s = _covered_s([*spans, (start_s, end_s)]) - _covered_s(spans)
    return new_s < (1 - REPEATED) * (end_s - start_s)


def _covered_s(spans: Iterable[Span]) -> float:
    """Seconds that the spans cover; what overlaps counts once."""
    total_s = 0.0
    covered_until_s = 0.0
    for start_s, end_s in sorted(spans):
        total_s += max(end_s - max(start_s, covered_until_s), 0.0)
        covered_until_s = max(covered_until_s, end_s)

    return total_s


def _share(part_s: float, whole_s: float) -> float:
    return min(part_s / whole_s, 1.0) if whole_s > 0 else 0.0


def answer_table(answers: Iterable[SearchAnswer]) -> pa.Table:
    """All answers in one table; a match without segments is a row without times, a failed query a
    row with its error."""
    rows: list[dict[str, Any]] = []
    for answer in answers:
        if answer.error:
            rows.append({"query_id": answer.query, "error": answer.error})
        for match in answer.matches:
            pair = vars(match) | {
                "query_id": match.query,
                "ref_id": match.reference,
                "score": match.similarity,
            }
            pair |= {"ref_covered": match.reference_covered, "model": answer.model, "error": ""}
            rows += [
                pair
                | {
                    "query_start": segment.query_start_s,
                    "query_end": segment.query_end_s,
                    "score": segment.score,
                }
                | {"ref_start": segment.reference_start_s, "ref_end": segment.reference_end_s}
                | {"offset": segment.reference_start_s - segment.query_start_s}
                for segment in match.segments
            ] or [pair]

    return pa.Table.from_pylist(rows, schema=SCHEMA)


def answer_values(answers: Sequence[SearchAnswer]) -> list[dict[str, Any]]:
    """All answers as plain values for JSON."""
    values: list[dict[str, Any]] = TypeAdapter(Sequence[SearchAnswer]).dump_python(
        answers, mode="json"
    )
    return values
