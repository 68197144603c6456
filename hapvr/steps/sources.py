"""What the sources of a configuration offer, and what the steps have recorded of their files."""

import os
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hapvr.data import manifest
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import (
    VIDEOS_STAGE,
    ManifestRow,
    read_manifest_shard,
    shard_keys,
    source_of,
)
from hapvr.data.shards import STATUS_OK, Shard
from hapvr.errors import DataError
from hapvr.files import digest_of
from hapvr.progress import Progress, no_progress
from hapvr.steps.project import Project
from hapvr.steps.source_listing import (
    Entries,
    SourceListing,
    not_forgotten,
    offer_digest,
    unsettled_files,
)
from hapvr.tables import TABLE_ERRORS, read_user_table
from hapvr.video.settings import FilesSource, NamedSource, OwnVideosSource, Source
from hapvr.video.sources import (
    entries_of_files,
    is_remote,
    list_entry,
    path_of_text,
    scan_folder,
    text_of_path,
)

CORPUS_FOLDER = "corpus"
TICK_PLACE = "watch/tick.json"
"""Records when the automation last looked at the sources."""
MISSING_STATE = " missing"
"""Ends the `file_state` of a missing file."""


@dataclass(frozen=True)
class OfferedVideos:
    """Videos that a source offers for one purpose."""

    source: str
    """as the manifest has it"""
    split: str
    entries: Entries


def resolve_sources(
    project: Project, listing: SourceListing | None = None, *, progress: Progress = no_progress
) -> Iterator[OfferedVideos]:
    """Read or generate all sources; existing generated ones are not touched. listing: one taken
    before; None: a new one, which warns of what is skipped.

    Raises: DataError, ConfigError.
    """
    if listing is None:
        listing = SourceListing(project, notices=True)
    for source in project.config.sources:
        if isinstance(source, NamedSource):
            yield from _named_videos(project, source, progress)
            continue

        entries = listing.videos_of(source)
        if entries is None:
            _warn_of_offline_files(source.name)
        elif isinstance(source, FilesSource):
            yield OfferedVideos(source.name, source.split, entries)
        elif entries:
            yield from _own_videos(project, source, listing, entries, progress)


def _warn_of_offline_files(source: str) -> None:
    warnings.warn(
        f"source {source}: none of its files is there; its videos stay as they are, and new ones "
        "are skipped, until their drive is back. If they are gone for good: `hapvr forget "
        f"--offline {source}`"
    )


def snapshot_sources(project: Project, *, settle_s: float) -> tuple[str, list[Path]]:
    """Look at the sources without decoding anything: `offer_digest`, and `unsettled_files`.

    Raises: DataError for a source that never had a video.
    """
    offered = SourceListing(project).offered()
    unsettled = unsettled_files(project, offered, settle_s=settle_s)
    return offer_digest(project, offered), unsettled


def _named_videos(
    project: Project, source: NamedSource, progress: Progress
) -> Iterator[OfferedVideos]:
    """The videos of a shipped benchmark, or of the generated corpus."""
    if source.kind == "benchmark":
        from hapvr.benchmark.definition import load_definition  # which folders do without

        video_ids = load_definition(source.name).video_ids
        entries = [list_entry(video_id, None, source=source.name) for video_id in video_ids]
        yield OfferedVideos(source.name, "test", tuple(entries))
        return

    from hapvr.demo.corpus import make_demo_corpus

    folder = project.root.local_path(CORPUS_FOLDER)
    make_demo_corpus(folder, name=source.name, progress=progress)
    splits = {"train": manifest.TRAIN, "validation": "validation", "test": "test"}
    for part, split in splits.items():
        yield _generated_videos(project, f"{source.name}-{part}", split)


def _generated_videos(project: Project, name: str, split: str) -> OfferedVideos:
    """The videos of a folder of generated ones, or of copies of held-out clips."""
    folder = project.root.local_path(CORPUS_FOLDER)
    for file in ("corpus.json", "benchmark.json"):
        project.root.note_made(f"{CORPUS_FOLDER}/{name}/{file}")

    return OfferedVideos(name, split, scan_folder(folder / name / "videos", source=name))


