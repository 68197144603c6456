"""Pooled vectors and magnitudes of frames, in columns behind the regions of a feature or view shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from hapvr.data.shards import Shard
from hapvr.data.tensors import tensor_field, tensor_shape
from hapvr.errors import DataError

POOLED, MAGNITUDE = EXTRAS_COLUMNS = ("pooled", "magnitude")
EXTRAS_SETTING = "pooled"
"""In the settings of shards that have these columns; it does not change their regions."""


def extras_fields(extras_dims: int, *, shape: Sequence[int] = ()) -> tuple[pa.Field, ...]:
    """The columns for pooled vectors of `extras_dims` values, none for 0; shape: (T,) where a row holds a clip of T frames."""
    if not extras_dims:
        return ()
    return (
        tensor_field(POOLED, shape=(*shape, extras_dims), dtype="float16"),
        tensor_field(MAGNITUDE, shape=shape, dtype="float32"),
    )


def extras_setting(extras_dims: int) -> dict[str, bool]:
    """What a shard with pooled vectors adds to its settings."""
    return {EXTRAS_SETTING: True} if extras_dims else {}


def without_extras(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of features that determine the regions."""
    return {name: value for name, value in settings.items() if name != EXTRAS_SETTING}


def stored_extras_dims(shard: Shard, file: pq.ParquetFile, *, required: bool) -> int:
    """C of the pooled vectors in the data file of a shard; 0 if it has none. Raises DataError if it has to."""
    if POOLED in file.schema_arrow.names:
        return tensor_shape(file.schema_arrow.field(POOLED))[0][-1]
    if required:
        raise DataError(
            f"storage: {shard.stage} of shard {shard.key} has no pooled vectors, which this model needs; set "
            "features.pooled: true and make features and training views again"
        )
    return 0


def joined(values: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Regions alone as they are; regions, pooled and magnitude as `hapvr.model.frame_extras.join_extras` joins them."""
    if len(values) == 1:
        return values[0]
    import torch  # those who only decode or count need none

    from hapvr.model.frame_extras import FrameExtras, join_extras

    regions, pooled, magnitude = map(torch.from_numpy, values)
    array: npt.NDArray[np.float16] = join_extras(regions, FrameExtras(pooled, magnitude)).numpy()
    return array
