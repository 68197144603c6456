"""Makes damaged files of a data root again, by the stages that wrote them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hapvr.errors import DataError, HapvrError
from hapvr.features.whitening import STAGE as WHITENING
from hapvr.progress import Progress, no_progress
from hapvr.search.current import FOLDER, model_place, serving_index
from hapvr.stages.derived_files import DERIVED, DESCRIPTORS, GROUPS, MARKS, OUTBOX
from hapvr.stages.duplicates import PAIRS_STAGE, make_duplicate_groups, make_duplicate_pairs
from hapvr.stages.features import make_features
from hapvr.stages.frames import make_frames
from hapvr.stages.project import Project
from hapvr.stages.search_index import update_index
from hapvr.stages.search_model import search_model
from hapvr.stages.searcher import Searcher
from hapvr.stages.verification import FileCheck, check_place
from hapvr.stages.videos import make_videos
from hapvr.stages.views import make_pseudo_labels, make_training_views
from hapvr.stages.watch_lists import STAGE as WATCH_STAGE
from hapvr.stages.watch_lists import make_watch_matches
from hapvr.stages.whitening import make_whitening
from hapvr.storage.availability import FOLDER as AVAILABILITY
from hapvr.storage.features import STAGE as FEATURES
from hapvr.storage.frames import STAGE as FRAMES
from hapvr.storage.manifest import MANIFEST_STAGE, VIDEOS_STAGE, read_manifest, shard_keys, training_shard_keys
from hapvr.storage.shards import Shard
from hapvr.storage.views import EMBEDDINGS_STAGE, LABELS_STAGE, VIEWS_STAGE

STAGES = {
    VIDEOS_STAGE: make_videos,
    FRAMES: make_frames,
    FEATURES: make_features,
    VIEWS_STAGE: make_training_views,
    EMBEDDINGS_STAGE: make_pseudo_labels,
    LABELS_STAGE: make_pseudo_labels,
}
"""What makes a shard of each stage again."""


def repair(project: Project, checks: Sequence[FileCheck], *, progress: Progress = no_progress) -> list[FileCheck]:
    """Make again what is damaged or unfinished, in the order of the chain; returns all checks, with what came of it.

    Nothing that is well is touched. The manifest, marks, the outbox and imported files cannot be made from the videos: they
    stay damaged, and their message says what to do.
    """
    order = [VIDEOS_STAGE, FRAMES, WHITENING, *STAGES, AVAILABILITY, MANIFEST_STAGE, DESCRIPTORS, *DERIVED]
    broken = [check for check in checks if check.state != "ok"]
    results: dict[FileCheck, FileCheck] = {}
    for check in sorted(broken, key=lambda check: order.index(_kind(check))):
        results[check] = _repair(project, check)
        progress(len(results), len(broken))
    return [results.get(check, check) for check in checks]


def _kind(check: FileCheck) -> str:
    return DESCRIPTORS if check.stage.startswith(DESCRIPTORS) else check.stage


def _repair(project: Project, check: FileCheck) -> FileCheck:
    try:
        _make_again(project, check)
    except HapvrError as error:
        return replace(check, message=f"{check.message}. It could not be made again: {error}")
    found = check_place(project.root, check.stage, check.shard)
    return replace(found, state="repaired", message=check.message) if found.state == "ok" else found


def _derive_again(project: Project, check: FileCheck) -> None:
    """Search, duplicates and watch lists anew, by the model that answers searches, or the champion where that is unknown."""
    root, key = project.root, check.shard
    if check.stage in (MARKS, OUTBOX):
        raise DataError("restore it from a copy; it is the only record of what people said and of what was sent")
    serving = serving_index(root)
    if check.stage == FOLDER or check.stage.startswith(DESCRIPTORS):
        if check.stage != FOLDER:
            root.delete(f"{check.stage}/{key}/index.parquet")
            if serving is not None and check.stage != f"{model_place(serving.digest)}/descriptors":
                raise DataError("it is of an earlier model, and is made again when that one answers again")
        model = search_model(project, None if serving is None else serving.model)
        update_index(project, model, anew=check.stage == FOLDER)
        return
    searcher = Searcher.open(project)
    if check.stage in (PAIRS_STAGE, WATCH_STAGE) and key not in searcher.indexed:
        root.delete_folder(f"{check.stage}/{key}")  # of a shard that is no more
    elif check.stage == GROUPS:
        make_duplicate_groups(project, searcher, min_probability=project.config.search.duplicates.min_probability)
    elif check.stage == PAIRS_STAGE:
        make_duplicate_pairs(project, searcher, key)
    else:
        make_watch_matches(project, searcher, key)


def _make_again(project: Project, check: FileCheck) -> None:
    root, key = project.root, check.shard
    if check.stage == MANIFEST_STAGE:
        raise DataError("restore the manifest from a copy; it is the only record of its videos")
    if check.stage == WHITENING:
        make_whitening(project, training_shard_keys(read_manifest(root)))
    elif check.stage.startswith(DESCRIPTORS) or check.stage in DERIVED:
        _derive_again(project, check)
    elif check.stage == AVAILABILITY:
        make_videos(project, key.rpartition("/")[2])
    else:
        shard = Shard(root, check.stage, key)
        if key not in shard_keys(root):
            root.delete(shard.index_name)  # so that an import does not take it for finished
            raise DataError("it is no shard of the manifest; run `hapvr features import` again if it was imported")
        stage: Callable[[Project, str], object] = STAGES[check.stage]
        # A data file may be damaged in ways that a stage does not look for; without an index it is not taken over.
        root.delete(shard.index_name)
        stage(project, key)
