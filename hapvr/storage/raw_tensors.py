"""Tensor columns read without Parquet's decoder, from local files that hold the values as memory does."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from hapvr.errors import DamagedError
from hapvr.storage.shards import Shard
from hapvr.storage.tensors import num_tensor_bytes, tensor_shape

# The header of a page takes at least 17 bytes. So a chunk with at most 33 bytes beside its values is a single page, whose
# values come last.
MAX_HEADER_BYTES = 33


class RawTensors:
    """The rows of one tensor column. They are copied once, from the file to their array; Parquet's decoder copies twice."""

    def __init__(self, shard: Shard, data: pq.ParquetFile, column: str, starts: Sequence[int]) -> None:
        """starts: where the values of each row group begin in the file; see `raw_tensors`."""
        metadata, field = data.metadata, data.schema_arrow.field(column)
        self._shard = shard
        self._shape, self._dtype = tensor_shape(field)
        self._width = num_tensor_bytes(field)
        self._starts = starts
        self._ends = np.cumsum([metadata.row_group(group).num_rows for group in range(len(starts))], dtype=int)
        self._file = os.open(shard.root.local_path(shard.data_name), os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def read(self, start: int, count: int) -> npt.NDArray[np.generic]:
        """Rows start to start + count: [count, *shape]. Raises DamagedError if the file ends before them."""
        values = np.empty((count, *self._shape), self._dtype)
        target = values.reshape(-1).view(np.uint8).data
        done = 0
        while done < count:
            group = int(np.searchsorted(self._ends, start + done, side="right"))
            first = int(self._ends[group - 1]) if group else 0
            stop = min(count, int(self._ends[group]) - start)
            offset = self._starts[group] + (start + done - first) * self._width
            self._fill(target[done * self._width : stop * self._width], offset)
            done = stop
        return values

    def _fill(self, target: memoryview, offset: int) -> None:
        while target:
            count = os.preadv(self._file, [target], offset)
            if not count:
                raise DamagedError(f"storage: {self._shard.data_name} ends before its last rows; {self._shard.remedy}")
            target, offset = target[count:], offset + count


def raw_tensors(shard: Shard, data: pq.ParquetFile, column: str) -> RawTensors | None:
    """A reader of that column; None where values are compressed, split into several pages, or in an object store."""
    if shard.root.local is None:
        return None
    field, metadata = data.schema_arrow.field(column), data.metadata
    number, width = data.schema_arrow.get_field_index(column), num_tensor_bytes(field)
    starts = []
    for index in range(metadata.num_row_groups):
        chunk = metadata.row_group(index).column(number)
        num_bytes = chunk.num_values * width
        if (
            field.nullable
            or chunk.compression != "UNCOMPRESSED"
            or not set(chunk.encodings)
            <= {"PLAIN", "RLE"}  # RLE: of levels, which a column without nulls does not have
            or not 0 < chunk.total_compressed_size - num_bytes <= MAX_HEADER_BYTES
        ):
            return None
        starts.append(chunk.data_page_offset + chunk.total_compressed_size - num_bytes)
    return RawTensors(shard, data, column, starts)
