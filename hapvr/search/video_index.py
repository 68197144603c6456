"""The index of one vector per video, which models that embed videos have beside that of frames.

<folder of the index>/videos/    like an index of frames, with a row per video
"""

import numpy as np
import numpy.typing as npt

from hapvr.data.filesystem import DataRoot
from hapvr.search.descriptors import video_vector
from hapvr.search.frame_index import STATE_FILE, FrameIndex, FrameSearch, read_state
from hapvr.search.indexes import open_index
from hapvr.settings import IndexSettings


def videos_place(place: str) -> str:
    """The folder of the index of videos, below the data root.

    place: that of the index of frames
    """
    return f"{place}/videos"


def has_videos(root: DataRoot, place: str) -> bool:
    """Whether an index of frames has one of videos beside it."""
    return root.exists(f"{videos_place(place)}/{STATE_FILE}")


def open_videos(root: DataRoot, place: str, settings: IndexSettings) -> FrameIndex | None:
    """The index of videos beside one of frames, None where there is none. Raises as `open_index`
    does."""
    if not has_videos(root, place):
        return None
    return open_index(root.url_of(videos_place(place)), settings)


def video_shards(root: DataRoot, place: str) -> dict[str, str]:
    """Shard -> digest of what the index of videos holds of it; none without one. Raises
    DamagedError."""
    if not has_videos(root, place):
        return {}
    return read_state(DataRoot(root.url_of(videos_place(place)))).shards


def nearest_videos(index: FrameSearch, embedded: npt.NDArray[np.floating], count: int) -> list[str]:
    """Ids of the videos whose vectors are nearest to that of a query, nearest first; none where it
    has no vector.

    embedded: [T, 1, D], the query
    """
    vector = video_vector(embedded)
    if not vector.any():
        return []
    hits = index.search_frames(vector[None], count)
    return [str(name) for name in hits["video_id"].to_pylist()]
