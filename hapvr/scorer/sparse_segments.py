"""Compares a video with one of which only some frames were decoded, seconds apart;
`hapvr.scorer.segments` does the same for frames that are equally far apart."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hapvr.scorer.segments import (
    MAX_STEP,
    Alignment,
    FrameTimes,
    Segment,
    align,
    best_run,
)
from hapvr.scorer.steady_parts import settled

UNLIKE = -1.0
"""The similarity in places that are no pair of frames."""


def best_timed_run(
    similarity: ArrayLike, query: FrameTimes, reference: FrameTimes, *, fps: float
) -> float:
    """As `best_run`, where the frames of one video are further apart than those of the other: two
    pairs of frames follow each other if they are equally far apart in both videos, give or take a
    sampling time.

    similarity: [T, T'] of frames of these times; fps: of the sampling
    """
    matrix = np.asarray(similarity, np.float64)
    query_steps = query.steps(fps)
    reference_steps = reference.steps(fps)
    if query_steps == reference_steps:
        return best_run(matrix)
    if query_steps < reference_steps:
        return _best_sparse_run(matrix, query.times_s, reference.times_s)
    return _best_sparse_run(matrix.T, reference.times_s, query.times_s)


def _best_sparse_run(
    matrix: NDArray[np.float64], dense_s: Sequence[float], sparse_s: Sequence[float]
) -> float:
    """matrix: [dense, sparse]. Where the dense video is shorter than the gaps of the sparse one,
    two of its frames in a row that are like one frame must suffice."""
    step_s = float(np.median(np.diff(dense_s))) if len(dense_s) > 1 else 1.0
    runs = []
    for place, gap_s in enumerate(np.diff(sparse_s)):
        shift = max(1, round(float(gap_s) / step_s))
        first = matrix[:-shift, place]
        if len(first):
            runs.append(np.minimum(first, _near(matrix[:, place + 1])[shift:]).max())

    if runs:
        return float(max(runs))
    return float(np.minimum(matrix[:-1], matrix[1:]).max()) if len(matrix) > 1 else best_run(matrix)


def _near(column: NDArray[np.float64]) -> NDArray[np.float64]:
    """The greatest of each value and its neighbours."""
    padded = np.pad(column, 1, constant_values=-np.inf)
    return np.maximum(np.maximum(padded[:-2], padded[2:]), column)


def align_timed(
    similarity: ArrayLike,
    query: FrameTimes,
    reference: FrameTimes,
    *,
    threshold: float,
    fps: float,
) -> list[Alignment]:
    """The settled alignments of `align`, but no part continues across a pause of either video.
    Frames of the denser video are grouped as far apart as those of the sparser one, and the most
    similar frame stands for its group."""
    matrix = np.asarray(similarity, np.float64)
    query_steps = query.steps(fps)
    reference_steps = reference.steps(fps)
    if query_steps == reference_steps:
        rows = _with_room(len(query.times_s), query.pauses())
        columns = _with_room(len(reference.times_s), reference.pauses())
        return _aligned_between_pauses(matrix, rows, columns, threshold)

    if query_steps < reference_steps:
        return _aligned_groups(matrix, reference_steps // query_steps, threshold)
    swapped = _aligned_groups(matrix.T, query_steps // reference_steps, threshold)
    return [replace(part, query=part.reference, reference=part.query) for part in swapped]


def _with_room(num_frames: int, pauses: Sequence[int]) -> NDArray[np.intp]:
    """The numbers of all frames, with enough times -1 before each pause that no path leads across.

    pauses: frames before which there is one
    """
    places = np.repeat(np.asarray(pauses, np.intp), MAX_STEP)
    return np.insert(np.arange(num_frames), places, -1)


def _aligned_between_pauses(
    matrix: NDArray[np.float64],
    rows: NDArray[np.intp],
    columns: NDArray[np.intp],
    threshold: float,
) -> list[Alignment]:
    """Alignments of the matrix.

    rows, columns: of the matrix, see `_with_room`
    """
    apart = matrix[np.ix_(rows, columns)]
    apart[rows < 0] = UNLIKE
    apart[:, columns < 0] = UNLIKE
    return [
        replace(
            part,
            query=(int(rows[part.query[0]]), int(rows[part.query[1]])),
            reference=(int(columns[part.reference[0]]), int(columns[part.reference[1]])),
        )
        for part in settled(align(apart, threshold=threshold), apart)
    ]


def _aligned_groups(matrix: NDArray[np.float64], group: int, threshold: float) -> list[Alignment]:
    """Alignments of rows that are in groups with columns that are not."""
    num_groups = -(-len(matrix) // group)
    missing = num_groups * group - len(matrix)
    padded = np.pad(matrix, ((0, missing), (0, 0)), constant_values=UNLIKE)
    groups = padded.reshape(num_groups, group, matrix.shape[1])
    best = groups.max(axis=1)
    rows = groups.argmax(axis=1) + group * np.arange(num_groups)[:, None]
    parts = []
    for part in settled(align(best, threshold=threshold), best):
        first = int(rows[part.query[0], part.reference[0]])
        last = int(rows[part.query[1], part.reference[1]])
        parts.append(replace(part, query=(first, max(first, last))))

    return parts


def widened(segment: Segment, query: FrameTimes, reference: FrameTimes, *, fps: float) -> Segment:
    """A segment extended before and after frames that are far apart: by half of the time between
    them, as far as both videos last."""
    steps = max(query.steps(fps), reference.steps(fps))
    if steps == 1:
        return segment
    most_s = (steps - 1) / 2 / fps
    before_s = min(most_s, segment.query_start_s - query.times_s[0], segment.reference_start_s)
    query_end_s = _last_s(query, fps)
    reference_end_s = _last_s(reference, fps)
    after_s = min(
        most_s, query_end_s - segment.query_end_s, reference_end_s - segment.reference_end_s
    )
    before_s = max(before_s, 0.0)
    after_s = max(after_s, 0.0)
    return replace(
        segment,
        query_start_s=segment.query_start_s - before_s,
        query_end_s=segment.query_end_s + after_s,
        reference_start_s=segment.reference_start_s - before_s,
        reference_end_s=segment.reference_end_s + after_s,
    )


def _last_s(clock: FrameTimes, fps: float) -> float:
    """When a video ends, as far as that is known."""
    _, end_s = clock.span_s(0, -1, fps)
    return max(end_s, clock.duration_s or 0.0) if clock.steps(fps) > 1 else end_s
