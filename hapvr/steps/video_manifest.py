"""Step 1: which videos there are, in which shard (asset `video_manifest`)."""

import hashlib
import json
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from uuid import uuid4

from hapvr.data import manifest
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import VIDEOS_STAGE, ManifestRow, source_of
from hapvr.progress import Progress, no_progress
from hapvr.steps.moved_files import follow_moves
from hapvr.steps.project import Project
from hapvr.steps.source_listing import SourceListing, not_forgotten, offer_digest
from hapvr.steps.sources import OfferedVideos, resolve_sources
from hapvr.video.sources import ManifestEntry, is_remote


@dataclass(frozen=True)
class ManifestResult:
    """The manifest after the step."""

    shards: tuple[str, ...]
    """all keys, old and new"""
    new_shards: tuple[str, ...]
    digest: str
    """of all rows"""
    offer: str
    """digest of what the sources held, see `snapshot_sources`"""

    @property
    def done(self) -> bool:
        return bool(self.new_shards)


def make_manifest(project: Project, *, progress: Progress = no_progress) -> ManifestResult:
    """Append the videos that the sources offer and the manifest lacks, as new shards. In rows once
    written only the path changes, when a file has moved. One process at a time does this; others
    wait.

    Raises: as `manifest.require_shards` does.
    """
    root = project.root
    with root.lock(manifest.MANIFEST_STAGE):
        # Everything below uses this listing; a file that arrives meanwhile is noticed next time.
        listing = SourceListing(project, notices=True)
        offer = offer_digest(project, listing.offered())
        manifest.require_shards(root, root.list_folders(VIDEOS_STAGE))
        if not manifest.root_id(root):
            root.write_json(manifest.IDENTITY, {"id": uuid4().hex})

        follow_moves(project, listing)
        names = _Names(listing.rows())
        new_shards = []
        for offered in resolve_sources(project, listing, progress=progress):
            remembered = _remembered(root, offered)
            _warn_of_new_addresses(offered.source, remembered, names)
            entries = names.give(offered.entries, remembered)
            new_shards += _write_shards(project, listing, offered, entries)

        text = json.dumps([asdict(row) for row in listing.rows()])

    digest = hashlib.sha256(text.encode()).hexdigest()
    return ManifestResult(tuple(listing.shards()), tuple(new_shards), digest, offer)


class _Names:
    """The ids of the manifest and of the videos that are appended to it."""

    def __init__(self, rows: Iterable[ManifestRow]) -> None:
        self.uri_of = {row.video_id: row.uri for row in rows}
        self.uris = frozenset(self.uri_of.values())
        self._taken = set(self.uri_of)

    def give(
        self, offered: Iterable[ManifestEntry], remembered: Iterable[ManifestEntry]
    ) -> list[ManifestEntry]:
        """The entries of `remembered` that the manifest lacks, with ids that are free. offered:
        everything that the source holds.

        An id whose own file moved within the source is not free for another file that took its
        place. An id whose file is gone is kept for it."""
        offered_uris = {entry.uri for entry in offered}
        entries = []
        for entry in remembered:
            if entry.uri in self.uris:
                continue
            uri_before = self.uri_of.get(entry.video_id)
            if uri_before is None or uri_before in offered_uris:
                entries.append(ManifestEntry(self._free(entry.video_id), entry.uri))

        return entries

    def _free(self, video_id: str) -> str:
        """The id, or the id with the first free number."""
        for number in count(1):
            name = video_id if number == 1 else f"{video_id}~{number}"
            if name not in self._taken:
                self._taken.add(name)
                return name

        raise AssertionError("there are more numbers than names")


def _remembered(root: DataRoot, offered: OfferedVideos) -> list[ManifestEntry]:
    """The offered videos that were not forgotten; a warning counts the others."""
    remembered = not_forgotten(root, offered.entries)
    num_forgotten = len(offered.entries) - len(remembered)
    if num_forgotten:
        warnings.warn(
            f"source {offered.source}: files are skipped because their names were forgotten: "
            f"{num_forgotten}; rename new ones"
        )

    return remembered


def _warn_of_new_addresses(source: str, entries: Iterable[ManifestEntry], names: _Names) -> None:
    """Warn of remote videos whose ids have other addresses now."""
    kept = [
        entry.video_id
        for entry in entries
        if is_remote(entry.uri) and entry.uri not in names.uris
        if entry.video_id in names.uri_of
    ]
    if kept:
        warnings.warn(
            f"source {source}: {len(kept)} ids have other addresses now, e.g. {kept[0]}, and keep "
            "the old ones; give them new ids"
        )


def _write_shards(
    project: Project,
    listing: SourceListing,
    offered: OfferedVideos,
    entries: Sequence[ManifestEntry],
) -> list[str]:
    """Append entries to the manifest as shards of their source; returns the new keys."""
    source = offered.source
    # One above the highest, since shards below may be lost, and no shard is overwritten.
    numbers = [int(key.rpartition("-")[2]) for key in listing.shards() if source_of(key) == source]
    number = max(numbers, default=-1) + 1
    new_shards = []
    for start in range(0, len(entries), project.config.shard_videos):
        key = f"{source}-{number:05d}"
        rows = [
            ManifestRow(entry.video_id, source, offered.split, key, entry.uri)
            for entry in entries[start : start + project.config.shard_videos]
        ]
        listing.write(key, rows)
        new_shards.append(key)
        number += 1

    return new_shards
