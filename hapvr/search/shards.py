"""Descriptor shards: a row per sampled frame with its vector, the rows of a video contiguous and in time order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from hapvr.errors import DamagedError
from hapvr.search.current import model_place
from hapvr.search.descriptors import FrameDescriptors, video_descriptor
from hapvr.search.vectors import VECTOR
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.rows import places_of_videos
from hapvr.storage.shards import Columns, Shard
from hapvr.storage.tensors import decode_tensors, tensor_field

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


def searchable(shard: Shard) -> tuple[pa.Table, pa.Table]:
    """What an index takes of a finished shard: (video_id, second, vector) of the frames that can be found, and (video_id,
    vector) of the videos that have such frames.

    Raises DataError where the shard is unfinished, DamagedError where its rows are not what was written.
    """
    with shard.naming_damage():
        if shard.root.sha256(shard.data_name) != shard.data_digest():
            raise DamagedError(f"storage: {shard.data_name} is not what was written; {shard.remedy}")
        table = shard.open_data().read()
    vectors = decode_tensors(table[VECTOR], table.schema.field(VECTOR))
    kept = np.asarray(table["reason"].to_numpy() == "")
    means, names = [], []
    for video_id, (start, count) in places_of_videos(shard).items():
        rows = vectors[start : start + count][kept[start : start + count]]
        if len(rows):
            names.append(video_id)
            means.append(video_descriptor(rows))
    frames = {
        "video_id": table["video_id"].filter(pa.array(kept)),
        "second": table["timestamp_s"].filter(pa.array(kept)).cast(pa.float32()),
        VECTOR: _lists(vectors[kept]),
    }
    of_videos = np.stack(means) if means else np.zeros((0, vectors.shape[1]))
    return pa.table(frames), pa.table({"video_id": pa.array(names, pa.string()), VECTOR: _lists(of_videos)})


def _lists(vectors: np.ndarray) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.astype(np.float16).reshape(-1)), vectors.shape[1])
