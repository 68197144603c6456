"""Pooled vectors and magnitudes of frames, in columns behind the regions of a feature or view shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from hapvr.errors import DataError
from hapvr.storage.rows import VideoTensors
from hapvr.storage.shards import Shard
from hapvr.storage.tensors import tensor_field, tensor_shape

POOLED, MAGNITUDE = SIDE_COLUMNS = ("pooled", "magnitude")
SIDE_SETTING = "pooled"
"""In the settings of shards that have these columns; it does not change their regions."""


def side_fields(side_dims: int, *, shape: Sequence[int] = ()) -> tuple[pa.Field, ...]:
    """The columns for pooled vectors of `side_dims` values; shape: (T,) where a row holds a clip of T frames."""
    return (
        tensor_field(POOLED, shape=(*shape, side_dims), dtype="float16"),
        tensor_field(MAGNITUDE, shape=shape, dtype="float32"),
    )


def side_setting(side_dims: int) -> dict[str, bool]:
    """What a shard with pooled vectors adds to its settings."""
    return {SIDE_SETTING: True} if side_dims else {}


def without_side(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of features as far as they determine the regions."""
    return {name: value for name, value in settings.items() if name != SIDE_SETTING}


def stored_side_dims(file: pq.ParquetFile) -> int:
    """C of the pooled vectors in a data file; 0 if it has none."""
    names = file.schema_arrow.names
    return tensor_shape(file.schema_arrow.field(POOLED))[0][-1] if POOLED in names else 0


def require_side(shard: Shard, file: pq.ParquetFile) -> None:
    """Raise DataError unless the data of a shard has pooled vectors."""
    if not stored_side_dims(file):
        raise DataError(
            f"storage: {shard.stage} of shard {shard.key} has no pooled vectors, which this model needs; set "
            "features.pooled: true and make features and training views again"
        )


def joined(regions: npt.NDArray[Any], pooled: npt.NDArray[Any], magnitude: npt.NDArray[Any]) -> npt.NDArray[np.float16]:
    """The three columns as one array, as `hapvr.model.side.join_side` makes it."""
    import torch  # those who only decode or count need none

    from hapvr.model.side import Side, join_side

    parts = [torch.from_numpy(np.array(values)) for values in (regions, pooled, magnitude)]
    array: npt.NDArray[np.float16] = join_side(parts[0], Side(parts[1], parts[2])).numpy()
    return array


class VideoSide:
    """The side of the frames of a feature shard. Raises DataError for a shard without."""

    def __init__(self, shard: Shard, file: pq.ParquetFile) -> None:
        require_side(shard, file)
        self._columns = [VideoTensors(shard, column, file=file) for column in SIDE_COLUMNS]

    def join(
        self, video_id: str, regions: npt.NDArray[Any], first: int = 0, last: int | None = None
    ) -> npt.NDArray[np.float16]:
        """Regions [T, R, D] of the frames from `first` to `last` - 1 with their side, [T, R + k, D]."""
        pooled, magnitude = (column.read(video_id, first, last) for column in self._columns)
        return joined(regions, pooled, magnitude)
