"""Videos whose files have moved keep their ids: the paths of the manifest follow."""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hapvr.data import manifest
from hapvr.data.manifest import VIDEOS_STAGE, ManifestRow
from hapvr.data.shard_build import IndexRow
from hapvr.data.shards import Shard
from hapvr.files import file_sha256
from hapvr.steps.project import Project
from hapvr.steps.source_listing import (
    SourceListing,
    not_forgotten,
    possible_ids,
    source_folders,
    source_names,
)
from hapvr.steps.sources import file_state, inspected_videos
from hapvr.video.sources import ManifestEntry, is_remote, path_of_text


@dataclass(frozen=True)
class _LostVideos:
    """Videos whose files are not where the manifest says."""

    rows: dict[str, ManifestRow]
    """by id; a video leaves when its file is found"""
    contents: Mapping[str, IndexRow]
    """by id, the record of the step `videos`, of those that it has read"""
    by_size: Mapping[int, Sequence[str]]
    """ids by number of bytes"""
    away: Mapping[str, bool]
    """source -> whether its drive is offline, so that its files did not move"""

    def ids_by_name(self, entry: ManifestEntry) -> list[str]:
        """The videos with an id that the file would get."""
        return [video_id for video_id in possible_ids(entry) if video_id in self.rows]

    def ids_by_content(self, entry: ManifestEntry) -> list[str]:
        """The videos that have the bytes of a file, and may have moved there."""
        path = path_of_text(entry.uri)
        if not os.path.isfile(path):
            return []
        same_size = self.by_size.get(os.path.getsize(path), ())
        lost = [video_id for video_id in same_size if video_id in self.rows]
        if not lost:
            return []
        sha256 = ""
        with suppress(OSError):  # one that cannot be read is a row of the step `videos`
            sha256 = file_sha256(path)
        own_names = source_names(entry.video_id.partition("/")[0])
        return [
            video_id
            for video_id in lost
            if sha256 and self.contents[video_id]["sha256"] == sha256
            if self.rows[video_id].source in own_names or not self.away[self.rows[video_id].source]
        ]


def follow_moves(project: Project, listing: SourceListing) -> None:
    """A known video whose file is gone, but whose bytes are in a new file, keeps its id, and its
    path follows. So does a video whose source is at another place. A file of a drive that is
    offline did not move, whatever is elsewhere."""
    files = listing.local_files()
    known_uris = {row.uri for row in listing.rows()}
    new_files = [
        entry for entry in not_forgotten(project.root, files) if entry.uri not in known_uris
    ]
    if not new_files:
        return
    lost = _find_lost(project, listing, files, new_files)
    # A file gets its id before a copy of it does.
    for entry in sorted(new_files, key=lambda entry: not lost.ids_by_name(entry)):
        by_name = lost.ids_by_name(entry)
        by_content = lost.ids_by_content(entry)
        both = [video_id for video_id in by_content if video_id in by_name]
        candidates = [*both, *by_content, *by_name]
        if not candidates:
            continue
        row = lost.rows.pop(candidates[0])
        moved = replace(row, uri=entry.uri)
        listing.replace(row, moved)
        if row.video_id in by_content:
            _record_place(project.shard(VIDEOS_STAGE, row.shard), moved)


def _find_lost(
    project: Project,
    listing: SourceListing,
    files: Sequence[ManifestEntry],
    new_files: Sequence[ManifestEntry],
) -> _LostVideos:
    """The videos whose files may be among the new ones. files: all files of the folders."""
    folders = source_folders(project)
    listed = {entry.uri for entry in files}
    # Where case does not count, a path that differs only in case is the same file.
    respelt = {entry.uri.casefold() for entry in new_files}
    rows = {}
    for row in listing.rows():
        if is_remote(row.uri):
            continue
        is_respelt = row.uri not in listed and row.uri.casefold() in respelt
        if is_respelt or not _is_in_place(row, folders):
            rows[row.video_id] = row

    shards = {row.shard for row in rows.values()}
    contents = {row["video_id"]: row for _, row in inspected_videos(project.root, shards)}
    by_size = defaultdict[int, list[str]](list)
    for video_id in sorted(rows.keys() & contents.keys()):
        by_size[contents[video_id]["num_bytes"]].append(video_id)
    away = {source: listing.is_away(source) for source in {row.source for row in rows.values()}}
    return _LostVideos(rows, contents, by_size, away)


def _is_in_place(row: ManifestRow, folders: Mapping[str, Path]) -> bool:
    """Whether a file exists below the folder of its source."""
    path = path_of_text(row.uri)
    return os.path.exists(path) and path.is_relative_to(folders.get(row.source, path))


def _record_place(shard: Shard, moved: ManifestRow) -> None:
    """Record where a file is now, as the step `videos` would if it read the file again."""
    with shard.lock():
        index = shard.read()
        rows = index.rows()
        for row in rows:
            if row["video_id"] == moved.video_id:
                row["path"] = moved.uri

        inputs = {**index.provenance.inputs, moved.video_id: file_state(moved)}
        provenance = replace(index.provenance, inputs=inputs)
        shard.write_index(rows, provenance=provenance, fields=manifest.VIDEO_COLUMNS)
