"""Matching segments of two videos: local alignment (Smith and Waterman, 1981) on their frame similarities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hapvr.errors import ArgumentError

DEFAULT_THRESHOLD = 0.6
"""Relative frame similarity that counts as a match where the model brings none that was fitted."""

MIN_FRAMES = 2
MAX_SEGMENTS = 16
MAX_SHORT_PATHS = 8
"""Paths in a row that turn out too short for a segment, after which no more is looked for."""

STEP_COST = 0.25
"""Price of a step that moves in one video alone, in units of a perfect match: other speeds cost, but are found."""

MAX_BRIDGED = 2
"""Frames in a row that may be unlike within one segment."""

_START, _BOTH, _QUERY, _REFERENCE = 0, 1, 2, 3


@dataclass(frozen=True)
class Alignment:
    """Frames query[0]..query[1] show what reference[0]..reference[1] do. score: mean frame similarity on the path."""

    query: tuple[int, int]
    reference: tuple[int, int]
    score: float


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of the query and the part of the reference that shows the same, in seconds from each video's first frame.

    score: mean relative frame similarity along the alignment, see `relative_similarity`.
    """

    query_start_s: float
    query_end_s: float
    reference_start_s: float
    reference_end_s: float
    score: float


@dataclass(frozen=True)
class Clock:
    """When the sampled frames of a video are shown, in seconds from its first frame, and how long it lasts, if known."""

    times_s: tuple[float, ...]
    duration_s: float | None = None

    def end_s(self, frame: int, *, fps: float) -> float:
        """When a sampled frame ends: 1 / fps after its own time, and never after the video's end."""
        start_s = self.times_s[frame]
        end_s = start_s + 1 / fps
        return end_s if self.duration_s is None else max(start_s, min(end_s, self.duration_s))

    def part(self, first: int, last: int) -> Clock:
        """Of the sampled frames from `first` to `last` - 1."""
        return Clock(self.times_s[first:last], self.duration_s)


def relative_similarity(frame: ArrayLike, query: ArrayLike, reference: ArrayLike) -> NDArray[np.float64]:
    """Frame similarities against those of each frame with itself, so that 1 is the same picture whatever attention did.

    frame: [T, T'] from the network; query: [T], reference: [T'], of each frame with itself. Returns [T, T'] in [-1, 1].
    """
    products = np.outer(np.asarray(query, np.float64), np.asarray(reference, np.float64))
    scale = np.sqrt(np.maximum(products, 1e-12))
    return np.clip(np.asarray(frame, np.float64) / scale, -1, 1)


def best_run(similarity: ArrayLike, *, num_frames: int = MIN_FRAMES) -> float:
    """The highest threshold at which some `num_frames` consecutive frame pairs match; of all frames of a shorter video.

    similarity: [T, T'], T and T' >= 1.
    """
    matrix = np.asarray(similarity, np.float64)
    length = min(num_frames, *matrix.shape)
    height, width = (size - length + 1 for size in matrix.shape)
    shifted = [matrix[step : step + height, step : step + width] for step in range(length)]
    return float(np.min(shifted, axis=0).max())


def align(
    similarity: ArrayLike, *, threshold: float, min_frames: int = MIN_FRAMES, max_segments: int = MAX_SEGMENTS
) -> list[Alignment]:
    """Parts of two videos that match, the longest and surest first.

    similarity: [T, T'], see `relative_similarity`; threshold: what a frame pair must exceed to count for a part.
    min_frames: in both videos, or as many as the shorter one has. Parts run forward in both videos; each may be
    found in several places, but no part lies within another. Raises ArgumentError for a matrix without cells.
    """
    matrix = checked_matrix(similarity, threshold)
    wanted = min(min_frames, *matrix.shape)
    # full marks half way to 1, full penalty half way to 0: what is unrelated may lie close below the threshold
    above, below = (1 - threshold) / 2, max(abs(threshold) / 2, 0.05)
    gain = np.clip(np.where(matrix > threshold, (matrix - threshold) / above, (matrix - threshold) / below), -1, 1)
    if wanted > 1:
        gain[_lonely(gain > 0)] = 0
    found: list[Alignment] = []
    num_short = 0
    while len(found) < max_segments and num_short < MAX_SHORT_PATHS:
        rows, columns = _best_path(gain)
        if not rows:
            break
        rows, columns = _surest_part(rows, columns, gain)
        first, last = (rows[0], columns[0]), (rows[-1], columns[-1])
        if min(last[0] - first[0], last[1] - first[1]) + 1 < wanted:
            gain[rows, columns] = -np.inf
            num_short += 1
            continue
        num_short = 0
        score = float(matrix[rows, columns].mean())
        found.append(Alignment((first[0], last[0]), (first[1], last[1]), score))
        # a margin of one frame, where neighbours that look alike would give the same part again
        gain[max(first[0] - 1, 0) : last[0] + 2, max(first[1] - 1, 0) : last[1] + 2] = -np.inf
    return found


