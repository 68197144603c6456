"""Which videos of a source could be had: `availability/<source>/<shard>.parquet`, a row per video of the shard."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from datetime import UTC, datetime

import polars as pl
import pyarrow as pa

from hapvr.errors import DamagedError, DataError
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.shards import STATUS_OK
from hapvr.tables import check_columns, read_table, write_table

FOLDER = "availability"
_SCHEMA = pa.schema(
    [
        pa.field("video_id", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("checked_at", pa.timestamp("s", tz="UTC"), nullable=False),
    ]
)


def write_availability(
    root: DataRoot, source: str, shard: str, statuses: Mapping[str, str], *, kept: frozenset[str] = frozenset()
) -> None:
    """Record what became of a shard's videos. statuses: video id -> status; kept: videos not looked at this time."""
    name = f"{FOLDER}/{source}/{shard}.parquet"
    now = datetime.now(UTC).replace(microsecond=0)
    earlier = {}
    if kept and root.exists(name):
        try:
            earlier = {row["video_id"]: row["checked_at"] for row in _read(root, name).iter_rows(named=True)}
        except DamagedError as error:
            warnings.warn(f"{error}. It is made anew", stacklevel=2)
    rows = [
        {"video_id": video, "status": status, "checked_at": earlier.get(video, now) if video in kept else now}
        for video, status in statuses.items()
    ]
    with root.write(name) as stream:
        write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), stream)


def has_availability(root: DataRoot, source: str, shard: str) -> bool:
    """Whether the availability of a shard is recorded and can be read; a damaged file counts as none, with a warning."""
    if not root.exists(f"{FOLDER}/{source}/{shard}.parquet"):
        return False
    try:
        check_availability(root, source, shard)
    except DamagedError as error:
        warnings.warn(f"{error}. It counts as missing", stacklevel=2)
        return False
    return True


def check_availability(root: DataRoot, source: str, shard: str) -> None:
    """Raise DamagedError if the availability of a shard cannot be read."""
    _read(root, f"{FOLDER}/{source}/{shard}.parquet")


def read_availability(root: DataRoot, source: str) -> pl.DataFrame:
    """video_id, status, checked_at of a source's videos. Raises DataError if none of its shards was fetched."""
    names = root.list_files(f"{FOLDER}/{source}")
    if not names:
        raise DataError(
            f"availability: {root.url}/{FOLDER}/{source} is not there; run `hapvr download` for the source {source!r}, or "
            f"choose another evaluation.policy than frozen"
        )
    return pl.concat([_read(root, f"{FOLDER}/{source}/{name}") for name in names])


def available_videos(table: pl.DataFrame) -> frozenset[str]:
    """Ids with status ok; all ids of a table without a column `status`."""
    chosen = table.filter(pl.col("status") == STATUS_OK) if "status" in table.columns else table
    return frozenset(chosen["video_id"].to_list())


def _read(root: DataRoot, name: str) -> pl.DataFrame:
    with root.open(name) as file, root.naming_damage(name, remedy="run `hapvr download` again"):
        table = read_table(file)
        check_columns(table, [_SCHEMA.field("video_id"), _SCHEMA.field("status")])
        frame = pl.from_arrow(table.cast(_SCHEMA))
    assert isinstance(frame, pl.DataFrame)
    return frame
