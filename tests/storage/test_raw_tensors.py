"""Tensors read past Parquet's decoder: the same values as through it, and only from files that allow it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hapvr.errors import DamagedError
from hapvr.provenance import Provenance
from hapvr.seeding import numpy_rng
from hapvr.storage.features import MAX_OPEN_FILES, STAGE, FeatureFile, FeatureStore, feature_columns, fields
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.raw_tensors import raw_tensors
from hapvr.storage.rows import VideoTensors
from hapvr.storage.shards import Shard, index_row
from hapvr.storage.tensors import decode_tensors, encode_tensors, tensor_field

LENGTHS = {"a": 3, "b": 150, "c": 1, "d": 40}


def write_shard(root: DataRoot, key: str, *, row_group_rows: int = 64, lengths: dict[str, int] = LENGTHS) -> Shard:
    """Random features of videos of these lengths."""
    shard = Shard(root, STAGE, key)
    rng = numpy_rng(0, key)
    columns = fields(num_regions=3, dims=100)
    with shard.write_data(columns, row_group_rows=row_group_rows, compress=False) as writer:
        for video_id, count in lengths.items():
            writer.write(
                feature_columns(video_id, rng.standard_normal((count, 3, 100)), list(np.arange(count, dtype=float)))
            )
    rows = [index_row(video_id, count) for video_id, count in lengths.items()]
    shard.write_index(rows, provenance=Provenance(STAGE, {}))
    return shard


@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=8),
    row_group_rows=st.integers(1, 100),
    order=st.randoms(use_true_random=False),
)
def test_any_row_groups_read_as_parquet_reads_them(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], row_group_rows: int, order: Any
) -> None:
    """Whatever row groups the writer makes, its files are plain, and each video equals what Parquet gives, in any order."""
    root = DataRoot(tmp_path_factory.mktemp("root"))
    named = {f"v{number}": length for number, length in enumerate(lengths)}
    shard = write_shard(root, "s-00000", row_group_rows=row_group_rows, lengths=named)
    data = shard.open_data()
    assert raw_tensors(shard, data, "regions") is not None
    values = decode_tensors(data.read().column("regions"), data.schema_arrow.field("regions"))
    ends = np.cumsum(lengths)
    stored = VideoTensors(shard, "regions")
    numbers = list(range(len(lengths)))
    order.shuffle(numbers)
    for number in numbers:
        found = stored.read(f"v{number}")
        assert np.array_equal(found, values[ends[number] - lengths[number] : ends[number]])
        assert found.flags.owndata
        assert found.flags.writeable


@pytest.mark.parametrize(
    "options",
    [
        {"data_page_size": 20_000},
        {"compression": "zstd"},
        {"use_dictionary": True},
        {"column_encoding": {"regions": "BYTE_STREAM_SPLIT"}, "use_dictionary": False},
        {"write_statistics": True},
        {"data_page_version": "2.0"},
        {"write_page_checksum": True},
        {"nullable": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_files_that_others_wrote_are_read_as_well(tmp_path: Path, options: dict[str, Any]) -> None:
    """Several pages, compression, encodings, statistics, page versions, checksums, columns that may be null: equal values."""
    root = DataRoot(tmp_path)
    shard = write_shard(root, "s-00000")
    wanted = dict(FeatureStore(root, ["s-00000"]).read(list(LENGTHS)))
    table = shard.open_data().read()
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False} | options
    if options.pop("nullable", False):
        field = table.schema.field("regions")
        table = table.cast(table.schema.set(3, field.with_nullable(True)))
    path = Path(root.path(shard.data_name))
    rows, provenance = shard.index().to_dicts(), shard.require({})
    pq.write_table(table.combine_chunks(), path, row_group_size=100, write_batch_size=8, **options)
    shard.write_index(rows, provenance=provenance)
    found = dict(FeatureStore(root, ["s-00000"]).read(list(LENGTHS)))
    assert found.keys() == wanted.keys() == LENGTHS.keys()
    assert all(torch.equal(found[video_id], wanted[video_id]) for video_id in wanted)
    assert FeatureFile(shard).read("d")[1] == list(range(40))
    with_header_alone = {"data_page_version", "write_page_checksum"} & options.keys()
    assert (raw_tensors(shard, shard.open_data(), "regions") is not None) == bool(with_header_alone)


def test_two_pages_are_never_taken_for_one(tmp_path: Path) -> None:
    """The shortest headers there are: two pages of one tiny row each."""
    root = DataRoot(tmp_path)
    shard = Shard(root, STAGE, "s-00000")
    schema = pa.schema([tensor_field("regions", shape=(1,), dtype="float16")])
    values = pa.array(encode_tensors(np.ones((2, 1)), schema.field(0)))
    path = tmp_path / shard.data_name
    path.parent.mkdir(parents=True)
    for page_bytes, plain in ((1, False), (100, True)):
        with pq.ParquetWriter(
            path, schema, compression="none", use_dictionary=False, write_statistics=False,
            data_page_size=page_bytes, write_batch_size=1,
        ) as writer:  # fmt: skip
            writer.write_table(pa.Table.from_arrays([values], schema=schema))
        assert (raw_tensors(shard, pq.ParquetFile(path), "regions") is not None) == plain


def test_a_file_that_lost_its_end_is_named(tmp_path: Path) -> None:
    """Cut after it was opened: an error with what to do, and not zeros."""
    root = DataRoot(tmp_path)
    shard = write_shard(root, "s-00000")
    stored = VideoTensors(shard, "regions")
    stored.read("a")
    os.truncate(root.path(shard.data_name), 1000)
    with pytest.raises(
        DamagedError, match=r"features/s-00000/data.parquet ends before its last rows; run `hapvr verify"
    ):
        stored.read("d")


def test_a_store_opens_few_files_at_once(tmp_path: Path) -> None:
    """However many shards it has, so that a process's limit of open files does not bound a collection."""
    root = DataRoot(tmp_path)
    keys = [f"s-{number:05d}" for number in range(2 * MAX_OPEN_FILES)]
    for key in keys:
        write_shard(root, key, lengths={f"{key} a": 2, f"{key} b": 1})
    before = len(os.listdir("/proc/self/fd"))
    store = FeatureStore(root, keys)
    wanted = [f"{key} a" for key in keys]
    for _ in range(2):
        most = 0
        for _, features in store.read(wanted):
            assert features.shape == (2, 3, 100)
            most = max(most, len(os.listdir("/proc/self/fd")) - before)
        assert most <= 2 * MAX_OPEN_FILES + 5