def checked_matrix(similarity: ArrayLike, threshold: float) -> NDArray[np.float64]:
    """The matrix [T, T'] in float64. Raises ArgumentError for one without cells, and for a threshold outside [-1, 1)."""
    matrix = np.asarray(similarity, np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ArgumentError(f"similarity has shape {matrix.shape}; wanted a matrix [query frames, reference frames]")
    if not -1 <= threshold < 1:
        raise ArgumentError(f"threshold is {threshold}; wanted a frame similarity of at least -1 and below 1")
    return matrix


def timed_segments(alignments: Sequence[Alignment], query: Clock, reference: Clock, *, fps: float) -> list[Segment]:
    """Alignments as times. A sampled frame stands for the 1 / fps seconds from its own time on."""
    return [
        Segment(
            query_start_s=query.times_s[found.query[0]],
            query_end_s=query.end_s(found.query[1], fps=fps),
            reference_start_s=reference.times_s[found.reference[0]],
            reference_end_s=reference.end_s(found.reference[1], fps=fps),
            score=found.score,
        )
        for found in alignments
    ]


def _lonely(good: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Good cells with no other one before or behind them in both videos, as near as a segment may bridge. [T, T']."""
    reach = range(1, MAX_BRIDGED + 2)
    company = np.zeros_like(good)
    for down in reach:
        for right in reach:
            company[down:, right:] |= good[:-down, :-right]
            company[:-down, :-right] |= good[down:, right:]
    return good & ~company


def _best_path(gain: NDArray[np.float64]) -> tuple[list[int], list[int]]:
    """Rows and columns of the monotone path with the largest sum of gains less step costs; empty if none is above 0."""
    totals, moves = _totals(gain)
    row, column = (int(index) for index in np.unravel_index(int(totals.argmax()), totals.shape))
    rows: list[int] = []
    columns: list[int] = []
    if totals[row, column] <= 0:
        return rows, columns
    while True:
        rows.append(row)
        columns.append(column)
        move = moves[row, column]
        if move == _START:
            return rows[::-1], columns[::-1]
        row -= move in (_BOTH, _QUERY)
        column -= move in (_BOTH, _REFERENCE)


def _surest_part(rows: list[int], columns: list[int], gain: NDArray[np.float64]) -> tuple[list[int], list[int]]:
    """Of a path whose good parts lie more than MAX_BRIDGED bad steps apart, the part with the largest sum of gains."""
    gains = gain[rows, columns]
    good = np.flatnonzero(gains > 0)
    breaks = np.flatnonzero(np.diff(good) > MAX_BRIDGED + 1)
    firsts, lasts = good[np.append(0, breaks + 1)], good[np.append(breaks, len(good) - 1)]
    first, last = max(zip(firsts, lasts, strict=True), key=lambda part: gains[part[0] : part[1] + 1].sum())
    return rows[first : last + 1], columns[first : last + 1]


def _totals(gain: NDArray[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """Best sum of a path that ends in each cell, and the step that led there, one anti-diagonal at a time."""
    height, width = gain.shape
    flat = np.ascontiguousarray(gain, np.float32).ravel()
    totals, moves = np.zeros(height * width, np.float32), np.zeros(height * width, np.int8)
    # totals of the last two anti-diagonals by row, one row further down so that row -1 is there: no path comes from it
    last, before_last = np.zeros(height + 1, np.float32), np.zeros(height + 1, np.float32)
    step = max(width - 1, 1)
    for diagonal in range(height + width - 1):
        low, high = max(0, diagonal - width + 1), min(diagonal, height - 1) + 1
        start = low * width + diagonal - low
        cells = slice(start, start + (high - low - 1) * step + 1, step)
        best = np.zeros(high - low, np.float32)
        move = np.zeros(high - low, np.int8)
        for number, total in (
            (_BOTH, before_last[low:high]),
            (_QUERY, last[low:high] - STEP_COST),
            (_REFERENCE, last[low + 1 : high + 1] - STEP_COST),
        ):
            better = total > best
            best[better], move[better] = total[better], number
        current = np.zeros(height + 1, np.float32)
        current[low + 1 : high + 1] = np.maximum(best + flat[cells], 0)
        totals[cells], moves[cells] = current[low + 1 : high + 1], move
        last, before_last = current, last
    return totals.reshape(height, width), moves.reshape(height, width)


def clock(seconds: float) -> str:
    """Whole seconds, rounded down, as 0:03 or 1:02:03."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
