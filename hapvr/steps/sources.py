"""The sources of a configuration: the videos they offer, and whether that changed since."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.config import digest
from hapvr.demo.corpus import make_demo_corpus
from hapvr.demo.user_videos import read_scenes, split_user_videos
from hapvr.errors import DataError
from hapvr.progress import Progress, no_progress
from hapvr.provenance import file_sha256
from hapvr.steps.project import Project
from hapvr.video.settings import DemoCorpusSource, OwnVideosSource
from hapvr.video.sources import (
    ManifestEntry,
    entries_of_files,
    entries_of_youtube_ids,
    path_of_text,
    read_list,
    scan_folder,
)

CORPUS_FOLDER = "corpus"


@dataclass(frozen=True)
class ResolvedSource:
    """Videos of one source and split. num_ignored: files that are not videos by their name (README.md and the like)."""

    name: str
    split: str
    entries: tuple[ManifestEntry, ...]
    num_ignored: int = 0


def resolve_sources(project: Project, *, progress: Progress = no_progress) -> Iterator[ResolvedSource]:
    """Scan, read or generate all sources; generated ones that are already there are left alone. Raises DataError, ConfigError."""
    for source in project.config.sources:
        if source.kind == "folder":
            yield _folder(source.name, source.split, project.path(source.path))
        elif source.kind == "list":
            yield ResolvedSource(source.name, source.split, read_list(project.path(source.path), source=source.name))
        elif source.kind == "benchmark":
            yield ResolvedSource(source.name, "test", _benchmark_videos(source.name))
        else:
            yield from _labelled(project, source, progress)


@dataclass(frozen=True)
class SourceSnapshot:
    """What the sources hold at one moment.

    digest: changes when a video or row is added, removed or renamed. unsettled: files whose last write was a moment ago,
    so that they may still be being copied.
    """

    digest: str
    unsettled: tuple[Path, ...]


def snapshot_sources(project: Project, *, settle_s: float) -> SourceSnapshot:
    """Look at the sources without decoding anything.

    settle_s: a file that was written to in the last settle_s seconds is unsettled. A file whose time lies further than that
    in the future, as the clock was set back, counts as settled. Raises DataError for a source that is missing or empty.
    """
    state = {}
    unsettled: list[Path] = []
    now = time.time()
    for source in project.config.sources:
        if source.kind in ("folder", "own_videos"):
            entries = scan_folder(project.path(source.path), source=source.name).entries
            state[source.name] = hashlib.sha256("\0".join(entry.video_id for entry in entries).encode()).hexdigest()
            for entry in entries:
                path = path_of_text(entry.uri)
                if path.is_file() and abs(now - path.stat().st_mtime) < settle_s:
                    unsettled.append(Path(entry.uri))
        elif source.kind == "list":
            try:
                state[source.name] = file_sha256(project.path(source.path))
            except OSError as error:
                raise DataError(f"source {source.name}: {error}; set its path to a CSV or Parquet file") from error
        else:
            state[source.name] = digest(source)
    return SourceSnapshot(hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest(), tuple(unsettled))


def benchmark_folder(project: Project, name: str) -> Path | None:
    """The folder of a benchmark that a source of this project made; None if none did."""
    if project.root.local is None:
        return None
    folder = project.root.local_path(f"{CORPUS_FOLDER}/{name}")
    return folder if (folder / "benchmark.json").is_file() else None


def _labelled(
    project: Project, source: DemoCorpusSource | OwnVideosSource, progress: Progress
) -> Iterator[ResolvedSource]:
    folder = project.root.local_path(CORPUS_FOLDER)
    train = f"{source.name}-train"
    if isinstance(source, DemoCorpusSource):
        make_demo_corpus(folder, name=source.name, progress=progress)
        yield _folder(train, "train", folder / train / "videos")
    else:
        videos = project.path(source.path)
        scenes = None if source.scenes is None else read_scenes(project.path(source.scenes))
        files, _ = split_user_videos(videos, folder, source, scenes=scenes, progress=progress)
        yield ResolvedSource(train, "train", entries_of_files(files, root=videos, source=train))
    for part in ("validation", "test"):
        yield _folder(f"{source.name}-{part}", part, folder / f"{source.name}-{part}" / "videos")


def _benchmark_videos(name: str) -> tuple[ManifestEntry, ...]:
    try:
        return entries_of_youtube_ids(load_definition(name).video_ids, source=name)
    except DataError as error:
        raise DataError(
            f"{error}. A source of kind `benchmark` fetches shipped benchmarks of YouTube ids; of another one, put the "
            f"files into a folder and name a source of kind `folder` {name!r}"
        ) from error


def _folder(name: str, split: str, path: Path) -> ResolvedSource:
    scan = scan_folder(path, source=name)
    return ResolvedSource(name, split, scan.entries, scan.num_ignored)
