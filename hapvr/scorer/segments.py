"""Matching segments of two videos: heaviest paths through a temporal network of similar frames (Tan
et al., "Scalable detection of partial near-duplicate videos by visual-temporal consistency", ACM MM
2009)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

DEFAULT_THRESHOLD = 0.6
"""The relative frame similarity that counts as a match where the model has no fitted one."""

SPEED_LEAST = 1.2
"""Factor by which one side of a segment must be longer before another speed is reported."""
SPEED_LEAST_S = 2.0
"""Seconds by which it must be longer, too."""

MIN_FRAMES = 2
MAX_SEGMENTS = 16
MAX_PATHS = 32
"""The most paths that are examined, whether they are segments or not."""

LEAST_SHARE = 0.4
"""Least score of a segment against the first one's, and of its ends against its best frames: one
edit lowers all parts alike."""
BEST_FRAMES = 8
"""The number of frame pairs of a path, the most similar ones, whose mean says how alike its parts
are."""
MAX_STEP = 5
"""By how many frames a path may move on at once, in each video: it bridges up to four unlike
ones."""
MIN_PAUSE_S = 60.0
"""Key frames are closer than this; the frames around a picture that stays for many minutes are
not."""
FRAME_PAIRS = 200
"""The number of irrelevant pairs whose frame similarities are used."""

FRAME_SPREAD = 1.5
"""How far above their median the segments' threshold is, in distances from it down to their lowest
twentieth."""

MAX_FRAME_THRESHOLD = 0.98


SPARSE_STEPS = 3
"""Frames that are this many sampling times apart, or more, are compared by their times; those of a
long video that is thinned evenly are closer."""

CLEAR_SHARE = 0.75
"""The least score of a part, as a share of the best one's: an edit affects all parts alike."""
UNCERTAIN = "fixed camera or repeating scene: the exact second is not certain"
"""The note in answers on a part whose place is not certain."""


@dataclass(frozen=True)
class Alignment:
    """Frames query[0]..query[1] show what reference[0]..reference[1] do."""

    query: tuple[int, int]
    reference: tuple[int, int]
    score: float
    """mean frame similarity on the path"""
    certain: bool = True
    """False where the part would fit as well some seconds earlier or later"""
    path: tuple[tuple[int, int], ...] = field(default=(), compare=False, repr=False)
    """the frame pairs on the path, in order; () where these are not known"""


@dataclass(frozen=True)
class Segment:
    """A part of the query and the part of the reference that shows the same, in seconds of each
    video's clock, from the file's start."""

    query_start_s: float
    query_end_s: float
    reference_start_s: float
    reference_end_s: float
    score: float
    """mean relative frame similarity along the alignment, see `relative_similarity`"""
    certain: bool = True
    """False where the part would fit as well some seconds earlier or later, see UNCERTAIN"""

    @property
    def speed(self) -> float:
        """How many seconds of the reference one second of the query shows; 1 where the difference
        may be due to sampling."""
        query = self.query_end_s - self.query_start_s
        reference = self.reference_end_s - self.reference_start_s
        slower, faster = sorted((query, reference))
        if faster - slower < SPEED_LEAST_S or faster < SPEED_LEAST * slower or slower <= 0:
            return 1.0
        return reference / query


Part = TypeVar("Part", Alignment, Segment)


@dataclass(frozen=True)
class FrameTimes:
    """When the sampled frames of a video are shown, and when its picture ends, if known, in seconds
    from the file's start as players count. missing: what seems to be missing from the file, or "";
    clock_note: what was wrong with the clock of a whole file, so that these seconds are not those
    of a player, or ""."""

    times_s: tuple[float, ...]
    duration_s: float | None = None
    missing: str = ""
    clock_note: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons to doubt answers about the video."""
        return tuple(filter(None, (self.missing, self.clock_note)))

    def span_s(self, first: int, last: int, fps: float) -> tuple[float, float]:
        """When frames are shown from `first` on to the end of `last`: 1 / fps after its own time,
        but not after the video's."""
        end_s = self.times_s[last] + 1 / fps
        if (
            self.duration_s is not None and self.duration_s > self.times_s[-1] - 1 / fps
        ):  # otherwise the declared end is nonsense
            end_s = max(self.times_s[last], min(end_s, self.duration_s))

        return self.times_s[first], end_s

    def steps(self, fps: float) -> int:
        """How many sampling times most of its frames are apart, if SPARSE_STEPS or more, as in a
        video of which only key frames were decoded; else 1."""
        if len(self.times_s) < 2:
            return 1
        # numpy takes fifty times as long for the few frames that most videos have
        apart_s = [float(later - earlier) for earlier, later in pairwise(self.times_s)]
        steps = round(median(apart_s) * fps)
        return steps if steps >= SPARSE_STEPS else 1

    def pauses(self) -> list[int]:
        """Frames before which far more time passes than usual, since the picture before them stays
        for longer than it is sampled."""
        apart_s = np.diff(np.asarray(self.times_s, np.float64))
        if not len(apart_s):
            return []
        longest_s = max(MIN_PAUSE_S, MAX_STEP * float(np.median(apart_s)))
        return [int(place) + 1 for place in np.flatnonzero(apart_s > longest_s)]

    def length_s(self, fps: float, max_frames: int) -> float:
        """How long the picture lasts, from the first frame to the end of the last one, or of the
        video where `sampling.max_frames` left out the rest, or frames are sparse."""
        first_s, end_s = self.span_s(0, -1, fps)
        if len(self.times_s) >= max_frames or self.steps(fps) > 1:
            end_s = max(end_s, self.duration_s or 0.0)
        return end_s - first_s


