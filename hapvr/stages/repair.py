"""Makes damaged files of a data root again, by the stages that wrote them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hapvr.benchmark.definitions.marks import MARKS as MARKED
from hapvr.errors import DataError, HapvrError
from hapvr.features.whitening import STAGE as WHITENING
from hapvr.progress import Progress, no_progress
from hapvr.search.current import FOLDER, model_place, serving_index
from hapvr.stages.derived_files import DERIVED, DESCRIPTORS, GROUPS, MARKS, OUTBOX
from hapvr.stages.duplicates import PAIRS_STAGE, make_duplicate_groups, make_duplicate_pairs
from hapvr.stages.features import make_features
from hapvr.stages.frames import make_frames
from hapvr.stages.marks_benchmark import marked_pairs, write_marks_benchmark
from hapvr.stages.project import Project
from hapvr.stages.run_files import RUN_STAGES, repair_run
from hapvr.stages.search_index import update_index
from hapvr.stages.search_model import search_model
from hapvr.stages.searcher import Searcher
from hapvr.stages.shard_check import FileCheck
from hapvr.stages.sources import CORPUS_FOLDER, resolve_sources
from hapvr.stages.verification import check_place
from hapvr.stages.videos import damaged_files, make_videos, set_damaged_aside
from hapvr.stages.views import make_pseudo_labels, make_training_views
from hapvr.stages.watch_lists import STAGE as WATCH_STAGE
from hapvr.stages.watch_lists import make_watch_matches
from hapvr.stages.whitening import make_whitening
from hapvr.storage.features import STAGE as FEATURES
from hapvr.storage.frames import STAGE as FRAMES
from hapvr.storage.manifest import (
    AVAILABILITY,
    MANIFEST_STAGE,
    VIDEOS_STAGE,
    read_manifest,
    shard_keys,
    training_shard_keys,
)
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

    Nothing that is well is touched. The manifest, marks, the outbox, models and imported files cannot be made from the
    videos: they stay damaged, and their message says what to do.
    """
    order = [
        CORPUS_FOLDER,
        VIDEOS_STAGE,
        FRAMES,
        WHITENING,
        *STAGES,
        AVAILABILITY,
        MANIFEST_STAGE,
        *RUN_STAGES,
        DESCRIPTORS,
        *DERIVED,
    ]
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
    elif check.stage in RUN_STAGES:
        repair_run(project, check.stage, key)
    elif check.stage == CORPUS_FOLDER:
        _generate_again(project, key)
    elif check.stage == AVAILABILITY:
        make_videos(project, key.rpartition("/")[2])
    else:
        shard = Shard(root, check.stage, key)
        if key not in shard_keys(root):
            root.delete(shard.index_name)  # so that an import does not take it for finished
            raise DataError("it is no shard of the manifest; run `hapvr features import` again if it was imported")
        if check.stage == VIDEOS_STAGE:
            _remove_damaged_files(project, key)
        stage: Callable[[Project, str], object] = STAGES[check.stage]
        # A data file may be damaged in ways that a stage does not look for; without an index it is not taken over.
        root.delete(shard.index_name)
        stage(project, key)


def _remove_damaged_files(project: Project, key: str) -> None:
    """Remove files that were fetched or generated and have changed since, and generate the latter again."""
    assert project.root.local is not None
    corpus = project.root.local / CORPUS_FOLDER
    damaged = damaged_files(project.root, key)
    generated = {path.relative_to(corpus).parts[0] for path in damaged if path.is_relative_to(corpus)}
    for name in generated:
        _require_source(project, name)
    set_damaged_aside(project.root, key)
    for name in generated:
        _generate_again(project, name)


def _generate_again(project: Project, name: str) -> None:
    """Make what is missing of a folder of generated videos, and the benchmark in it anew; or that of the marks."""
    if name == MARKED:
        write_marks_benchmark(project, marked_pairs(project))
        return
    _require_source(project, name)
    (project.root.local_path(f"{CORPUS_FOLDER}/{name}") / "benchmark.json").unlink(missing_ok=True)
    for _ in resolve_sources(project):
        pass


def _require_source(project: Project, name: str) -> None:
    """Raise DataError unless the configuration generates this folder."""
    sources = [source.name for source in project.config.sources if source.kind in ("demo_corpus", "own_videos")]
    if name.rpartition("-")[0] not in sources:
        raise DataError(f"no source of the configuration makes {name}; name the configuration that does, or remove it")
