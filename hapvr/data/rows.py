"""The rows of single videos out of a data file whose videos are contiguous, located by its index."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from hapvr.data.shards import STATUS_OK, Shard
from hapvr.data.tensors import decode_tensors
from hapvr.errors import DamagedError, DataError
from hapvr.tables import check_columns

COLUMN_TYPES = {"video_id": pa.string(), "timestamp_s": pa.float64(), "jpeg": pa.binary()}
"""Types of the columns that are not tensors."""


def places_of_videos(shard: Shard) -> dict[str, tuple[int, int]]:
    """Video id -> its first row in the data file and how many it has, in file order, as the index says."""
    places, start = {}, 0
    for row in shard.rows():
        if row["status"] == STATUS_OK:
            places[row["video_id"]] = (start, row["num_rows"])
            start += row["num_rows"]
    return places


class VideoRows:
    """Rows by video id. Reading in file order reads each row group once; after any other read nothing is held."""

    def __init__(self, shard: Shard, columns: list[str], *, file: pq.ParquetFile | None = None) -> None:
        """file: the shard's data, where it is open. Raises DataError where the shard is unfinished or damaged."""
        self._shard = shard
        self._columns = ["video_id", *columns]
        self._file = file or shard.open_data()
        self._schema = self._file.schema_arrow
        with shard.corruption_errors():
            for name in self._columns:
                kind = COLUMN_TYPES.get(name) or self._schema.field(name).type
                check_columns(self._schema.empty_table(), [pa.field(name, kind)])
        groups = range(self._file.metadata.num_row_groups)
        self._ends = np.cumsum([self._file.metadata.row_group(group).num_rows for group in groups], dtype=int)
        self._group, self._next = -1, 0
        self._table: pa.Table | None = None
        self._places = places_of_videos(shard)

    @property
    def video_ids(self) -> list[str]:
        """Videos that have rows, in file order."""
        return list(self._places)

    def read(self, video_id: str, first: int = 0, last: int | None = None) -> pa.Table:
        """The rows of a video from `first` to `last` - 1. Raises DataError if it has none or the file is damaged."""
        if video_id not in self._places:
            raise DataError(
                f"storage: {self._shard.stage} of shard {self._shard.key} has no rows of {video_id}; see its index"
            )
        start, count = self._places[video_id]
        start, stop = start + first, start + (count if last is None else min(last, count))
        parts, in_order = [], start == self._next
        while start < stop:
            group = int(np.searchsorted(self._ends, start, side="right"))
            if group != self._group or self._table is None:
                with self._shard.corruption_errors():
                    self._table, self._group = self._file.read_row_group(group, columns=self._columns), group
            begin = int(self._ends[group]) - self._table.num_rows
            parts.append(self._table.slice(start - begin, min(stop, int(self._ends[group])) - start))
            start += parts[-1].num_rows
        self._table, self._next = (self._table if in_order else None), stop
        table = pa.concat_tables(parts) if parts else self._schema.empty_table()
        others = [found for found in table.column("video_id").unique().to_pylist() if found != video_id]
        if others or any(column.null_count for column in table.columns):
            name = self._shard.data_name
            raise DamagedError(f"storage: {name} does not hold {video_id} where its index says; {self._shard.hint}")
        return table

    def times(self, video_id: str) -> list[float]:
        """Seconds [T] of the frames of a video. Raises as `read` does, and DamagedError where they are not times."""
        times: list[float] = self.read(video_id).column("timestamp_s").to_pylist()
        if not all(map(math.isfinite, times)):
            raise DamagedError(
                f"storage: {self._shard.data_name} has times of {video_id} that are not finite; {self._shard.hint}"
            )
        return times

    def tensors(self, video_id: str, first: int = 0, last: int | None = None) -> list[npt.NDArray[Any]]:
        """[T, *shape] of each column, all of them tensors, as arrays of their own."""
        table = self.read(video_id, first, last)
        columns = ((table.column(name), self._schema.field(name)) for name in self._columns[1:])
        with self._shard.corruption_errors():
            # a view would keep the whole row group in memory
            return [np.array(decode_tensors(column, field)) for column, field in columns]
