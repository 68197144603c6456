"""Step 1: which videos there are, in which shard (asset `video_manifest`)."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

import polars as pl

from hapvr.data.manifest import (
    MANIFEST_STAGE,
    ManifestRow,
    read_manifest,
    training_shard_keys,
    write_manifest_shard,
)
from hapvr.progress import Progress, no_progress
from hapvr.steps.project import Project
from hapvr.steps.sources import resolve_sources, snapshot_sources


@dataclass(frozen=True)
class ManifestResult:
    """shards and training_shards: all keys there are, old and new; counts: videos by source; offer: digest of what the sources
    held just before, see `snapshot_sources`."""

    shards: tuple[str, ...]
    training_shards: tuple[str, ...]
    new_shards: tuple[str, ...]
    counts: dict[str, int]
    num_ignored: int
    digest: str
    offer: str


def make_manifest(project: Project, *, progress: Progress = no_progress) -> ManifestResult:
    """Append the videos that the sources offer and the manifest lacks, as new shards; rows once written never change.

    One process at a time does; another waits for it.
    """
    # This look comes before the manifest is made, so a file that arrives meanwhile is noticed next time.
    offer = snapshot_sources(project, settle_s=0).digest
    with project.root.lock(MANIFEST_STAGE):
        return _append(project, offer, progress)


def _append(project: Project, offer: str, progress: Progress) -> ManifestResult:
    manifest = read_manifest(project.root)
    known_ids = set(manifest["video_id"])
    next_number = Counter(manifest["shard"].unique().str.replace(r"-\d{5}$", "").to_list())
    new_shards: dict[str, list[ManifestRow]] = {}
    num_ignored = 0
    for source in resolve_sources(project, progress=progress):
        num_ignored += source.num_ignored
        entries = [entry for entry in source.entries if entry.video_id not in known_ids]
        known_ids.update(entry.video_id for entry in entries)
        size = project.config.shard_videos
        for start in range(0, len(entries), size):
            key = f"{source.name}-{next_number[source.name]:05d}"
            next_number[source.name] += 1
            new_shards[key] = [
                ManifestRow(entry.video_id, source.name, source.split, key, entry.uri)
                for entry in entries[start : start + size]
            ]
            write_manifest_shard(project.root, key, new_shards[key])
    if new_shards:
        added = pl.DataFrame([row for rows in new_shards.values() for row in rows], schema=manifest.schema)
        manifest = pl.concat([manifest, added]).sort("shard", maintain_order=True)
    return ManifestResult(
        tuple(manifest["shard"].unique().sort().to_list()),
        tuple(training_shard_keys(manifest)),
        tuple(new_shards),
        dict(manifest["source"].value_counts().sort("source").iter_rows()),
        num_ignored,
        hashlib.sha256(manifest.write_ndjson().encode()).hexdigest(),
        offer,
    )
