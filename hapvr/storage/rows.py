"""The rows of single videos out of a data file whose videos are contiguous, by way of the index; their tensors."""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hapvr.errors import DamagedError, DataError
from hapvr.storage.raw_tensors import raw_tensors
from hapvr.storage.shards import STATUS_OK, Shard
from hapvr.storage.tensors import decode_tensors, num_tensor_bytes
from hapvr.tables import check_columns

COLUMN_TYPES = {"video_id": pa.string(), "timestamp_s": pa.float64(), "jpeg": pa.binary()}
"""Of columns that are no tensors."""


def places_of_videos(shard: Shard) -> dict[str, tuple[int, int]]:
    """Video id -> its first row in the data file and how many it has, in file order, as the index says."""
    places, start = {}, 0
    for row in shard.rows():
        if row["status"] == STATUS_OK:
            places[row["video_id"]] = (start, row["num_rows"])
            start += row["num_rows"]
    return places


class VideoRows:
    """Rows by video id. Keeps the last row group read, so reading in file order reads each group once."""

    def __init__(self, shard: Shard, columns: list[str], *, file: pq.ParquetFile | None = None) -> None:
        """file: the shard's data, where it is open."""
        self._shard = shard
        self._columns = ["video_id", *columns]
        self._file = file or shard.open_data()
        with shard.naming_damage():
            there = self._file.schema_arrow
            known = [pa.field(name, COLUMN_TYPES.get(name) or there.field(name).type) for name in self._columns]
            check_columns(there.empty_table(), known)
        metadata = self._file.metadata
        self._ends = np.cumsum(
            [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)], dtype=int
        )
        self._group = -1
        self._table: pa.Table | None = None
        self._agrees = False
        self._places = places_of_videos(shard)

    @property
    def video_ids(self) -> list[str]:
        """Videos that have rows, in file order."""
        return list(self._places)

    def place(self, video_id: str) -> tuple[int, int]:
        """The first row of a video in the file, and how many it has; raises as `read` does. Looks once at the whole file."""
        place = self._place(video_id)
        if not self._agrees:
            self._compare_ids()
        return place

    def _place(self, video_id: str) -> tuple[int, int]:
        if video_id not in self._places:
            raise DataError(
                f"storage: {self._shard.stage} of shard {self._shard.key} has no rows of {video_id}; see its index"
            )
        return self._places[video_id]

    def _compare_ids(self) -> None:
        with self._shard.naming_damage():
            ids = self._file.read(columns=["video_id"]).column(0).combine_chunks()
        runs = pc.run_end_encode(ids)
        found = zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True)
        wanted = ((video_id, start + count) for video_id, (start, count) in self._places.items() if count)
        for there, expected in zip_longest(found, wanted):
            if there != expected:
                raise self._mismatch((expected or there)[0])
        self._agrees = True

    def _mismatch(self, video_id: str) -> DamagedError:
        name = self._shard.data_name
        return DamagedError(f"storage: {name} does not hold {video_id} where its index says; {self._shard.remedy}")

    def times(self, video_id: str) -> list[float]:
        """Seconds [T] of the frames of a video. Raises as `read` does, and DamagedError where they are no times."""
        times: list[float] = self.read(video_id).column("timestamp_s").to_pylist()
        if not all(map(math.isfinite, times)):
            raise DamagedError(
                f"storage: {self._shard.data_name} has times of {video_id} that are not finite; {self._shard.remedy}"
            )
        return times

    def read(self, video_id: str) -> pa.Table:
        """The rows of a video. Raises DataError if it has none or the file does not agree with its index."""
        start, count = self._place(video_id)
        stop = start + count
        parts = []
        while start < stop:
            group = int(np.searchsorted(self._ends, start, side="right"))
            if group != self._group or self._table is None:
                with self._shard.naming_damage():
                    self._table, self._group = self._file.read_row_group(group, columns=self._columns), group
            first = int(self._ends[group]) - self._table.num_rows
            parts.append(self._table.slice(start - first, min(stop, int(self._ends[group])) - start))
            start += parts[-1].num_rows
        table = pa.concat_tables(parts)
        if any(column.null_count for column in table.columns):
            raise DamagedError(f"storage: {self._shard.data_name} lacks values of {video_id}; {self._shard.remedy}")
        if table.column("video_id").unique().to_pylist() != [video_id]:
            raise self._mismatch(video_id)
        return table


class VideoTensors:
    """A tensor column by video id, each video an array of its own; cheapest in file order."""

    def __init__(self, shard: Shard, column: str, *, file: pq.ParquetFile | None = None) -> None:
        """file: the shard's data, where it is open."""
        file = file or shard.open_data()
        self._rows = VideoRows(shard, [column], file=file)
        self._column, self._field = column, file.schema_arrow.field(column)
        try:
            self._raw = raw_tensors(shard, file, column)
            num_tensor_bytes(self._field)
        except DataError as error:
            raise DamagedError(f"{error}, in {shard.data_name}; {shard.remedy}") from error

    @property
    def video_ids(self) -> list[str]:
        """Videos that have rows, in file order."""
        return self._rows.video_ids

    def read(self, video_id: str, first: int = 0, last: int | None = None) -> npt.NDArray[Any]:
        """[T, *shape] of a video, or of its rows from `first` to `last` - 1. Raises DataError as `VideoRows.read` does."""
        if self._raw is not None:
            start, count = self._rows.place(video_id)
            end = count if last is None else min(last, count)
            return self._raw.read(start + first, max(end - first, 0))
        values = decode_tensors(self._rows.read(video_id).column(self._column), self._field)[first:last]
        # a view would keep the whole row group in memory
        return values if values.flags.owndata else values.copy()
