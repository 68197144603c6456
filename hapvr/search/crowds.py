"""Collections that hold many videos like a query: copies of it, or other footage of the same place.

What unrelated videos reach is told by the sixth to the twentieth best of a search. Where there are
more copies than that, these would count as unrelated, and no copy would be found.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hapvr.scorer.evidence import LEVEL_PLACES, level_of

MOST_HITS = 1000
"""Nearest frames that a frame of the query gets at most."""
ALIKE = 0.75
"""Similarity of frames that show the same; unrelated ones do not reach it."""
CROWDED = 0.4
"""Level from which on many videos are like a query; unrelated ones reach 0.1 to 0.3."""


def all_alike(hits: pa.Table, num_frames: int, num_hits: int) -> bool:
    """Whether, for half of the looked-up frames or more, the last of so many hits is still ALIKE.
    hits: as an index gives them, for `num_frames` frames."""
    frames = hits["query_frame"].to_numpy()
    is_alike = hits["similarity"].to_numpy() >= ALIKE
    num_alike = np.bincount(frames[is_alike], minlength=num_frames)
    return bool(np.mean(num_alike >= num_hits) >= 0.5)


def known_copies(
    runs: Sequence[float], *, num_videos: int, shows_same: Callable[[int], bool]
) -> npt.NDArray[np.bool_]:
    """[N], which candidates of a view are copies of the query, so that what unrelated videos reach
    can be told where a collection has more copies than come before the level's places.

    Asked of the most similar ones, only in searches whose level says that many videos are like the
    query, until as many others are known as the level is made of.

    runs: [N], of the candidates.
    num_videos: in the collection.
    shows_same: whether the candidate at a place shows the same footage.
    """
    is_copy = np.zeros(len(runs), bool)
    if not runs or level_of(np.array(runs), num_videos=num_videos) < CROWDED:
        return is_copy
    num_others = 0
    for place in np.argsort(-np.array(runs), kind="stable").tolist():
        if num_others == LEVEL_PLACES.stop or runs[place] < CROWDED:
            break
        is_copy[place] = shows_same(place)
        num_others += not is_copy[place]

    return is_copy
