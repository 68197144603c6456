"""Tensors as fixed-size binary columns: fast to read, shape and dtype in the field's metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field, TypeAdapter

TENSOR_KEY = b"hapvr.tensor"


@dataclass(frozen=True)
class _Tensor:
    """Under TENSOR_KEY."""

    shape: tuple[Annotated[int, Field(ge=1, lt=2**31)], ...]
    dtype: Literal["float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64"]


_TENSOR = TypeAdapter(_Tensor)


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


def encode_tensors(values: npt.NDArray[np.generic], field: pa.Field) -> pa.Array:
    """[N, *shape] array -> a column of N rows, cast to the field's dtype. Raises ValueError if the shapes disagree."""
    shape, dtype = tensor_shape(field)
    if values.shape[1:] != shape:
        raise ValueError(f"storage: column {field.name!r} holds tensors of shape {shape}, got {values.shape[1:]}")
    data = np.ascontiguousarray(values, dtype=dtype)
    return pa.Array.from_buffers(field.type, len(values), [None, pa.py_buffer(data)])


def decode_tensors(column: pa.ChunkedArray | pa.Array, field: pa.Field) -> npt.NDArray[np.generic]:
    """A column of N rows -> [N, *shape] array; a view of the column's memory where it is one chunk."""
    shape, dtype = tensor_shape(field)
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    arrays = [_decode(chunk, shape, dtype) for chunk in chunks if len(chunk)]
    if not arrays:
        return np.empty((0, *shape), dtype)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _decode(chunk: pa.Array, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
    width = chunk.type.byte_width
    flat = np.frombuffer(
        chunk.buffers()[1], dtype, count=len(chunk) * width // dtype.itemsize, offset=chunk.offset * width
    )
    return flat.reshape(len(chunk), *shape)
