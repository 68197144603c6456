"""Descriptor shards: a row per sampled frame with its vector, the rows of a video contiguous and in time order; in the
shard's index a row per video with the vectors of its regions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from hapvr.errors import DamagedError
from hapvr.search.current import model_place
from hapvr.search.descriptors import FrameDescriptors, video_descriptor
from hapvr.search.index import ShardRows
from hapvr.search.vectors import VECTOR
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.rows import places_of_videos
from hapvr.storage.shards import Columns, Shard
from hapvr.storage.tensors import decode_tensors, tensor_field

ROW_GROUP_ROWS = 4096
INDEX_COLUMNS = (pa.field("num_kept", pa.int64(), nullable=False), pa.field("regions", pa.binary(), nullable=False))
"""num_kept: frames of a video that can be found. regions: [r, D] float16, row by row, of `region_descriptors`."""


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


def region_bytes(vectors: np.ndarray) -> bytes:
    """Vectors [r, D] as the shard's index holds them."""
    return np.ascontiguousarray(vectors, np.float16).tobytes()


def searchable(shard: Shard) -> ShardRows:
    """What an index takes of a finished shard.

    Raises DataError where the shard is unfinished, DamagedError where its rows are not what was written.
    """
    with shard.naming_damage():
        if shard.root.sha256(shard.data_name) != shard.data_digest():
            raise DamagedError(f"storage: {shard.data_name} is not what was written; {shard.remedy}")
        table = shard.open_data().read()
    vectors = decode_tensors(table[VECTOR], table.schema.field(VECTOR))
    kept = np.asarray(table["reason"].to_numpy() == "")
    dims = vectors.shape[1]
    stored = _stored_regions(shard, dims)
    means, names, of_regions, of_videos = [], [], [], []
    for video_id, (start, count) in places_of_videos(shard).items():
        rows = vectors[start : start + count][kept[start : start + count]]
        if len(rows):
            names.append(video_id)
            means.append(video_descriptor(rows))
            of_regions.append(stored[video_id])
            of_videos += [video_id] * len(stored[video_id])
    frames = {
        "video_id": table["video_id"].filter(pa.array(kept)),
        "second": table["timestamp_s"].filter(pa.array(kept)).cast(pa.float32()),
        VECTOR: _lists(vectors[kept]),
    }
    none = np.zeros((0, dims))
    return ShardRows(
        pa.table(frames),
        _named(names, np.stack(means) if means else none),
        _named(of_videos, np.concatenate([none, *of_regions])),
    )


def _stored_regions(shard: Shard, dims: int) -> dict[str, np.ndarray]:
    """[r, D] of each video; r is 0 in shards of an earlier version of this package."""
    found = {}
    for row in shard.rows():
        video_id, vectors = row["video_id"], _directions(row.get("regions", b""), dims)
        if vectors is None:
            raise DamagedError(
                f"storage: {shard.index_name}: regions of {video_id} are no directions of {dims} values; "
                "`hapvr index build` makes these descriptors again"
            )
        found[video_id] = vectors
    return found


def _directions(stored: object, dims: int) -> np.ndarray | None:
    """[r, dims] that `region_bytes` wrote; None for anything else."""
    if not isinstance(stored, bytes) or len(stored) % (2 * dims):
        return None
    vectors = np.frombuffer(stored, np.float16).reshape(-1, dims)
    return vectors if np.isfinite(vectors).all() and vectors.any(axis=1).all() else None


def _named(video_ids: Sequence[str], vectors: np.ndarray) -> pa.Table:
    return pa.table({"video_id": pa.array(video_ids, pa.string()), VECTOR: _lists(vectors)})


def _lists(vectors: np.ndarray) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.astype(np.float16).reshape(-1)), vectors.shape[1])
