"""Descriptors: one vector per sampled frame, from the regions that a similarity network weighs;
their shards, with a row per sampled frame, the rows of a video contiguous and in time order.

The dot product of two means of regions is the network's own frame similarity at `spatial_rate: 1`,
where TopK-Chamfer averages over all pairs of regions. So a shortlist by descriptors is the same
model at its coarsest, without training.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hapvr.data.filesystem import DataRoot
from hapvr.data.shards import Shard, frame_fields
from hapvr.data.tensors import decode_tensors, tensor_field
from hapvr.scorer.blank import is_blank, mean_directions
from hapvr.search.current import model_place
from hapvr.search.frame_index import HASH, VECTOR

INDEX_COLUMNS = (pa.field("num_kept", pa.int64(), nullable=False),)
"""num_kept: frames of a video that can be found."""
VIDEO_VECTOR = pa.field("video_vector", pa.binary(), nullable=False)
"""In the index of a shard, of models that have a vector of a whole video: its values in half
precision, none where a video shows nothing that could be found."""

MAX_FROZEN_SIMILARITY = 0.999
"""Cosine with the last frame that can be found; a frame above it stands still and is not indexed.
"""


@dataclass(frozen=True)
class FrameDescriptors:
    """The descriptors of a video's frames, and which of them can be found."""

    vectors: npt.NDArray[np.float32]
    """[T, D] of unit length, zero where a frame gives none"""
    reasons: npt.NDArray[np.str_]
    """[T], why a frame cannot be found: `blank`, it shows one colour; `frozen`, it shows what the
    last frame showed; "" for those that can"""

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        """[T], the frames that can be found."""
        return np.asarray(self.reasons == "")


def frame_descriptors(
    regions: npt.NDArray[np.floating], *, blank: npt.NDArray[np.float32] | None = None
) -> FrameDescriptors:
    """The descriptors of a video's frames in time order.

    regions: [T, R, D], an embedding as `TorchNetworks.vectors` gives it
    blank: [B, D] of pictures of one colour, see `hapvr.scorer.blank`; None: such frames are not
        told from others
    """
    vectors = mean_directions(regions)
    reasons = np.full(len(vectors), "", dtype="<U6")
    reasons[~vectors.any(axis=1)] = "blank"
    if blank is not None and len(blank):
        reasons[is_blank(vectors, blank)] = "blank"
    last = None
    for place in np.flatnonzero(reasons == ""):
        if last is not None and float(vectors[last] @ vectors[place]) > MAX_FROZEN_SIMILARITY:
            reasons[place] = "frozen"
        else:
            last = place

    return FrameDescriptors(vectors, reasons)


def video_vector(embedding: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """The vector [D] of a whole video, of unit length or 0.

    embedding: [T, 1, D], of a model that embeds videos, see `hapvr.model.family`
    """
    frames = np.asarray(embedding[:, 0], np.float32)
    return np.asarray(mean_directions(frames))


def descriptor_shard(root: DataRoot, digest: str, key: str) -> Shard:
    """The shard of descriptors by the network of this digest."""
    return Shard(root, f"{model_place(digest)}/descriptors", key)


def fields(dims: int) -> tuple[pa.Field, ...]:
    """The columns for vectors of `dims` values."""
    vector = tensor_field(VECTOR, shape=(dims,))
    reason = pa.field("reason", pa.string(), nullable=False)
    return frame_fields(reason, HASH, vector)


def searchable(shard: Shard) -> pa.Table:
    """What an index takes of a finished shard.

    Raises: DataError for an unfinished one, DamagedError for changed rows.
    """
    shard.verify()
    with shard.corruption_errors():
        table = shard.open_data().read()
    vectors = np.asarray(decode_tensors(table[VECTOR], table.schema.field(VECTOR)), np.float16)
    kept = np.asarray(table["reason"].to_numpy() == "")
    return index_rows(table.drop_columns([VECTOR]), vectors, kept)


def searchable_videos(shard: Shard, dims: int) -> pa.Table:
    """What an index of videos takes of a finished shard: a row for each video that has a vector of
    `dims` values, which stands for all of its frames.

    Raises: DataError for an unfinished one, DamagedError for vectors of another length.
    """
    rows = [row for row in shard.rows() if row[VIDEO_VECTOR.name]]
    with shard.corruption_errors():
        values = b"".join(row[VIDEO_VECTOR.name] for row in rows)
        vectors = np.frombuffer(values, np.float16).reshape(len(rows), dims)

    return pa.table(
        {
            "video_id": pa.array([row["video_id"] for row in rows], pa.string()),
            "second": np.zeros(len(rows), np.float32),
            "hash": np.zeros(len(rows), np.uint64),
            VECTOR: pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), dims),
        }
    )


def index_rows(
    frames: pa.Table, vectors: npt.NDArray[np.floating], kept: npt.NDArray[np.bool_]
) -> pa.Table:
    """What an index takes of some frames.

    frames: columns video_id, timestamp_s and hash, those of a video contiguous
    vectors: [N, D]
    kept: [N], those that can be found
    """
    rows = frames.filter(pa.array(kept))
    values = vectors[kept].astype(np.float16).reshape(-1)
    return pa.table(
        {
            "video_id": rows["video_id"],
            "second": rows["timestamp_s"].cast(pa.float32()),
            "hash": rows["hash"],
            VECTOR: pa.FixedSizeListArray.from_arrays(pa.array(values), vectors.shape[1]),
        }
    )
