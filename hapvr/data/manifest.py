"""The manifest (`manifest/<shard>/rows.parquet`, append-only), the columns of the `videos` shards, and which videos could
be had (`availability/<source>/<shard>.parquet`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from hapvr.data.filesystem import DataRoot
from hapvr.data.shards import STATUS_OK
from hapvr.errors import DamagedError, DataError
from hapvr.tables import check_columns, read_table, write_table

if TYPE_CHECKING:
    import polars as pl

MANIFEST_STAGE = "manifest"
VIDEOS_STAGE = "videos"
TRAIN = "train"
MANIFEST_SCHEMA = pa.schema(
    [pa.field(name, pa.string(), nullable=False) for name in ("video_id", "source", "split", "shard", "uri")]
)
AVAILABILITY = "availability"
_AVAILABILITY_SCHEMA = pa.schema(
    [
        pa.field("video_id", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("checked_at", pa.timestamp("ms", tz="UTC"), nullable=False),
    ]
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
    """The rows of one shard. Raises DataError if there is none of that name, DamagedError if it cannot be read."""
    return [ManifestRow(**row) for row in _read(root, _name(shard), MANIFEST_SCHEMA).to_pylist()]


def read_manifest(root: DataRoot) -> pl.DataFrame:
    """All rows: video_id, source, split, shard, uri."""
    import polars as pl  # what searches alone needs none

    return pl.DataFrame(manifest_table(root))


def manifest_table(root: DataRoot) -> pa.Table:
    """As `read_manifest`, as Arrow's table."""
    return pa.concat_tables(
        [MANIFEST_SCHEMA.empty_table(), *(_read(root, _name(shard), MANIFEST_SCHEMA) for shard in shard_keys(root))]
    )


def write_manifest_shard(root: DataRoot, shard: str, rows: Sequence[ManifestRow]) -> None:
    """Write a shard of the manifest."""
    table = pa.Table.from_pylist([asdict(row) for row in rows], schema=MANIFEST_SCHEMA)
    with root.write(_name(shard)) as stream:
        write_table(table, stream)


def write_availability(
    root: DataRoot, source: str, shard: str, statuses: Mapping[str, str], *, kept: Collection[str] = ()
) -> None:
    """Record what became of a shard's videos. statuses: video id -> status; kept: videos not looked at this time."""
    name = f"{AVAILABILITY}/{source}/{shard}.parquet"
    now = datetime.now(UTC).replace(microsecond=0)
    earlier: dict[str, datetime] = {}
    if kept and root.exists(name):
        with suppress(DamagedError):
            earlier = {
                row["video_id"]: row["checked_at"] for row in _read(root, name, _AVAILABILITY_SCHEMA).to_pylist()
            }
    rows = [
        {"video_id": video, "status": status, "checked_at": earlier.get(video, now) if video in kept else now}
        for video, status in statuses.items()
    ]
    with root.write(name) as stream:
        write_table(pa.Table.from_pylist(rows, schema=_AVAILABILITY_SCHEMA), stream)


def check_availability(root: DataRoot, source: str, shard: str) -> None:
    """Raise DataError if the availability of a shard is missing, DamagedError if it cannot be read."""
    _read(root, f"{AVAILABILITY}/{source}/{shard}.parquet", _AVAILABILITY_SCHEMA)


def read_availability(root: DataRoot, source: str) -> pl.DataFrame:
    """video_id, status, checked_at of a source's videos. Raises DataError if none of its shards was fetched."""
    import polars as pl

    names = [f"{AVAILABILITY}/{source}/{name}" for name in root.list_files(f"{AVAILABILITY}/{source}")]
    if not names:
        raise DataError(
            f"availability: {root.url}/{AVAILABILITY}/{source} is not there; run `hapvr download` for the source "
            f"{source!r}, or choose another evaluation.policy than frozen"
        )
    return pl.DataFrame(pa.concat_tables([_read(root, name, _AVAILABILITY_SCHEMA) for name in names]))


def available_videos(table: pl.DataFrame) -> frozenset[str]:
    """Ids with status ok; all ids of a table without a column `status`."""
    chosen = table.filter(table["status"] == STATUS_OK) if "status" in table.columns else table
    return frozenset(chosen["video_id"].to_list())


def _read(root: DataRoot, name: str, schema: pa.Schema) -> pa.Table:
    hint = "run `hapvr download` again" if name.startswith(AVAILABILITY) else "restore it from a copy"
    with root.open(name) as file, root.corruption_errors(name, hint=hint):
        table = read_table(file)
        check_columns(table, schema)
        return table.select(schema.names).cast(schema)


def _name(shard: str) -> str:
    return f"{MANIFEST_STAGE}/{shard}/rows.parquet"
