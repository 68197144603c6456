"""Matching segments by a temporal network (Tan et al., "Scalable detection of partial near-duplicate videos by
visual-temporal consistency", ACM MM 2009), to compare `hapvr.scorer.segments.align` with."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hapvr.scorer.segments import MAX_SEGMENTS, MIN_FRAMES, Alignment, checked_matrix

NEIGHBOURS = 5
"""Frames of the reference that a frame of the query is linked to: the network's nodes."""
MAX_STEP = 5
"""Frames that a path may skip at once, in each video."""
MAX_OVERLAP = 0.3
"""Area that a path may share with one found before, over the area of both; as in VCSL (He et al., CVPR 2022)."""
MAX_PATHS = 32
"""Paths that are looked at, found or not."""


def temporal_network(
    similarity: ArrayLike, *, threshold: float, min_frames: int = MIN_FRAMES, max_segments: int = MAX_SEGMENTS
) -> list[Alignment]:
    """Parts of two videos that match, the heaviest path first; arguments, results and errors are those of `align`.

    Nodes are the NEIGHBOURS most similar reference frames of each query frame that exceed the threshold, and more where
    several are equally similar, as in still pictures. An edge leads to a later frame of both videos, at most MAX_STEP away.
    A path weighs as much as its nodes' similarities.
    """
    matrix = checked_matrix(similarity, threshold)
    wanted = min(min_frames, *matrix.shape)
    place = max(matrix.shape[1] - NEIGHBOURS, 0)
    nearest = np.partition(matrix, place, axis=1)[:, place : place + 1]
    nodes = (matrix >= nearest) & (matrix > threshold)
    weight = np.where(nodes, np.maximum(matrix, 1e-6), -np.inf)
    found: list[Alignment] = []
    for _ in range(MAX_PATHS):
        rows, columns = _heaviest_path(weight)
        if not rows or len(found) == max_segments:
            break
        part = Alignment((rows[0], rows[-1]), (columns[0], columns[-1]), float(matrix[rows, columns].mean()))
        weight[rows, columns] = -np.inf
        long_enough = min(rows[-1] - rows[0], columns[-1] - columns[0]) + 1 >= wanted
        if long_enough and all(_overlap(part, other) <= MAX_OVERLAP for other in found):
            found.append(part)
    return found


def _heaviest_path(weight: NDArray[np.float64]) -> tuple[list[int], list[int]]:
    """Rows and columns of the path with the largest sum of weights; empty if there is no node."""
    height, width = weight.shape
    totals = np.full((height + MAX_STEP, width + MAX_STEP), -np.inf)  # MAX_STEP empty rows and columns before the first
    for row in range(height):
        before = totals[row : row + MAX_STEP].max(axis=0)
        best = np.max([before[step : step + width] for step in range(MAX_STEP)], axis=0)
        totals[row + MAX_STEP, MAX_STEP:] = weight[row] + np.maximum(best, 0)
    row, column = (int(place) for place in np.unravel_index(int(totals.argmax()), totals.shape))
    rows: list[int] = []
    columns: list[int] = []
    while totals[row, column] > 0:
        rows.append(row - MAX_STEP)
        columns.append(column - MAX_STEP)
        window = totals[row - MAX_STEP : row, column - MAX_STEP : column]
        if not window.size or window.max() <= 0:
            break
        up, left = np.unravel_index(int(window.argmax()), window.shape)
        row, column = row - MAX_STEP + int(up), column - MAX_STEP + int(left)
    return rows[::-1], columns[::-1]


def _overlap(part: Alignment, other: Alignment) -> float:
    """Common area over the area of both, in frames."""
    common = area = other_area = 1
    for (first, last), (other_first, other_last) in ((part.query, other.query), (part.reference, other.reference)):
        common *= max(min(last, other_last) - max(first, other_first) + 1, 0)
        area *= last - first + 1
        other_area *= other_last - other_first + 1
    return common / (area + other_area - common)
