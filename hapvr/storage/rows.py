"""The rows of single videos out of a data file whose videos are contiguous, by way of the index."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from hapvr.errors import DataError
from hapvr.storage.shards import STATUS_OK, Shard


class VideoRows:
    """Rows by video id. Keeps the last row group read, so reading in file order reads each group once."""

    def __init__(self, shard: Shard, columns: list[str]) -> None:
        self._shard = shard
        self._columns = ["video_id", *columns]
        self._file = shard.open_data()
        metadata = self._file.metadata
        self._ends = np.cumsum(
            [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)], dtype=int
        )
        self._group = -1
        self._table: pa.Table | None = None
        self._places: dict[str, tuple[int, int]] = {}
        start = 0
        for row in shard.index().iter_rows(named=True):
            if row["status"] == STATUS_OK:
                self._places[row["video_id"]] = (start, row["num_rows"])
                start += row["num_rows"]

    @property
    def schema(self) -> pa.Schema:
        return self._file.schema_arrow

    @property
    def video_ids(self) -> list[str]:
        """Videos that have rows, in file order."""
        return list(self._places)

    def num_rows(self, video_id: str) -> int:
        return self._places[video_id][1]

    def read(self, video_id: str) -> pa.Table:
        """The rows of a video. Raises DataError if it has none or the file does not agree with its index."""
        if video_id not in self._places:
            raise DataError(
                f"storage: {self._shard.stage} of shard {self._shard.key} has no rows of {video_id}; see its index"
            )
        start, count = self._places[video_id]
        stop = start + count
        parts = []
        while start < stop:
            group = int(np.searchsorted(self._ends, start, side="right"))
            if group != self._group or self._table is None:
                self._table, self._group = self._file.read_row_group(group, columns=self._columns), group
            first = int(self._ends[group]) - self._table.num_rows
            parts.append(self._table.slice(start - first, min(stop, int(self._ends[group])) - start))
            start += parts[-1].num_rows
        table = pa.concat_tables(parts)
        if table.column("video_id").unique().to_pylist() != [video_id]:
            raise DataError(
                f"storage: {self._shard.data_name} does not hold {video_id} where its index says; make the shard again"
            )
        return table
