"""Tables that are well formed and whose columns hold something else."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hapvr.data.features import STAGE, FeatureFile, FeatureStore
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import ManifestRow, read_manifest, write_manifest_shard
from hapvr.data.shards import DATA_BYTES_KEY, DATA_DIGEST_KEY, PROVENANCE_KEY, Shard
from hapvr.data.tensors import TENSOR_KEY
from hapvr.errors import ConfigError, DataError
from hapvr.tables import write_table
from tests.data.test_shards import write_shard

VALUES = (None, -1, 2**62, math.nan, ["x"], {"x": 1}, b"\xff")


def other_columns(table: pa.Table, name: str) -> Iterator[pa.Table]:
    """The table without a column, with it twice, and with each of VALUES in it."""
    place = table.schema.get_field_index(name)
    yield table.remove_column(place)
    yield table.append_column(table.schema.field(name), table.column(name))
    for value in VALUES:
        values = pa.array([value] * len(table))
        if values.type != table.schema.field(name).type:
            yield table.set_column(place, pa.field(name, values.type), values)


def refused(
    root: DataRoot, name: str, tables: Iterator[pa.Table], read: Callable[[], object]
) -> None:
    path = root.local_path(name)
    whole = path.read_bytes()
    for table in tables:
        metadata = {
            key: value
            for key, value in (table.schema.metadata or {}).items()
            if key != b"hapvr.checksum"
        }
        with path.open("wb") as stream:
            write_table(table.replace_schema_metadata(metadata), stream)
        with pytest.raises(DataError, match=name):
            read()

    path.write_bytes(whole)


def test_the_manifest(tmp_path: Path) -> None:
    root = DataRoot(tmp_path)
    write_manifest_shard(
        root, "a-00000", [ManifestRow("a/x.mp4", "a", "train", "a-00000", "/x.mp4")]
    )
    name = "manifest/a-00000/rows.parquet"
    table = pq.ParquetFile(tmp_path / name).read()
    for column in table.column_names:
        refused(root, name, other_columns(table, column), lambda: read_manifest(root))
    assert len(read_manifest(root)) == 1


@pytest.mark.parametrize("column", ["video_id", "status", "num_rows"])
def test_the_index_of_a_shard(tmp_path: Path, column: str) -> None:
    root = DataRoot(tmp_path)
    shard = write_shard(root, "s", settings={})
    table = pq.ParquetFile(tmp_path / shard.index_name).read()
    tables = other_columns(table, column)
    refused(root, shard.index_name, tables, lambda: FeatureStore(root, ["s"]))


def test_an_index_of_less_than_no_rows(tmp_path: Path) -> None:
    root = DataRoot(tmp_path)
    shard = write_shard(root, "s", settings={})
    table = pq.ParquetFile(tmp_path / shard.index_name).read()
    negative = table.set_column(4, table.schema.field(4), pa.array([-1] * len(table)))
    refused(root, shard.index_name, iter([negative]), lambda: FeatureStore(root, ["s"]))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"stage": 1, "settings": [], "inputs": 5, "environment": null}', "[" * 9000],
    ids=["nothing", "a list", "no key", "other types", "too deep"],
)
def test_the_provenance_of_a_shard(tmp_path: Path, text: str) -> None:
    """Its values have types."""
    root = DataRoot(tmp_path)
    shard = write_shard(root, "s", settings={})
    table = pq.ParquetFile(tmp_path / shard.index_name).read()
    metadata = (table.schema.metadata or {}) | {PROVENANCE_KEY: text.encode()}
    tables = iter([table.replace_schema_metadata(metadata)])
    refused(root, shard.index_name, tables, lambda: shard.require({}))


def test_the_data_of_a_shard(tmp_path: Path) -> None:
    """What its index agrees with, so that only the values are wrong."""
    root = DataRoot(tmp_path)
    shard = write_shard(root, "s", settings={})
    index = pq.ParquetFile(tmp_path / shard.index_name).read()
    table = pq.ParquetFile(tmp_path / shard.data_name).read()
    place = table.schema.get_field_index("regions")
    shapes = (
        "",
        "{}",
        "[" * 9000,
        '{"shape": [9, 8], "dtype": "float16"}',
        '{"shape": [36], "dtype": "object"}',
        '{"shape": [-1], "dtype": "float16"}',
        '{"shape": "x", "dtype": "float16"}',
    )
    regions = table.schema.field("regions")
    changed = [
        one for name in ("video_id", "timestamp_s", "regions") for one in other_columns(table, name)
    ]
    changed += [
        table.set_column(
            place, regions.with_metadata({TENSOR_KEY: text.encode()}), table.column(place)
        )
        for text in shapes
    ]
    for data in changed:
        pq.write_table(data, tmp_path / shard.data_name, compression="none")
        metadata = (index.schema.metadata or {}) | {
            DATA_DIGEST_KEY: root.sha256(shard.data_name).encode(),
            DATA_BYTES_KEY: str(root.num_bytes(shard.data_name)).encode(),
        }
        del metadata[b"hapvr.checksum"]
        with root.write(shard.index_name) as stream:
            write_table(index.replace_schema_metadata(metadata), stream)
        with pytest.raises(DataError, match=shard.data_name):
            read_all(FeatureFile(Shard(root, STAGE, "s")))


def read_all(file: FeatureFile) -> None:
    file.times("a")
    file.regions("a")


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a//b", "a/../../b"])
def test_names_that_leave_the_data_root_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="relative path below the data root"):
        DataRoot(tmp_path).path(name)


def test_a_data_root_that_would_show_its_keys_is_refused() -> None:
    with pytest.raises(ConfigError, match="its keys would be shown"):
        DataRoot("s3://key:se/cret@bucket/prefix")
