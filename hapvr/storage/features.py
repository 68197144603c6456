"""Feature shards: one row of region features [9, D] fp16 per frame, the rows of a video contiguous and in time order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from hapvr.errors import DataError
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.shards import STATUS_OK, RowWriter, Shard
from hapvr.storage.tensors import decode_tensors, encode_tensors, tensor_field

STAGE = "features"
ROW_GROUP_ROWS = 256


def fields(*, num_regions: int, dims: int) -> tuple[pa.Field, ...]:
    """The columns for [num_regions, dims] features."""
    return (
        pa.field("video_id", pa.string(), nullable=False),
        pa.field("frame_index", pa.int32(), nullable=False),
        pa.field("timestamp_s", pa.float64(), nullable=False),
        tensor_field("regions", shape=(num_regions, dims), dtype="float16"),
    )


def write_features(
    writer: RowWriter, video_id: str, regions: npt.NDArray[np.floating], timestamps_s: Sequence[float]
) -> None:
    """Append one video: regions [T, R, D]."""
    count = len(regions)
    columns = [
        pa.array([video_id] * count, pa.string()),
        pa.array(range(count), pa.int32()),
        pa.array(timestamps_s, pa.float64()),
        encode_tensors(regions, writer.schema.field("regions")),
    ]
    writer.write(pa.RecordBatch.from_arrays(columns, schema=writer.schema))


class FeatureStore:
    """Features of all shards of some sources, read by id or as one sequential scan.

    Raises DataError if the shards were made from different settings (weights, sampling, whitening), saying which.
    """

    def __init__(self, root: DataRoot, shard_keys: Iterable[str]) -> None:
        self._shards = [Shard(root, STAGE, key) for key in shard_keys]
        self._rows: dict[str, tuple[Shard, int, int]] = {}
        first = None
        for shard in self._shards:
            if first is None:
                first = shard.require({})
            else:
                shard.require(dict(first.settings))
            start = 0
            for row in shard.index().iter_rows(named=True):
                if row["status"] == STATUS_OK:
                    self._rows[row["video_id"]] = (shard, start, row["num_rows"])
                    start += row["num_rows"]

    def available(self) -> set[str]:
        """Ids of the videos that have features."""
        return set(self._rows)

    def digests(self) -> dict[str, str]:
        """Shard key -> digest."""
        return {shard.key: shard.digest() for shard in self._shards}

    def read(self, video_ids: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """(video id, [T, R, D] fp16) of those ids that are there, in the order of the files: each row group is read once."""
        wanted: dict[Shard, list[tuple[int, int, str]]] = {}
        for video_id in dict.fromkeys(video_ids):
            if video_id in self._rows:
                shard, start, count = self._rows[video_id]
                wanted.setdefault(shard, []).append((start, count, video_id))
        for shard, places in wanted.items():
            yield from _read_places(shard, sorted(places))


def _read_places(shard: Shard, places: list[tuple[int, int, str]]) -> Iterator[tuple[str, Tensor]]:
    with shard.open_data() as file:
        field = file.schema_arrow.field("regions")
        ends = np.cumsum([file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)])
        group, loaded, values = -1, (0, 0), np.empty(0)
        for start, count, video_id in places:
            parts = []
            position = start
            while position < start + count:
                if not loaded[0] <= position < loaded[1]:
                    group = int(np.searchsorted(ends, position, side="right"))
                    table = file.read_row_group(group, columns=["video_id", "regions"])
                    values = decode_tensors(table.column("regions"), field)
                    loaded = (int(ends[group]) - table.num_rows, int(ends[group]))
                    ids = table.column("video_id")
                stop = min(start + count, loaded[1])
                if ids[position - loaded[0]].as_py() != video_id:
                    raise DataError(f"storage: {shard.data_name} does not hold {video_id} where its index says; extract it again")
                parts.append(values[position - loaded[0] : stop - loaded[0]])
                position = stop
            yield video_id, torch.from_numpy(np.concatenate(parts))