def _own_videos(
    project: Project,
    source: OwnVideosSource,
    listing: SourceListing,
    entries: Entries,
    progress: Progress,
) -> Iterator[OfferedVideos]:
    """A user's clips, for training and held out, and the benchmarks that are made from the latter.
    A clip keeps the role that it had first."""
    from hapvr.demo.clips_benchmark import split_user_videos

    folder = project.root.local_path(CORPUS_FOLDER)
    videos = project.path(source.path)
    train = f"{source.name}-train"
    held_out = f"{source.name}-held-out"
    trained = {row.uri for row in listing.rows(train)}
    held = {row.uri for row in listing.rows(held_out)}
    train_files, held_files = split_user_videos(
        videos,
        folder,
        source,
        entries=not_forgotten(project.root, entries),
        scenes=source_scenes(project, source),
        trained=trained,
        progress=progress,
    )
    train_files = [file for file in train_files if text_of_path(file) not in held]
    held_files = [file for file in held_files if text_of_path(file) not in trained]
    for name, split, files in (
        (train, manifest.TRAIN, train_files),
        (held_out, "test", held_files),
    ):
        yield OfferedVideos(name, split, entries_of_files(files, root=videos, source=name))

    for part in ("validation", "test"):
        yield _generated_videos(project, f"{source.name}-{part}", manifest.GENERATED)


def inspected_videos(root: DataRoot, shards: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Shard and row of each video of these shards that the step `videos` has read, failed ones
    too."""
    for key in shards:
        index = Shard(root, VIDEOS_STAGE, key).find()
        if index is not None:
            yield from ((key, row) for row in index.rows())


def lost_files(project: Project) -> dict[str, tuple[int, int]]:
    """Source -> how many of the videos that could be read have lost their file, and how many there
    are."""
    num_lost = Counter[str]()
    num_usable = Counter[str]()
    for key, row in inspected_videos(project.root, shard_keys(project.root)):
        if row["status"] == STATUS_OK:
            source = source_of(key)
            num_usable[source] += 1
            num_lost[source] += not os.path.exists(path_of_text(row["path"]))

    return {source: (num_lost[source], usable) for source, usable in num_usable.items()}


def changed_shards(project: Project) -> dict[str, str]:
    """Shards with a file that is not the one that the step `videos` read, each with a digest of its
    present files and of the hour, so that failures are tried again an hour later. A file that is
    gone has not changed."""
    hour = time.time() // 3600
    changed = {}
    for key in shard_keys(project.root):
        index = Shard(project.root, VIDEOS_STAGE, key).find()
        inputs = {} if index is None else index.provenance.inputs
        states = {row.video_id: file_state(row) for row in read_manifest_shard(project.root, key)}
        if any(
            inputs.get(video_id, state) != state and not state.endswith(MISSING_STATE)
            for video_id, state in states.items()
        ):
            changed[key] = digest_of([states, hour])

    return changed


def source_scenes(project: Project, source: Source) -> dict[str, str]:
    """The scenes of a source's clips, by path below its folder, from a CSV file with the columns
    `file` and `scene`; clips that it does not list are skipped. Raises DataError naming the
    file."""
    import polars as pl

    if not isinstance(source, OwnVideosSource) or source.scenes is None:
        return {}
    path = project.path(source.scenes)
    try:
        table = read_user_table(path).select("file", "scene")
    except (*TABLE_ERRORS, pl.exceptions.PolarsError) as error:
        raise DataError(
            f"own videos: {path} cannot be read as scenes ({str(error).splitlines()[0]}); "
            "expected a CSV file with the columns file (path below the folder of clips) and scene"
        ) from error

    return dict(table.drop_nulls().iter_rows())


def file_state(row: ManifestRow) -> str:
    """A text that tells whether a local file may have changed; remote files count as unchanged once
    fetched."""
    if is_remote(row.uri):
        return row.uri
    try:
        status = path_of_text(row.uri).stat()
    except OSError:
        return f"{row.uri}{MISSING_STATE}"

    return f"{row.uri} {status.st_size} {status.st_mtime_ns}"
