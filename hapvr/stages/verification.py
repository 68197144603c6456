"""Whether the files of a data root still are what was written, and how to make damaged ones again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hapvr.errors import DamagedError, DataError, HapvrError
from hapvr.features.whitening import PROVENANCE_NAME, load_whitening, whitening_provenance
from hapvr.progress import Progress, no_progress
from hapvr.stages.features import make_features
from hapvr.stages.frames import make_frames
from hapvr.stages.project import Project
from hapvr.stages.videos import make_videos
from hapvr.stages.views import make_pseudo_labels, make_training_views
from hapvr.stages.whitening import STAGE as WHITENING
from hapvr.stages.whitening import make_whitening
from hapvr.storage.availability import FOLDER as AVAILABILITY
from hapvr.storage.availability import check_availability
from hapvr.storage.features import STAGE as FEATURES
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.frames import STAGE as FRAMES
from hapvr.storage.manifest import (
    MANIFEST_STAGE,
    VIDEOS_STAGE,
    read_manifest,
    read_manifest_shard,
    shard_keys,
    training_shard_keys,
)
from hapvr.storage.shards import STATUS_OK, Shard
from hapvr.storage.views import EMBEDDINGS_STAGE, LABELS_STAGE, VIEWS_STAGE

State = Literal["ok", "damaged", "unfinished", "repaired"]

SHARD_STAGES = {
    VIDEOS_STAGE: make_videos,
    FRAMES: make_frames,
    FEATURES: make_features,
    VIEWS_STAGE: make_training_views,
    EMBEDDINGS_STAGE: make_pseudo_labels,
    LABELS_STAGE: make_pseudo_labels,
}
"""The stages that write shards, in the order of the chain, and what makes a shard of each again."""


@dataclass(frozen=True)
class FileCheck:
    """What was found of one shard of a stage, or of the whitening (shard "").

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
    return _check_all([(stage, key) for key in chosen], root, progress)


def verify_root(root: DataRoot, *, progress: Progress = no_progress) -> list[FileCheck]:
    """Check the manifest, the shards of all stages, the availability of videos and the whitening of a data root.

    Every byte of the shards is read. Raises DataError where there is nothing to check.
    """
    places = [(MANIFEST_STAGE, key) for key in shard_keys(root)]
    places += [(stage, key) for stage in SHARD_STAGES for key in root.list_folders(stage)]
    places += [
        (AVAILABILITY, f"{source}/{file.removesuffix('.parquet')}")
        for source in root.list_folders(AVAILABILITY)
        for file in root.list_files(f"{AVAILABILITY}/{source}")
    ]
    if root.exists(PROVENANCE_NAME):
        places.append((WHITENING, ""))
    if not places:
        raise DataError(f"verify: {root.url} holds nothing that a stage wrote; is that the data root?")
    return _check_all(places, root, progress)


def repair(project: Project, checks: Sequence[FileCheck], *, progress: Progress = no_progress) -> list[FileCheck]:
    """Make again what is damaged or unfinished, in the order of the chain; returns all checks, with what came of it.

    Nothing that is well is touched. The manifest and imported files cannot be made from the videos: they stay damaged,
    and their message says what to do.
    """
    order = [VIDEOS_STAGE, FRAMES, WHITENING, *SHARD_STAGES, AVAILABILITY]
    broken = [check for check in checks if check.state != "ok"]
    results: dict[FileCheck, FileCheck] = {}
    for check in sorted(broken, key=lambda check: order.index(check.stage) if check.stage in order else len(order)):
        results[check] = _repair(project, check)
        progress(len(results), len(broken))
    return [results.get(check, check) for check in checks]


def _check_all(places: Sequence[tuple[str, str]], root: DataRoot, progress: Progress) -> list[FileCheck]:
    checks = []
    for stage, key in places:
        checks.append(_check(root, stage, key))
        progress(len(checks), len(places))
    return checks


def _check(root: DataRoot, stage: str, key: str) -> FileCheck:
    try:
        if stage in SHARD_STAGES:
            return _check_shard(Shard(root, stage, key))
        if stage == MANIFEST_STAGE:
            return FileCheck(stage, key, "ok", len(read_manifest_shard(root, key)))
        if stage == AVAILABILITY:
            check_availability(root, *key.split("/"))
        else:
            whitening_provenance(root)
            load_whitening(root)
    except DamagedError as error:
        return FileCheck(stage, key, "damaged", message=str(error))
    return FileCheck(stage, key, "ok")


def _check_shard(shard: Shard) -> FileCheck:
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


def _repair(project: Project, check: FileCheck) -> FileCheck:
    try:
        _make_again(project, check)
    except HapvrError as error:
        return replace(check, message=f"{check.message}. It could not be made again: {error}")
    found = _check(project.root, check.stage, check.shard)
    return replace(found, state="repaired", message=check.message) if found.state == "ok" else found


def _make_again(project: Project, check: FileCheck) -> None:
    root, key = project.root, check.shard
    if check.stage == MANIFEST_STAGE:
        raise DataError("restore the manifest from a copy; it is the only record of its videos")
    if check.stage == WHITENING:
        make_whitening(project, training_shard_keys(read_manifest(root)))
    elif check.stage == AVAILABILITY:
        make_videos(project, key.rpartition("/")[2])
    else:
        shard = Shard(root, check.stage, key)
        if key not in shard_keys(root):
            root.delete(shard.index_name)  # so that an import does not take it for finished
            raise DataError("it is no shard of the manifest; run `hapvr features import` again if it was imported")
        stage: Callable[[Project, str], object] = SHARD_STAGES[check.stage]
        # A data file may be damaged in ways that a stage does not look for; without an index it is not taken over.
        root.delete(shard.index_name)
        stage(project, key)
