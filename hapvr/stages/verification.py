"""Whether all files of a data root still are what was written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.corpus.output import check_folder
from hapvr.errors import DataError
from hapvr.progress import Progress, no_progress
from hapvr.stages.derived_files import DERIVED, DESCRIPTORS, check_derived, derived_places
from hapvr.stages.shard_check import FileCheck, check_shard
from hapvr.stages.sources import CORPUS_FOLDER
from hapvr.storage.features import STAGE as FEATURES
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.frames import STAGE as FRAMES
from hapvr.storage.manifest import (
    AVAILABILITY,
    MANIFEST_STAGE,
    VIDEOS_STAGE,
    check_availability,
    read_manifest_shard,
    shard_keys,
)
from hapvr.storage.shards import Shard
from hapvr.storage.views import EMBEDDINGS_STAGE, LABELS_STAGE, VIEWS_STAGE

SHARD_STAGES = (VIDEOS_STAGE, FRAMES, FEATURES, VIEWS_STAGE, EMBEDDINGS_STAGE, LABELS_STAGE)
"""The stages that write shards, in the order of the chain."""


def verify_root(root: DataRoot, *, read_videos: bool = True, progress: Progress = no_progress) -> list[FileCheck]:
    """Check all that the stages wrote below a data root: videos, shards, models, scores, the index of searches and marks.

    Every byte is read; read_videos: those of videos, too. Raises DataError where there is nothing to check.
    """
    from hapvr.features.whitening import PROVENANCE_NAME, STAGE  # needs torch
    from hapvr.stages.run_files import run_places  # as well

    places = [(MANIFEST_STAGE, key) for key in shard_keys(root)]
    places += [(stage, key) for stage in SHARD_STAGES for key in root.list_folders(stage)]
    places += [
        (AVAILABILITY, f"{source}/{file.removesuffix('.parquet')}")
        for source in root.list_folders(AVAILABILITY)
        for file in root.list_files(f"{AVAILABILITY}/{source}")
    ]
    if root.exists(PROVENANCE_NAME):
        places.append((STAGE, ""))
    places += [(CORPUS_FOLDER, name) for name in root.list_folders(CORPUS_FOLDER)]
    places += run_places(root)
    places += derived_places(root)
    if not places:
        raise DataError(f"verify: {root.url} holds nothing that a stage wrote; is that the data root?")
    return _check_all(places, root, progress, read_videos=read_videos)


def _check_all(
    places: Sequence[tuple[str, str]], root: DataRoot, progress: Progress, *, read_videos: bool = True
) -> list[FileCheck]:
    checks = []
    for stage, key in places:
        checks.append(check_place(root, stage, key, read_videos=read_videos))
        progress(len(checks), len(places))
    return checks


def check_place(root: DataRoot, stage: str, key: str, *, read_videos: bool = True) -> FileCheck:
    """Check what a stage wrote under this key, which is that of a shard, or as `verify_root` reports it.

    read_videos: of a shard of videos, compare the files as well.
    """
    if stage in SHARD_STAGES or stage.startswith(DESCRIPTORS):
        return check_shard(Shard(root, stage, key), read_videos=read_videos)
    try:
        if stage == MANIFEST_STAGE:
            return FileCheck(stage, key, "ok", len(read_manifest_shard(root, key)))
        if stage == AVAILABILITY:
            check_availability(root, *key.split("/"))
        elif stage in DERIVED:
            check_derived(root, stage, key)
        elif stage == CORPUS_FOLDER:
            _check_generated(root.local_path(f"{CORPUS_FOLDER}/{key}"))
        else:
            _check_tensors(root, stage, key)
    except (DataError, OSError) as error:  # the disk itself may refuse to give a file back
        return FileCheck(stage, key, "damaged", message=str(error))
    return FileCheck(stage, key, "ok")


def _check_tensors(root: DataRoot, stage: str, key: str) -> None:
    """The whitening or what a training wrote: whoever reads these loads torch and MLflow, which takes seconds."""
    from hapvr.features.whitening import STAGE, load_whitening, whitening_provenance
    from hapvr.stages.run_files import check_run

    if stage == STAGE:
        whitening_provenance(root)
        load_whitening(root)
    else:
        check_run(root, stage, key)


def _check_generated(folder: Path) -> None:
    """A folder of generated videos, or of the benchmark of marks, which has none."""
    if (folder / "videos").is_dir():
        check_folder(folder)
    if (folder / "benchmark.json").is_file():
        load_definition(folder)
