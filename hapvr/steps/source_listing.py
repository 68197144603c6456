"""One listing of all sources for a whole run: what they hold, and what the manifest has of them."""

import os
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from glob import escape, iglob
from pathlib import Path
from typing import Literal

from hapvr.config import digest
from hapvr.data import manifest
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import ManifestRow, read_manifest_shard, shard_keys, source_of
from hapvr.errors import DataError
from hapvr.files import digest_of
from hapvr.steps.project import Project
from hapvr.video.settings import PARTS, FilesSource, NamedSource, OwnVideosSource
from hapvr.video.sources import (
    ManifestEntry,
    is_remote,
    path_of_text,
    read_list,
    scan_folder,
    text_of_path,
)

LOCAL: tuple[Literal["folder"], Literal["own_videos"]] = ("folder", "own_videos")
"""Kinds of sources whose files are the user's."""

ReadSource = FilesSource | OwnVideosSource
"""A source that names a folder or a list; others are generated or ship with the package."""
Entries = tuple[ManifestEntry, ...]
OfferedEntries = Mapping[str, Entries | None]
"""Entries by name of the source; None where its files are offline."""


class SourceListing:
    """What the sources hold, each scanned once, and the rows of the manifest, read once.

    Whoever changes the manifest does so with `write`, so that the listing stays true.
    """

    def __init__(self, project: Project, *, notices: bool = False) -> None:
        """notices: whether scans warn of what they skip; once per run is enough."""
        self._project = project
        self._notices = notices
        self._scans: dict[str, Entries | DataError] = {}
        root = project.root
        self._rows = {key: read_manifest_shard(root, key) for key in shard_keys(root)}

    def shards(self) -> list[str]:
        """All shards of the manifest, sorted."""
        return sorted(self._rows)

    def rows(self, *sources: str) -> list[ManifestRow]:
        """The rows of these sources, by shard; of all sources if none is named."""
        return [
            row
            for key in self.shards()
            if not sources or source_of(key) in sources
            for row in self._rows[key]
        ]

    def write(self, shard: str, rows: Sequence[ManifestRow]) -> None:
        """Write a shard of the manifest, new or changed."""
        manifest.write_manifest_shard(self._project.root, shard, rows)
        self._rows[shard] = list(rows)

    def replace(self, row: ManifestRow, replacement: ManifestRow) -> None:
        """Replace a row of a video by another."""
        rows = self._rows[row.shard]
        self.write(row.shard, [replacement if each == row else each for each in rows])

    def is_away(self, name: str) -> bool:
        """As the function `is_away`, by the current rows."""
        return _are_away(self._project, name, self.rows(*source_names(name)))

    def local_files(self) -> list[ManifestEntry]:
        """The files of all folders that can be scanned, including those whose known files are
        offline."""
        entries: list[ManifestEntry] = []
        for source in self._project.config.sources:
            if source.kind in LOCAL:
                scan = self._scan(source)
                if not isinstance(scan, DataError):
                    entries += scan

        return entries

    def offered(self) -> OfferedEntries:
        """`videos_of` each source that names a folder or a list, by name."""
        return {
            source.name: self.videos_of(source)
            for source in self._project.config.sources
            if not isinstance(source, NamedSource)
        }

    def videos_of(self, source: ReadSource) -> Entries | None:
        """The videos of a source; None where its files are offline, () with a warning where it
        cannot be read.

        Raises: DataError where it cannot be read and never had a video.
        """
        if source.kind in LOCAL and self.is_away(source.name):
            return None
        scan = self._scan(source)
        if not isinstance(scan, DataError):
            return scan
        if {source_of(key) for key in self._rows}.isdisjoint(source_names(source.name)):
            raise scan
        if not self._is_set_aside(source.name):
            warnings.warn(f"{scan}. Correct that, or remove it from the sources")
        return ()

    def _scan(self, source: ReadSource) -> Entries | DataError:
        """The videos of a source, or why it cannot be read."""
        if source.name not in self._scans:
            try:
                self._scans[source.name] = _read_source(self._project, source, self._notices)
            except DataError as error:
                self._scans[source.name] = error

        return self._scans[source.name]

    def _is_set_aside(self, name: str) -> bool:
        """Whether plans have moved all missing files of a source."""
        planned = manifest.planned_moves(self._project.root)
        uris = [row.uri for row in self.rows(*source_names(name))]
        gone = [uri for uri in uris if not os.path.exists(path_of_text(uri))]
        return bool(gone) and all(manifest.name_digest(uri) in planned for uri in gone)


