"""Whether finished shards still are what was written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import polars as pl
import pyarrow as pa

from hapvr.errors import DataError
from hapvr.progress import Progress, no_progress
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.shards import STATUS_OK, Shard

State = Literal["ok", "damaged", "unfinished"]


@dataclass(frozen=True)
class ShardCheck:
    """What was found of a shard. message: what is wrong and what to do; "" where it is ok."""

    shard: str
    state: State
    num_ok: int = 0
    num_failed: int = 0
    message: str = ""


def verify_shards(
    root: DataRoot, stage: str, keys: Iterable[str] | None = None, *, progress: Progress = no_progress
) -> list[ShardCheck]:
    """Compare each data file of a stage with the SHA-256 in its index. keys: None for every shard there is.

    A shard without an index was interrupted: it is `unfinished`, and the next run makes it again. Raises DataError
    where there is no shard at all.
    """
    chosen = root.list_folders(stage) if keys is None else list(keys)
    if not chosen:
        raise DataError(f"verify: no shards below {root.url}/{stage}; is that the data root?")
    checks = []
    for key in chosen:
        checks.append(_check(Shard(root, stage, key)))
        progress(len(checks), len(chosen))
    return checks


def _check(shard: Shard) -> ShardCheck:
    if not shard.root.exists(shard.index_name):
        return ShardCheck(shard.key, "unfinished", message=f"{shard.index_name} is not there; run the stage again")
    try:
        wanted, index = shard.data_digest(), shard.index()
    except (pa.ArrowException, OSError) as error:
        return _damaged(shard, f"{shard.index_name} cannot be read: {error}")
    if not wanted and not shard.root.exists(shard.data_name):
        return _fine(shard, index)  # frames that are not stored
    try:
        found = shard.root.sha256(shard.data_name)
    except DataError:
        return _damaged(shard, f"{shard.data_name} is missing")
    if found != wanted:
        return _damaged(shard, f"{shard.data_name} has SHA-256 {found[:16]}..., its index says {wanted[:16]}...")
    return _fine(shard, index)


def _fine(shard: Shard, index: pl.DataFrame) -> ShardCheck:
    num_ok = int((index["status"] == STATUS_OK).sum())
    return ShardCheck(shard.key, "ok", num_ok, len(index) - num_ok)


def _damaged(shard: Shard, what: str) -> ShardCheck:
    again = f"delete {shard.index_name} and run the stage again"
    return ShardCheck(shard.key, "damaged", message=f"{what}; {again}")
