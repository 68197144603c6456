"""Tensors as fixed-size binary columns: fast to read, shape and dtype in the field's metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field, TypeAdapter

TENSOR_KEY = b"hapvr.tensor"
Columns = Sequence[pa.Array | pa.ChunkedArray | npt.NDArray[Any] | Sequence[Any]]
"""Values of each column of a data file, all of one length N; [N, *shape] arrays for tensor columns."""


@dataclass(frozen=True)
class _Tensor:
    """Under TENSOR_KEY."""

    shape: tuple[Annotated[int, Field(ge=1, lt=2**31)], ...]
    dtype: Literal["float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64"]


_TENSOR = TypeAdapter(_Tensor)


def frame_fields(*stored: pa.Field) -> tuple[pa.Field, ...]:
    """The columns of a shard with a row per frame. stored: those of what is kept of a frame."""
    first = (("video_id", pa.string()), ("frame_index", pa.int32()), ("timestamp_s", pa.float64()))
    return (*(pa.field(name, kind, nullable=False) for name, kind in first), *stored)


def frame_columns(video_id: str, timestamps_s: Sequence[float], *stored: Any) -> Columns:
    """The rows of one video, column by column in the order of `frame_fields`. timestamps_s: T seconds; stored: T values each."""
    return [video_id] * len(timestamps_s), range(len(timestamps_s)), timestamps_s, *stored


def tensor_field(name: str, *, shape: Sequence[int], dtype: str) -> pa.Field:
    """A column of tensors of one shape, e.g. (9, 512) float16, row-major."""
    width = int(np.prod(shape)) * np.dtype(dtype).itemsize
    metadata = {TENSOR_KEY: json.dumps({"shape": list(shape), "dtype": np.dtype(dtype).name}).encode()}
    return pa.field(name, pa.binary(width), nullable=False, metadata=metadata)


def tensor_shape(field: pa.Field) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    """Shape and dtype of a tensor column. Raises ValueError for any other column."""
    data = _TENSOR.validate_json((field.metadata or {}).get(TENSOR_KEY, b""), strict=True)
    if math.prod(data.shape) * np.dtype(data.dtype).itemsize != getattr(field.type, "byte_width", 0):
        raise ValueError(f"column {field.name!r}: {data.dtype} {list(data.shape)} do not fit {field.type}")
    return data.shape, np.dtype(data.dtype)


def decode_tensors(column: pa.ChunkedArray | pa.Array, field: pa.Field) -> npt.NDArray[np.generic]:
    """A column of N rows -> [N, *shape] array; a view of the column's memory where it is one chunk."""
    shape, dtype = tensor_shape(field)
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    data, start = column.buffers()[1], column.offset * column.type.byte_width
    return np.ndarray((len(column), *shape), dtype, data, start)


def encode_column(values: Any, field: pa.Field) -> pa.Array:
    """The values of a column of `Columns` as Arrow has them. Raises AssertionError for tensors of another shape."""
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if TENSOR_KEY not in (field.metadata or {}):
        return pa.array(values, field.type)
    shape, dtype = tensor_shape(field)
    data = np.ascontiguousarray(values, dtype)
    assert data.shape[1:] == shape, (field.name, data.shape, shape)
    return pa.Array.from_buffers(field.type, len(data), [None, pa.py_buffer(data)])
