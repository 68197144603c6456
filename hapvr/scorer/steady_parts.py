"""Matching segments as they are shown: each at one steady speed, the speed of the original unless
another one fits better, and marked where its place is not certain.

A fixed camera shows the same for seconds, so a path through its frames may run at any speed and
would fit elsewhere as well; and a path bridges what was cut out of a video, which changes no speed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hapvr.scorer.segments import LEAST_SHARE, MIN_FRAMES, Alignment, FrameTimes, Segment

AMBIGUOUS = 0.03
"""Two places whose mean frame similarities differ by less are equally likely."""
NEAR_FRAMES = (2, 3, 4)
"""By how many frames a part is shifted to see whether its place is certain."""
JUMP_FRAMES = 2
"""By how many frames one step of a path leaves its usual course where something was cut out or put
in; half a frame more or less on both sides is due to sampling."""
SAME_SCENE = 0.75
"""Share of the best place's similarity that half of all places reach where a video shows one scene
all along, such as a swing or a road: then the place is one of several that look alike."""


def settled(alignments: Sequence[Alignment], similarity: ArrayLike) -> list[Alignment]:
    """Alignments as they are shown; no two have a pair of frames in common.

    similarity: [T, T'], that they were found in
    """
    matrix = np.asarray(similarity, np.float64)
    parts: list[Alignment] = []
    for alignment in alignments:
        for part in _steady(alignment, matrix):
            longer = _with_outer_frames(part, matrix)
            if _is_apart(longer, parts):
                parts.append(longer)
            elif _is_apart(part, parts):
                parts.append(part)

    return parts


def _is_apart(part: Alignment, others: Sequence[Alignment]) -> bool:
    return not any(_overlap(part, other) for other in others)


def timed(part: Alignment, query: FrameTimes, reference: FrameTimes, *, fps: float) -> Segment:
    """A part in seconds of both videos. Where it runs at another speed, its last frame lasts as
    much longer in the faster video, but not beyond that video's end.

    fps: of the sampling
    """
    segment = Segment(
        *query.span_s(*part.query, fps),
        *reference.span_s(*part.reference, fps),
        part.score,
        part.certain,
    )
    query_s = _apart_s(query, part.query)
    reference_s = _apart_s(reference, part.reference)
    if segment.speed == 1.0 or query_s <= 0 or reference_s <= 0:
        return segment
    speed = reference_s / query_s
    if speed > 1:
        length_s = speed * (segment.query_end_s - segment.query_start_s)
        _, most_s = reference.span_s(0, -1, fps)
        end_s = min(segment.reference_start_s + length_s, most_s)
        return replace(segment, reference_end_s=max(end_s, segment.reference_end_s))

    length_s = (segment.reference_end_s - segment.reference_start_s) / speed
    _, most_s = query.span_s(0, -1, fps)
    end_s = min(segment.query_start_s + length_s, most_s)
    return replace(segment, query_end_s=max(end_s, segment.query_end_s))


def _apart_s(clock: FrameTimes, frames: tuple[int, int]) -> float:
    first, last = frames
    return clock.times_s[last] - clock.times_s[first]


def is_less_alike(part: Segment, other: Segment) -> bool:
    """Whether a part shows mostly what another one shows of the query, and is less alike: the same
    footage once more, edited in another way, or only another moment of the same scene."""
    start_s = max(part.query_start_s, other.query_start_s)
    end_s = min(part.query_end_s, other.query_end_s)
    mostly_s = (part.query_end_s - part.query_start_s) / 2
    return end_s - start_s > mostly_s and part.score < other.score - AMBIGUOUS


def is_one_scene(own: NDArray[np.float64], similarity: float) -> bool:
    """Whether frames are nearly as like each other, a few frames apart, as something else that has
    this similarity is like them. own: [T, T], of the frames among themselves."""
    apart = [np.diag(own, frames) for frames in NEAR_FRAMES if frames < len(own)]
    return any(float(values.mean()) >= SAME_SCENE * similarity for values in apart)


def _with_outer_frames(part: Alignment, matrix: NDArray[np.float64]) -> Alignment:
    """The alignment with the first and the last frame of the query, where it begins or ends one
    frame from them and they show what its own outer frames do: two frames of a video that was cut
    in mid-second may be like one frame of the other, which a path passes only once."""
    least = LEAST_SHARE * part.score
    first, last = part.query
    if first == 1 and matrix[0, part.reference[0]] > least:
        first = 0
    if last == len(matrix) - 2 and matrix[-1, part.reference[1]] > least:
        last += 1
    return replace(part, query=(first, last))


def _overlap(part: Alignment, other: Alignment) -> bool:
    """Whether two alignments have frames of both videos in common."""
    return all(
        max(first[0], second[0]) <= min(first[1], second[1])
        for first, second in ((part.query, other.query), (part.reference, other.reference))
    )


def _steady(alignment: Alignment, matrix: NDArray[np.float64]) -> list[Alignment]:
    """The parts of an alignment that run at one speed each, the longest first."""
    straight = _straightened(alignment, matrix)
    if straight is not None and straight.score >= alignment.score - AMBIGUOUS:
        return [straight]
    pieces = list(_without_jumps(alignment, matrix))
    if len(pieces) > 1:
        pieces.sort(key=lambda piece: piece.query[0] - piece.query[1])
        return [part for piece in pieces for part in _steady(piece, matrix)]
    if straight is not None and straight.score >= _at_one_speed(alignment, matrix) - AMBIGUOUS:
        # only a path that changes its speed from frame to frame fits better
        return [replace(straight, certain=False)]

    return [alignment]


def _without_jumps(alignment: Alignment, matrix: NDArray[np.float64]) -> Iterator[Alignment]:
    """The pieces of the alignment between the places at which its path suddenly leaves its usual
    course."""
    path = alignment.path
    if len(path) < 2 * MIN_FRAMES:
        yield alignment
        return

    usual = median((column - left) / (row - up) for (up, left), (row, column) in pairwise(path))
    first = 0
    for place, ((up, left), (row, column)) in enumerate(pairwise(path), start=1):
        if abs(column - left - usual * (row - up)) >= JUMP_FRAMES:
            if place - first >= MIN_FRAMES:
                yield _along(path[first:place], matrix)
            first = place

    if len(path) - first >= MIN_FRAMES:
        yield _along(path[first:], matrix)


def _along(path: tuple[tuple[int, int], ...], matrix: NDArray[np.float64]) -> Alignment:
    """The alignment of a path."""
    rows = [row for row, _ in path]
    columns = [column for _, column in path]
    score = float(matrix[rows, columns].mean())
    return Alignment((rows[0], rows[-1]), (columns[0], columns[-1]), score, path=path)


def _at_one_speed(alignment: Alignment, matrix: NDArray[np.float64]) -> float:
    """How well the frames between both ends of an alignment fit if it runs at one speed; at each
    place the more similar of the two nearest frames counts."""
    rows = np.arange(alignment.query[0], alignment.query[1] + 1)
    columns = np.linspace(*alignment.reference, len(rows))
    before = matrix[rows, np.floor(columns).astype(np.intp)]
    behind = matrix[rows, np.ceil(columns).astype(np.intp)]
    return float(np.maximum(before, behind).mean())


def _straightened(alignment: Alignment, matrix: NDArray[np.float64]) -> Alignment | None:
    """The alignment of the query's frames at the speed of the original: where the path leads, if
    that is a place of its own, else where they fit best. None if the reference has fewer frames."""
    first, last = alignment.query
    length = last - first + 1
    rows = np.arange(first, last + 1)
    starts = np.arange(matrix.shape[1] - length + 1)
    if not len(starts):
        return None
    fits = np.array([matrix[rows, start + rows - first].mean() for start in starts])
    from_path = np.abs(starts - alignment.reference[0])
    start = _best_start(fits, from_path)
    beside_path = np.where(from_path <= max(NEAR_FRAMES), fits, -np.inf)
    own_start = _best_start(beside_path, from_path)
    places = slice(None)
    if _is_certain(fits, own_start):
        # The same footage may be shown elsewhere as well.
        start = own_start
        places = slice(max(0, start - length), start + 2 * length)

    fit = float(fits[start])
    at_half_speed = _best_at_half_speed(matrix[rows, places])
    is_certain = _is_certain(fits, start) and at_half_speed <= fit + AMBIGUOUS
    return Alignment((first, last), (start, start + length - 1), fit, is_certain)


def _best_start(fits: NDArray[np.float64], from_path: NDArray[np.intp]) -> int:
    """The place that fits best; of equal ones the one nearest to the path."""
    best = np.flatnonzero(fits >= fits.max() - 1e-6)
    return int(best[np.argmin(from_path[best])])


def _best_at_half_speed(matrix: NDArray[np.float64]) -> float:
    """How well the rows fit where they fit best at half the speed of the original, which no path
    follows through pictures that are all alike, as it moves on in both videos with each step; at
    each place the more similar of the two nearest frames counts."""
    before = np.arange(len(matrix)) // 2
    behind = np.arange(1, len(matrix) + 1) // 2
    rows = np.arange(len(matrix))
    fits = [
        np.maximum(matrix[rows, start + before], matrix[rows, start + behind]).mean()
        for start in range(matrix.shape[1] - int(behind[-1]))
    ]
    return float(max(fits, default=-np.inf))


def _is_certain(fits: NDArray[np.float64], start: int) -> bool:
    """Whether no other place fits as well, neither nearby nor elsewhere in one scene."""
    others = [
        float(fits[start + sign * step])
        for step in NEAR_FRAMES
        for sign in (-1, 1)
        if 0 <= start + sign * step < len(fits)
    ]
    fit = float(fits[start])
    if float(np.median(fits)) >= SAME_SCENE * fit:
        apart = np.abs(np.arange(len(fits)) - start) >= min(NEAR_FRAMES)
        others.extend(fits[apart].tolist())

    return not others or max(others) < fit - AMBIGUOUS