def relative_similarity(
    frame: ArrayLike, query: ArrayLike, reference: ArrayLike
) -> NDArray[np.float64]:
    """Frame similarities against those of each frame with itself, so that 1 is the same picture
    whatever attention did. frame: [T, T'] from the network; query: [T], reference: [T'], of each
    frame with itself. Returns [T, T'] in [-1, 1]."""
    products = np.outer(np.asarray(query, np.float64), np.asarray(reference, np.float64))
    scale = np.sqrt(np.maximum(products, 1e-12))
    return np.clip(np.asarray(frame, np.float64) / scale, -1, 1)


def best_run(similarity: ArrayLike) -> float:
    """The highest threshold at which some MIN_FRAMES consecutive frame pairs match; of all frames
    of a shorter video. similarity: [T, T'], T and T' >= 1."""
    matrix = np.asarray(similarity, np.float64)
    length = min(MIN_FRAMES, *matrix.shape)
    height = matrix.shape[0] - length + 1
    width = matrix.shape[1] - length + 1
    shifted = [matrix[step : step + height, step : step + width] for step in range(length)]
    return float(np.min(shifted, axis=0).max())


def align(similarity: ArrayLike, *, threshold: float) -> list[Alignment]:
    """Parts of two videos that match, at most MAX_SEGMENTS, the longest and surest first.

    similarity: [T, T'], T and T' >= 1, see `relative_similarity`; threshold, in [-1, 1): what a
    frame pair must exceed to be a node of the network. A part has MIN_FRAMES in both videos, or as
    many as the shorter one has. An edge leads to a later frame of both videos, at most MAX_STEP
    away, and a path weighs as much as its nodes' similarities. Each frame may be found in several
    places, but no two parts share a frame pair. What is far less similar than the first part is
    left out.

    Unlike Tan et al., who link a frame only to its most similar ones, this takes all pairs above
    the threshold as nodes."""
    matrix = np.asarray(similarity, np.float64)
    wanted = min(MIN_FRAMES, *matrix.shape)
    weight = np.where(matrix > threshold, np.maximum(matrix, 1e-6), -np.inf)
    alignments: list[Alignment] = []
    taken = np.zeros(matrix.shape, bool)
    for _ in range(MAX_PATHS):
        rows, columns = _heaviest_path(weight)
        if not rows or len(alignments) == MAX_SEGMENTS:
            break
        # without the weak stretches by which a path runs on into frames that only look alike;
        # strong stretches behind them stay
        best = float(np.sort(matrix[rows, columns])[-BEST_FRAMES:].mean())
        gains = np.append(
            0, np.cumsum(matrix[rows, columns] - (LEAST_SHARE * best if best > 1e-6 else -2))
        )
        end = int(np.argmax(gains - np.minimum.accumulate(gains)))
        kept = slice(int(np.argmin(gains[: end + 1])), end)
        used = np.diff(gains) <= 0
        used[kept] = True
        weight[np.array(rows)[used], np.array(columns)[used]] = -np.inf
        rows = rows[kept]
        columns = columns[kept]
        box = taken[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        if min(box.shape) >= wanted and not box.any():
            box[:] = True
            score = float(matrix[rows, columns].mean())
            path = tuple(zip(rows, columns, strict=True))
            alignments.append(
                Alignment((rows[0], rows[-1]), (columns[0], columns[-1]), score, path=path)
            )

    if not alignments:
        return []
    first = alignments[0].score
    least = min(LEAST_SHARE * first, first)
    return [alignment for alignment in alignments if alignment.score >= least]


def clearest(parts: Sequence[Part]) -> list[Part]:
    """Parts of one pair of videos, the longest and surest first, without those that are far less
    alike than the first. If the place of the first is not certain, it is returned alone, as the
    others may be the same footage at another second."""
    if not parts:
        return []
    first = parts[0]
    if not first.certain:
        return [first]
    least = min(CLEAR_SHARE * first.score, first.score)
    return [part for part in parts if part.certain and part.score >= least]


def _heaviest_path(weight: NDArray[np.float64]) -> tuple[list[int], list[int]]:
    """Rows and columns of the path with the largest sum of weights; empty if there is no node."""
    height, width = weight.shape
    # MAX_STEP empty rows and columns before the first
    totals = np.full((height + MAX_STEP, width + MAX_STEP), -np.inf)
    for row in range(height):
        before = totals[row : row + MAX_STEP].max(axis=0)
        best = np.max([before[step : step + width] for step in range(MAX_STEP)], axis=0)
        totals[row + MAX_STEP, MAX_STEP:] = weight[row] + np.maximum(best, 0)

    row, column = divmod(int(totals.argmax()), totals.shape[1])
    rows: list[int] = []
    columns: list[int] = []
    while totals[row, column] > 0:
        rows.append(row - MAX_STEP)
        columns.append(column - MAX_STEP)
        window = totals[row - MAX_STEP : row, column - MAX_STEP : column]
        if not window.size or window.max() <= 0:
            break
        up, left = divmod(int(window.argmax()), MAX_STEP)
        row += up - MAX_STEP
        column += left - MAX_STEP

    return rows[::-1], columns[::-1]


def clock(seconds: float) -> str:
    """Whole seconds, rounded down, as 0:03 or 1:02:03."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
