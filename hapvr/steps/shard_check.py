"""Whether a shard still is what was written. The asset check of every shard asks this, so it loads little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hapvr.data.shards import STATUS_OK, Shard
from hapvr.errors import DamagedError, DataError

State = Literal["ok", "damaged", "unfinished", "repaired"]


@dataclass(frozen=True)
class FileCheck:
    """What was found of one thing that is stored.

    kind: of `hapvr.upkeep.KINDS`; key: of the shard, the run or the like, "" where there is only one. num_ok, num_failed:
    videos of a shard. message: the problem and what to do about it; "" if there is none.
    """

    kind: str
    key: str
    state: State
    num_ok: int = 0
    num_failed: int = 0
    message: str = ""


def check_shard(shard: Shard) -> FileCheck:
    """Compare the data file of a shard with the SHA-256 in its index."""
    if not shard.root.exists(shard.index_name):
        message = f"{shard.index_name} is not there; run the step again"
        return FileCheck(shard.stage, shard.key, "unfinished", message=message)
    try:
        shard.require({})
        wanted, rows = shard.data_digest(), shard.rows()
        if wanted and (found := shard.root.sha256(shard.data_name)) != wanted:
            raise DamagedError(
                f"{shard.data_name} has SHA-256 {found[:16]}..., its index says {wanted[:16]}...; {shard.hint}"
            )
    except (DataError, OSError) as error:  # the disk itself may refuse to give a file back
        return FileCheck(shard.stage, shard.key, "damaged", message=str(error))
    num_ok = sum(row["status"] == STATUS_OK for row in rows)
    return FileCheck(shard.stage, shard.key, "ok", num_ok, len(rows) - num_ok)
