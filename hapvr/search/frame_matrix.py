"""How similar the frames of two videos are, as pages show it."""

from typing import Any

import numpy as np

from hapvr.scorer.access import Deadline
from hapvr.scorer.scorer import VideoScorer
from hapvr.scorer.videos import SampledFeatures
from hapvr.search.match import thin


def frame_matrix(
    scorer: VideoScorer,
    query: SampledFeatures,
    reference: SampledFeatures,
    *,
    max_cells: int,
    deadline: Deadline,
) -> dict[str, Any]:
    """How similar the frames of two videos are, by the view of the query that is closest.

    max_cells: of the matrix; of longer videos it has frames that are evenly apart

    Returns:
        values: [T, T'] in [-1, 1], 1 for the same picture
        query_times_s, reference_times_s: of the T and T' frames
        threshold: from which on two frames count as the same in segments
        segments: of the whole
    """
    num_rows, num_columns = _size(len(query.regions), len(reference.regions), max_cells)
    shown = thin(query, num_rows)
    embedded = scorer.embed(thin(reference, num_columns), deadline)
    by_view = [
        (view, scorer.relative_similarity(view, embedded, deadline)) for view in scorer.views(shown)
    ]
    view, values = max(by_view, key=lambda of_view: np.mean(of_view[1].max(axis=1)))
    return {
        "query_times_s": shown.clock.times_s,
        "reference_times_s": embedded.clock.times_s,
        "values": values,
        "threshold": scorer.frame_threshold,
        "segments": scorer.segments_in(values, view, embedded),
    }


def _size(num_rows: int, num_columns: int, max_cells: int) -> tuple[int, int]:
    """Rows and columns of a matrix with at most so many cells, of about the same shape."""
    if num_rows * num_columns <= max_cells:
        return num_rows, num_columns
    shrink = (max_cells / (num_rows * num_columns)) ** 0.5
    fewer_rows = max(int(num_rows * shrink), max_cells // num_columns, 1)
    rows = min(num_rows, fewer_rows)
    columns = max(min(num_columns, max_cells // rows), 1)
    return rows, columns
