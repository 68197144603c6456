"""Descriptor shards: a row per sampled frame with its vector, the rows of a video contiguous and in time order; and the
search of one of them, compared exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hapvr.data.filesystem import DataRoot
from hapvr.data.shards import Shard, places_of_videos
from hapvr.data.tensors import Columns, decode_tensors, tensor_field
from hapvr.errors import DamagedError
from hapvr.search.current import model_place
from hapvr.search.descriptors import FrameDescriptors, video_descriptor
from hapvr.search.index import FOUND_FRAMES, FOUND_VIDEOS, ShardRows, vectors_of
from hapvr.search.vectors import VECTOR

ROW_GROUP_ROWS = 4096
INDEX_COLUMNS = (pa.field("num_kept", pa.int64(), nullable=False),)
"""num_kept: frames of a video that can be found."""


def descriptor_shard(root: DataRoot, digest: str, key: str) -> Shard:
    """The shard of descriptors by the network of this digest."""
    return Shard(root, f"{model_place(digest)}/descriptors", key)


def fields(dims: int) -> tuple[pa.Field, ...]:
    """The columns for vectors of `dims` values."""
    return (
        pa.field("video_id", pa.string(), nullable=False),
        pa.field("frame_index", pa.int32(), nullable=False),
        pa.field("timestamp_s", pa.float64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        tensor_field(VECTOR, shape=(dims,), dtype="float16"),
    )


def descriptor_columns(video_id: str, found: FrameDescriptors, timestamps_s: Sequence[float]) -> Columns:
    """The rows of one video, column by column in the order of `fields`. timestamps_s: T seconds."""
    count = len(found.vectors)
    return [video_id] * count, range(count), timestamps_s, found.reasons.tolist(), found.vectors


def searchable(shard: Shard) -> ShardRows:
    """What an index takes of a finished shard.

    Raises DataError where the shard is unfinished, DamagedError where its rows are not what was written.
    """
    with shard.corruption_errors():
        if shard.root.sha256(shard.data_name) != shard.data_digest():
            raise DamagedError(f"storage: {shard.data_name} is not what was written; {shard.hint}")
        table = shard.open_data().read()
    vectors = decode_tensors(table[VECTOR], table.schema.field(VECTOR))
    kept = np.asarray(table["reason"].to_numpy() == "")
    found = {
        video_id: vectors[start : start + count][kept[start : start + count]]
        for video_id, (start, count) in places_of_videos(shard).items()
    }
    means = {video_id: video_descriptor(rows) for video_id, rows in found.items() if len(rows)}
    frames = {
        "video_id": table["video_id"].filter(pa.array(kept)),
        "second": table["timestamp_s"].filter(pa.array(kept)).cast(pa.float32()),
        VECTOR: _lists(vectors[kept]),
    }
    stacked = np.stack(list(means.values())) if means else np.zeros((0, vectors.shape[1]))
    videos = {"video_id": pa.array(means, pa.string()), VECTOR: _lists(stacked)}
    return ShardRows(pa.table(frames), pa.table(videos))


def _lists(vectors: npt.NDArray[np.floating]) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.astype(np.float16).reshape(-1)), vectors.shape[1])


class ShardIndex:
    """The descriptors of one shard, compared exactly: the same two searches as `FrameIndex`, in which no video of another
    shard takes a place among the nearest."""

    def __init__(self, rows: ShardRows) -> None:
        self._rows = rows
        self._frame_vectors, self._video_vectors = _unit(rows.frames), _unit(rows.videos)

    def search_frames(self, queries: npt.NDArray[np.floating], k: int) -> pa.Table:
        """As `FrameIndex.search_frames`."""
        similarities = np.asarray(queries, np.float32) @ self._frame_vectors.T
        nearest = np.argsort(-similarities, axis=1, kind="stable")[:, :k]
        numbers = np.repeat(np.arange(len(nearest), dtype=np.int32), nearest.shape[1])
        places = nearest.reshape(-1)
        found = self._rows.frames.take(pa.array(places))
        rows = [numbers, found["video_id"], found["second"], similarities[numbers, places]]
        return pa.table(rows, schema=FOUND_FRAMES)

    def search_videos(self, query: npt.NDArray[np.floating], k: int) -> pa.Table:
        """As `FrameIndex.search_videos`."""
        similarities = self._video_vectors @ np.asarray(query, np.float32)
        nearest = np.argsort(-similarities, kind="stable")[:k]
        found = self._rows.videos["video_id"].take(pa.array(nearest))
        return pa.table([found, similarities[nearest]], schema=FOUND_VIDEOS)


def _unit(table: pa.Table) -> npt.NDArray[np.float32]:
    """[N, dims], each row of length 1."""
    vectors = vectors_of(table).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(min=1e-12), np.float32)
