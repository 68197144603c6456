"""Marks of people on pairs of videos: which contents their names stand for."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.compute as pc

from hapvr.data.manifest import manifest_table
from hapvr.errors import DataError
from hapvr.provenance import file_sha256
from hapvr.search.collection import CollectionMetadata
from hapvr.search.marks import Mark, Verdict, mark_pair, unmark_pair
from hapvr.search.query import printable
from hapvr.steps.project import Project

_DIGEST = re.compile(r"[0-9a-f]{64}")


def is_digest(name: str) -> bool:
    """Whether a name is the SHA-256 of a file instead of an id."""
    return _DIGEST.fullmatch(name) is not None


def content_of(project: Project, name: str) -> str:
    """The SHA-256 of what a name stands for: a video of the collection, a file, or the digest itself.

    Raises DataError for anything else.
    """
    if is_digest(name):
        return name
    shards = {
        row["video_id"]: row["shard"]
        for row in manifest_table(project.root).filter(pc.field("video_id") == name).to_pylist()
    }
    if shards:
        metadata = CollectionMetadata(project.root, shards).of(name)
        if metadata.path is None:
            raise DataError(f"pairs: {name} has not been probed, or cannot be read; run `hapvr download` first")
        return metadata.sha256
    try:
        return file_sha256(Path(name))
    except (OSError, ValueError) as error:
        raise DataError(
            f"pairs: {name!r:.200} is neither a video of the collection nor a readable file ({error}); wanted an id "
            "such as SOURCE/NAME.mp4, or a path"
        ) from error


def mark(project: Project, one: str, other: str, verdict: Verdict) -> Mark:
    """Keep what somebody says about two videos, see `content_of`. Raises DataError and ArgumentError."""
    first, second = content_of(project, one), content_of(project, other)
    return mark_pair(project.root, first, second, verdict, names=(printable(one), printable(other)))


def unmark(project: Project, one: str, other: str) -> Mark | None:
    """Forget what was said about two videos; None where nothing was. Raises DataError."""
    return unmark_pair(project.root, content_of(project, one), content_of(project, other))