def _read_source(project: Project, source: ReadSource, notices: bool) -> Entries:
    path = project.path(source.path)
    if source.kind == "list":
        return read_list(path, source=source.name)
    return scan_folder(path, source=source.name, exclude=source.exclude, notices=notices)


def source_names(name: str) -> list[str]:
    """The names that a source of the configuration may have in the manifest."""
    return [f"{name}{part}" for part in PARTS]


def offer_digest(project: Project, offered: OfferedEntries) -> str:
    """A digest that changes when a video or row of a source is added, removed or renamed."""
    state: dict[str, object] = {}
    for source in project.config.sources:
        entries = offered.get(source.name)
        if isinstance(source, NamedSource):
            state[source.name] = digest(source)
        elif entries is None:
            state[source.name] = "away"
        elif source.kind == "list":
            state[source.name] = [(entry.video_id, entry.uri) for entry in entries]
        else:
            state[source.name] = [entry.video_id for entry in entries]

    return digest_of(state)


def unsettled_files(project: Project, offered: OfferedEntries, *, settle_s: float) -> list[Path]:
    """Files that may still be being copied, since they were written to in the last settle_s
    seconds. A file whose time is more than that in the future, because the clock was set back, is
    not one."""
    now = time.time()
    unsettled = []
    for source in project.config.sources:
        if source.kind not in LOCAL:
            continue
        for entry in offered[source.name] or ():
            path = path_of_text(entry.uri)
            with suppress(OSError):  # it may be gone by now
                if abs(now - path.stat().st_mtime) < settle_s:
                    unsettled.append(path)

    return unsettled


def source_folders(project: Project) -> dict[str, Path]:
    """Name of a source in the manifest -> its folder, as the manifest has paths."""
    folders: dict[str, Path] = {}
    for source in project.config.sources:
        if source.kind in LOCAL:
            folder = path_of_text(text_of_path(project.path(source.path)))
            folders |= dict.fromkeys(source_names(source.name), folder)

    return folders


def is_away(project: Project, name: str) -> bool:
    """Whether a source had files that are now all gone, other than by moving elsewhere or being set
    aside by a plan. name: of the source in the manifest or in the configuration."""
    names = source_names(name)
    keys = [key for key in shard_keys(project.root) if source_of(key) in names]
    # For a drive this is asked for each shard, and most answers need only the first rows.
    rows = (row for key in keys for row in read_manifest_shard(project.root, key))
    return _are_away(project, name, rows)


def _are_away(project: Project, name: str, rows: Iterable[ManifestRow]) -> bool:
    """As `is_away`, for a source with these rows."""
    planned = manifest.planned_moves(project.root)
    folder = source_folders(project).get(name)
    is_empty = folder is not None and not any(iglob(f"{escape(str(folder))}/*"))
    had_files = False
    for row in rows:
        if is_remote(row.uri) or manifest.name_digest(row.uri) in planned:
            continue
        path = path_of_text(row.uri)
        exists = os.path.exists(path)
        has_moved = exists and folder is not None and not path.is_relative_to(folder)
        if has_moved:
            continue
        if is_empty:
            return True
        if exists:
            return False
        had_files = True

    return had_files


def possible_ids(entry: ManifestEntry) -> list[str]:
    """The ids that the manifest may give a file that has none yet."""
    source, _, name = entry.video_id.partition("/")
    return [f"{part}/{name}" for part in source_names(source)]


def not_forgotten(root: DataRoot, entries: Iterable[ManifestEntry]) -> list[ManifestEntry]:
    """The entries of which neither name nor place was forgotten."""
    forgotten = manifest.forgotten_digests(root)
    kept = []
    for entry in entries:
        names = [entry.uri, *possible_ids(entry)]
        if forgotten.isdisjoint(map(manifest.name_digest, names)):
            kept.append(entry)

    return kept
