"""Matching segments by temporal Hough voting (Douze et al., "An image-based approach to video copy detection with
spatio-temporal post-filtering", IEEE TMM 2010), to compare `hapvr.scorer.segments.align` with."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hapvr.scorer.segments import MAX_SEGMENTS, MIN_FRAMES, Alignment, checked_matrix

TOLERANCE = 1
"""Frames by which the offsets of one part may differ."""
MAX_GAP = 5
"""Frames without a vote within a part, as many as a temporal network may skip."""


def hough_voting(
    similarity: ArrayLike, *, threshold: float, min_frames: int = MIN_FRAMES, max_segments: int = MAX_SEGMENTS
) -> list[Alignment]:
    """Parts of two videos that match, those of the strongest offset first; arguments and errors are those of `align`.

    Frame pairs above the threshold vote for the offset between their times by how far they exceed it. A part reaches from the
    first to the last vote for an offset. Other speeds spread their votes over many offsets.
    """
    matrix = checked_matrix(similarity, threshold)
    wanted = min(min_frames, *matrix.shape)
    height, width = matrix.shape
    excess = np.maximum(matrix - threshold, 0)
    offsets = np.arange(width)[None, :] - np.arange(height)[:, None] + height - 1
    found: list[Alignment] = []
    while len(found) < max_segments:
        votes = np.bincount(offsets.ravel(), weights=excess.ravel(), minlength=height + width - 1)
        near = np.convolve(np.pad(votes, TOLERANCE), np.ones(2 * TOLERANCE + 1), mode="valid")
        if votes.max() <= 0:
            break
        near[votes <= 0] = 0  # the offset itself must have a vote, or the same empty one would be taken again and again
        band = (np.abs(offsets - int(near.argmax())) <= TOLERANCE) & (excess > 0)
        for rows, columns in _parts(*np.nonzero(band)):
            first, last = (int(rows.min()), int(columns.min())), (int(rows.max()), int(columns.max()))
            if min(last[0] - first[0], last[1] - first[1]) + 1 >= wanted and len(found) < max_segments:
                score = float(matrix[rows, columns].mean())
                found.append(Alignment((first[0], last[0]), (first[1], last[1]), score))
                excess[first[0] : last[0] + 1, first[1] : last[1] + 1] = 0
        excess[band] = 0
    return found


def _parts(rows: NDArray[np.intp], columns: NDArray[np.intp]) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Votes in the order of rows, split where more than MAX_GAP rows have none."""
    breaks = np.flatnonzero(np.diff(rows) > MAX_GAP) + 1
    return list(zip(np.split(rows, breaks), np.split(columns, breaks), strict=True))
