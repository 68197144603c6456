"""The rows of single videos in the data file of a shard."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hapvr.data.shards import Shard
from hapvr.data.tensors import decode_tensors, tensor_shape
from hapvr.errors import DamagedError, DataError
from hapvr.tables import check_columns


class VideoRows:
    """The rows of single videos in a data file whose videos are contiguous. The index says where
    they are; none are kept in memory."""

    def __init__(self, shard: Shard, *columns: str) -> None:
        """columns: the columns to read besides the video's id; none: all. Raises DataError for an
        unfinished or damaged shard."""
        index = shard.read()
        self.settings = index.provenance.settings
        self._shard = shard
        self._places = index.places()
        self._file = shard.open_data()
        self._schema = self._file.schema_arrow
        self._columns = list(columns) or self._schema.names
        with shard.corruption_errors():
            self._check_columns()

        metadata = self._file.metadata
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._starts = np.cumsum([0, *sizes], dtype=int)
        """The first row of each row group, and the end of the last."""

    def _check_columns(self) -> None:
        types = {"video_id": pa.string(), "timestamp_s": pa.float64(), "jpeg": pa.binary()}
        wanted = []
        for name in {"video_id", *self._columns}:
            kind = types.get(name) or self._schema.field(name).type
            wanted.append(pa.field(name, kind))

        check_columns(self._schema.empty_table(), wanted)

    @property
    def dims(self) -> int:
        """The size of the last axis of the last column, which holds tensors. Raises DamagedError
        where it does not."""
        with self._shard.corruption_errors():
            return tensor_shape(self._schema.field(self._columns[-1]))[-1]

    @property
    def video_ids(self) -> list[str]:
        """Videos that have rows, in file order."""
        return list(self._places)

    def rows(
        self, video_id: str, first: int = 0, last: int | None = None, *columns: str
    ) -> pa.Table:
        """The rows of a video from `first` to `last` - 1. columns: some of those that were named;
        none: all of them. Raises DataError if the video has none or the file is damaged."""
        if video_id not in self._places:
            raise DataError(
                f"storage: {self._shard.stage} of shard {self._shard.key} has no rows of "
                f"{video_id}; see its index"
            )

        begin, count = self._places[video_id]
        start = begin + first
        stop = begin + (count if last is None else min(last, count))

        group = int(np.searchsorted(self._starts, start, "right")) - 1
        end_group = int(np.searchsorted(self._starts, stop))
        names = ["video_id", *(columns or self._columns)]
        with self._shard.corruption_errors():
            groups = self._file.read_row_groups(range(group, end_group), names)
        table = groups.slice(start - int(self._starts[group]), max(stop - start, 0))

        ids = table.column("video_id").unique().to_pylist()
        has_gaps = any(column.null_count for column in table.columns)
        if has_gaps or any(each != video_id for each in ids):
            name = self._shard.data_name
            raise DamagedError(
                f"storage: {name} does not hold {video_id} where its index says; {self._shard.hint}"
            )

        return table

    def tensors(
        self, video_id: str, first: int = 0, last: int | None = None, part: Any = ...
    ) -> npt.NDArray[Any]:
        """A part, by a NumPy index, of the tensors [T, *shape] in the last column, as an array of
        its own."""
        name = self._columns[-1]
        table = self.rows(video_id, first, last, name)
        with self._shard.corruption_errors():
            tensors = decode_tensors(table.column(name), self._schema.field(name))
            # A view would keep the whole row group in memory.
            return np.array(tensors[part])
