"""Whether the shards of a stage still are what was written. The asset check of every shard asks this, so it loads little."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from hapvr.errors import DamagedError, DataError
from hapvr.progress import Progress, no_progress
from hapvr.stages.videos import damaged_files
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.manifest import VIDEOS_STAGE
from hapvr.storage.shards import STATUS_OK, Shard

State = Literal["ok", "damaged", "unfinished", "repaired"]


@dataclass(frozen=True)
class FileCheck:
    """What was found of one shard of a stage, or of what has no shards (shard "").

    num_ok, num_failed: videos of the shard. message: what is wrong and what to do; "" where all is well.
    """

    stage: str
    shard: str
    state: State
    num_ok: int = 0
    num_failed: int = 0
    message: str = ""


def verify_shards(
    root: DataRoot, stage: str, keys: Iterable[str] | None = None, *, progress: Progress = no_progress
) -> list[FileCheck]:
    """Compare each data file of a stage with the SHA-256 in its index. keys: None for every shard there is.

    A shard without an index was interrupted: it is `unfinished`, and the next run makes it again. Raises DataError
    where there is no shard at all.
    """
    chosen = root.list_folders(stage) if keys is None else list(keys)
    if not chosen:
        raise DataError(f"verify: no shards below {root.url}/{stage}; is that the data root?")
    checks = []
    for key in chosen:
        checks.append(check_shard(Shard(root, stage, key)))
        progress(len(checks), len(chosen))
    return checks


def check_shard(shard: Shard, *, read_videos: bool = True) -> FileCheck:
    """Compare the data file of a shard with its index. read_videos: of a shard of videos, compare the files as well."""
    try:
        check = _check_data(shard)
        if shard.stage == VIDEOS_STAGE and check.state == "ok" and read_videos:
            _check_videos(shard)
    except (DataError, OSError) as error:  # the disk itself may refuse to give a file back
        return FileCheck(shard.stage, shard.key, "damaged", message=str(error))
    return check


def _check_data(shard: Shard) -> FileCheck:
    if not shard.root.exists(shard.index_name):
        message = f"{shard.index_name} is not there; run the stage again"
        return FileCheck(shard.stage, shard.key, "unfinished", message=message)
    shard.require({})
    wanted, index = shard.data_digest(), shard.index()
    if wanted and (found := shard.root.sha256(shard.data_name)) != wanted:
        raise DamagedError(
            f"{shard.data_name} has SHA-256 {found[:16]}..., its index says {wanted[:16]}...; {shard.remedy}"
        )
    num_ok = int((index["status"] == STATUS_OK).sum())
    return FileCheck(shard.stage, shard.key, "ok", num_ok, len(index) - num_ok)


def _check_videos(shard: Shard) -> None:
    damaged = damaged_files(shard.root, shard.key)
    if damaged:
        others = f" and {len(damaged) - 1} others" if len(damaged) > 1 else ""
        raise DamagedError(f"{damaged[0]}{others} changed since it was fetched or made; {shard.remedy}")
