"""The manifest (`manifest/<shard>/rows.parquet`, append-only) and the `videos` shards (a row per video)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from hapvr.errors import DataError
from hapvr.storage.filesystem import DataRoot, read_schema_metadata
from hapvr.tables import check_columns, read_table, write_table

if TYPE_CHECKING:
    import polars as pl

MANIFEST_STAGE = "manifest"
MANIFEST_VERSION = "1"
VIDEOS_STAGE = "videos"
TRAIN = "train"
_VERSION_KEY = b"hapvr.manifest_version"
MANIFEST_SCHEMA = pa.schema(
    [pa.field(name, pa.string(), nullable=False) for name in ("video_id", "source", "split", "shard", "uri")],
    metadata={_VERSION_KEY: MANIFEST_VERSION.encode()},
)
VIDEO_COLUMNS = (
    pa.field("path", pa.string(), nullable=False),
    pa.field("num_bytes", pa.int64(), nullable=False),
    pa.field("sha256", pa.string(), nullable=False),
    pa.field("duration_s", pa.float64()),
    pa.field("fps", pa.float64()),
    pa.field("width_px", pa.int32()),
    pa.field("height_px", pa.int32()),
    pa.field("codec", pa.string()),
)


@dataclass(frozen=True)
class ManifestRow:
    """One video that some source offered: its global id, source, split, shard, and where it is (path or URL)."""

    video_id: str
    source: str
    split: str
    shard: str
    uri: str


def shard_keys(root: DataRoot) -> list[str]:
    """All shards of the manifest, sorted."""
    return [name for name in root.list_folders(MANIFEST_STAGE) if root.exists(_name(name))]


def training_shard_keys(manifest: pl.DataFrame) -> list[str]:
    """The manifest's shards of the training split, sorted."""
    return manifest.filter(manifest["split"] == TRAIN)["shard"].unique().sort().to_list()


def is_training_shard(root: DataRoot, shard: str) -> bool:
    """Whether the videos of a shard are of the training split. Raises DataError if there is no shard of that name."""
    return any(row.split == TRAIN for row in read_manifest_shard(root, shard))


def read_manifest_shard(root: DataRoot, shard: str) -> list[ManifestRow]:
    """The rows of one shard. Raises DataError if there is none of that name, or one of another version."""
    return [ManifestRow(**row) for row in _read(root, shard).to_pylist()]


def read_manifest(root: DataRoot) -> pl.DataFrame:
    """All rows: video_id, source, split, shard, uri."""
    import polars as pl  # what searches alone needs none

    return pl.DataFrame(manifest_table(root))


def manifest_table(root: DataRoot) -> pa.Table:
    """As `read_manifest`, as Arrow's table."""
    return pa.concat_tables([MANIFEST_SCHEMA.empty_table(), *(_read(root, shard) for shard in shard_keys(root))])


def write_manifest_shard(root: DataRoot, shard: str, rows: Sequence[ManifestRow]) -> None:
    """Write a shard of the manifest."""
    table = pa.Table.from_pylist([asdict(row) for row in rows], schema=MANIFEST_SCHEMA)
    with root.write(_name(shard)) as stream:
        write_table(table, stream)


def _read(root: DataRoot, shard: str) -> pa.Table:
    with root.open(_name(shard)) as file, root.naming_damage(_name(shard), remedy="restore it from a copy"):
        table = read_table(file)
        version = read_schema_metadata(table.schema, _VERSION_KEY)
    if version not in ("", MANIFEST_VERSION) or table.schema.names != MANIFEST_SCHEMA.names:
        raise DataError(
            f"manifest: {_name(shard)} below {root.url} is of version {version or MANIFEST_VERSION:.40} with columns "
            f"{', '.join(table.schema.names)}; this release reads version {MANIFEST_VERSION}: use the release that wrote "
            f"it, or set another data_root"
        )
    with root.naming_damage(_name(shard), remedy="restore it from a copy"):
        check_columns(table, MANIFEST_SCHEMA)
    return table.cast(MANIFEST_SCHEMA)


def _name(shard: str) -> str:
    return f"{MANIFEST_STAGE}/{shard}/rows.parquet"
