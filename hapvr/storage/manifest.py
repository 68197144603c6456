"""The manifest (`manifest/<shard>.parquet`, append-only) and the `videos` shards (a row per video)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from hapvr.storage.filesystem import DataRoot

MANIFEST_STAGE = "manifest"
VIDEOS_STAGE = "videos"
MANIFEST_SCHEMA = pa.schema(
    [pa.field(name, pa.string(), nullable=False) for name in ("video_id", "source", "split", "shard", "uri")]
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


def read_manifest_shard(root: DataRoot, shard: str) -> list[ManifestRow]:
    """The rows of one shard. Raises DataError if there is none of that name."""
    with root.open(_name(shard)) as file:
        return [ManifestRow(**row) for row in pq.read_table(file).to_pylist()]


def read_manifest(root: DataRoot) -> pl.DataFrame:
    """All rows: video_id, source, split, shard, uri."""
    rows = [asdict(row) for shard in shard_keys(root) for row in read_manifest_shard(root, shard)]
    return pl.DataFrame(rows, schema=dict.fromkeys(MANIFEST_SCHEMA.names, pl.String))


def write_manifest_shard(root: DataRoot, shard: str, rows: Sequence[ManifestRow]) -> None:
    """Write a shard of the manifest."""
    table = pa.Table.from_pylist([asdict(row) for row in rows], schema=MANIFEST_SCHEMA)
    with root.write(_name(shard)) as stream:
        pq.write_table(table, stream, compression="zstd")


def _name(shard: str) -> str:
    return f"{MANIFEST_STAGE}/{shard}/rows.parquet"
