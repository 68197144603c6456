"""The descriptors of one shard, compared exactly: the same two searches as `hapvr.search.index.FrameIndex`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hapvr.search.index import FOUND_FRAMES, best_of_videos
from hapvr.search.vectors import VECTOR

Floats = npt.NDArray[np.float32]


class ShardIndex:
    """For few videos: no list is probed, and no video of another shard takes a place among the nearest."""

    def __init__(self, frames: pa.Table, videos: pa.Table, regions: pa.Table) -> None:
        """Tables as `hapvr.search.shards.searchable` gives them."""
        self._frames, self._videos = frames, pa.concat_tables([videos, regions])["video_id"]
        self._frame_vectors = _unit(frames)
        self._video_vectors = np.concatenate([_unit(videos), _unit(regions)])

    def search_frames(self, queries: npt.NDArray[np.floating], k: int) -> pa.Table:
        """As `FrameIndex.search_frames`."""
        similarities = np.asarray(queries, np.float32) @ self._frame_vectors.T
        nearest = _nearest(similarities, k)
        numbers = np.repeat(np.arange(len(nearest), dtype=np.int32), nearest.shape[1])
        places = nearest.reshape(-1)
        found = self._frames.take(pa.array(places))
        rows = [numbers, found["video_id"], found["second"], similarities[numbers, places]]
        return pa.table(rows, schema=FOUND_FRAMES)

    def search_videos(self, query: npt.NDArray[np.floating], k: int) -> pa.Table:
        """As `FrameIndex.search_videos`."""
        return best_of_videos(self._videos, self._video_vectors @ np.asarray(query, np.float32), k)


def _nearest(similarities: Floats, k: int) -> npt.NDArray[np.int64]:
    """Places [Q, k] of the nearest rows of each query, nearest first."""
    return np.argsort(-similarities, axis=1, kind="stable")[:, :k]


def _unit(table: pa.Table) -> Floats:
    """[N, dims], each row of length 1."""
    column = table[VECTOR].combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    values = np.asarray(column.flatten().to_numpy(zero_copy_only=False), np.float32)
    vectors = values.reshape(len(table), table.schema.field(VECTOR).type.list_size)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(min=1e-12), np.float32)
