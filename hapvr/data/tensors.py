"""Columns of tensors, all in half precision: fixed-size binary columns, which are fast to read. The
shape is in the metadata of the field."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, Field

TENSOR_KEY = b"hapvr.tensor"
"""In the metadata of a field: the shape of its tensors."""


class _Tensor(BaseModel):
    """The value under TENSOR_KEY."""

    shape: tuple[Annotated[int, Field(ge=1, lt=2**31)], ...]
    dtype: Literal["float16"]


def tensor_field(name: str, *, shape: Sequence[int]) -> pa.Field:
    """A column of half-precision tensors of one shape, e.g. (9, 512), row-major."""
    metadata = {TENSOR_KEY: json.dumps({"shape": list(shape), "dtype": "float16"}).encode()}
    return pa.field(name, pa.binary(2 * math.prod(shape)), nullable=False, metadata=metadata)


def decode_tensors(column: pa.ChunkedArray | pa.Array, field: pa.Field) -> npt.NDArray[np.float16]:
    """A column of N rows -> [N, *shape] array; a view of its memory where it is one chunk. Raises
    ValueError for other columns."""
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    data = column.buffers()[1]
    start = column.offset * column.type.byte_width
    return np.ndarray((len(column), *tensor_shape(field)), np.float16, data, start)


def tensor_shape(field: pa.Field) -> tuple[int, ...]:
    """The shape of the tensors of a column. Raises ValueError for other columns."""
    metadata = (field.metadata or {}).get(TENSOR_KEY, b"")
    shape = _Tensor.model_validate_json(metadata, strict=True).shape
    if 2 * math.prod(shape) != getattr(field.type, "byte_width", 0):
        raise ValueError(f"column {field.name!r}: float16 {list(shape)} do not fit {field.type}")
    return shape


def encode_column(values: Any, field: pa.Field) -> pa.Array:
    """Values of a column as an array. values: [N, *shape] for a column of tensors."""
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if TENSOR_KEY not in (field.metadata or {}):
        return pa.array(values, field.type)
    data = np.ascontiguousarray(values, np.float16)
    assert data.shape[1:] == tensor_shape(field), (field.name, data.shape)
    return pa.Array.from_buffers(field.type, len(data), [None, pa.py_buffer(data)])
