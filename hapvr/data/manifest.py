"""The manifest (`manifest/<shard>/rows.parquet`, append-only), and the columns of the `videos`
shards."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
from pydantic import Field

from hapvr.data.filesystem import DataRoot
from hapvr.errors import DataError
from hapvr.tables import check_columns, read_table, write_table

if TYPE_CHECKING:
    import polars as pl

MANIFEST_STAGE = "manifest"
FORGOTTEN = f"{MANIFEST_STAGE}/forgotten.json"
"""Digests of the names of videos that were forgotten and are not listed again; it does not reveal
the names."""
FORGETTING = f"{MANIFEST_STAGE}/forgetting.json"
"""What `hapvr forget` has begun and not finished."""
PLANNED = "duplicate_groups/planned.json"
"""Digests of the paths of files that plans of `hapvr duplicates` move."""
IDENTITY = f"{MANIFEST_STAGE}/id.json"
CHANGED_PLACE = "watch/changed.json"
"""Shards whose files have changed since they were read: key -> digest of their present files."""
VIDEOS_STAGE = "videos"
TRAIN = "train"
GENERATED = "generated"
"""The split of benchmarks that were made of a user's videos. They are in the manifest and have
features, and are otherwise outside the collection: never described, indexed, paired, grouped or
watched."""
MANIFEST_SCHEMA = pa.schema(
    [
        pa.field("video_id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("uri", pa.string(), nullable=False),
    ]
)
VIDEO_COLUMNS = (
    pa.field("path", pa.string(), nullable=False),
    pa.field("num_bytes", pa.int64(), nullable=False),
    pa.field("sha256", pa.string(), nullable=False),
    pa.field("duration_s", pa.float64()),
    pa.field("fps", pa.float64()),
    pa.field("width_px", pa.int32()),
    pa.field("height_px", pa.int32()),
    pa.field("codec", pa.string()),
    pa.field("former_sha256", pa.string()),
    pa.field("tried_with", pa.string()),
)


Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class _Forgotten:
    """The file at FORGOTTEN."""

    names: list[Digest]


@dataclass(frozen=True)
class _Planned:
    """The file at PLANNED."""

    moved: list[Digest]


@dataclass(frozen=True)
class ManifestRow:
    """One video that some source offered: its global id, source, split, shard, and where it is
    (path or URL)."""

    video_id: str
    source: str
    split: str
    shard: str
    uri: str


def root_id(root: DataRoot) -> str:
    """An id that tells a data root from others that had its path; "" before there is a manifest,
    and where it cannot be read."""
    with suppress(DataError):
        return str(root.read_json(IDENTITY).get("id", ""))
    return ""


def shard_keys(root: DataRoot) -> list[str]:
    """All shards of the manifest, sorted."""
    return [name for name in root.list_folders(MANIFEST_STAGE) if root.exists(_name(name))]


def has_shard(root: DataRoot, shard: str) -> bool:
    """Whether the manifest lists the videos of a shard; it does not list those of imported
    shards."""
    return root.exists(_name(shard))


def forgotten_of(
    root: DataRoot, video_ids: Collection[str], shard_of: Mapping[str, str]
) -> frozenset[str]:
    """The videos among these that were forgotten since they were read: the manifest has their
    shard, but without them. Imported shards are not in the manifest.

    Call this while holding the lock of what is written: `forget` begins with the manifest, and
    waits for that lock before it removes what names the videos.

    shard_of: video id -> shard

    Raises: DamagedError for a shard of the manifest that cannot be read.
    """
    shards = {shard_of[video_id] for video_id in video_ids}
    listed: dict[str, set[str]] = {}
    for shard in shards:
        if has_shard(root, shard):
            listed[shard] = {row.video_id for row in read_manifest_shard(root, shard)}

    return frozenset(
        video_id
        for video_id in video_ids
        if shard_of[video_id] in listed and video_id not in listed[shard_of[video_id]]
    )


def source_of(shard: str) -> str:
    """The source whose videos a shard holds."""
    return shard.rpartition("-")[0]


def training_shard_keys(root: DataRoot) -> list[str]:
    """The manifest's shards of the training split, sorted."""
    return [key for key in shard_keys(root) if is_training_shard(root, key)]


def collection_keys(root: DataRoot, shards: Iterable[str]) -> list[str]:
    """The shards among these that belong to the collection, sorted; imported features, which no
    manifest lists, belong to it."""
    listed = set(shard_keys(root))
    keys = sorted(shards)
    split_of: dict[str, str] = {}
    for key in keys:
        source = source_of(key)
        # All videos of a shard may have been forgotten; the next one has the same split.
        if key in listed and not split_of.get(source):
            splits = [row.split for row in read_manifest_shard(root, key)]
            split_of[source] = splits[0] if splits else ""

    return [key for key in keys if key not in listed or split_of[source_of(key)] != GENERATED]


def require_shards(root: DataRoot, shards: Iterable[str]) -> None:
    """Raise DataError where the manifest lacks one of these shards: its videos would get other ids,
    and everything known of them would be lost."""
    lost = set(shards).difference(shard_keys(root))
    if lost:
        place = f"{MANIFEST_STAGE}/{min(lost)}"
        raise DataError(
            f"manifest: {place} is lost; restore it from a copy: nothing else knows its videos"
        )


def is_training_shard(root: DataRoot, shard: str) -> bool:
    """Whether the videos of a shard are of the training split. Raises DataError if there is no
    shard of that name."""
    return any(row.split == TRAIN for row in read_manifest_shard(root, shard))


def read_manifest_shard(root: DataRoot, shard: str) -> list[ManifestRow]:
    """The rows of one shard. Raises DataError if there is none of that name, DamagedError if it
    cannot be read."""
    return [ManifestRow(**row) for row in _read(root, shard).to_pylist()]


def read_manifest(root: DataRoot) -> pl.DataFrame:
    """All rows: video_id, source, split, shard, uri."""
    import polars as pl  # an installation for searches has none

    return pl.DataFrame(manifest_table(root))


def manifest_table(root: DataRoot) -> pa.Table:
    """As `read_manifest`, as Arrow's table."""
    shards = [_read(root, shard) for shard in shard_keys(root)]
    return pa.concat_tables([MANIFEST_SCHEMA.empty_table(), *shards])


def write_manifest_shard(root: DataRoot, shard: str, rows: Sequence[ManifestRow]) -> None:
    """Write a shard of the manifest."""
    table = pa.Table.from_pylist([asdict(row) for row in rows], schema=MANIFEST_SCHEMA)
    with root.write(_name(shard)) as stream:
        write_table(table, stream)


def forgotten_digests(root: DataRoot) -> frozenset[str]:
    """`name_digest` of the ids and places of videos that were forgotten. Raises DamagedError where
    it cannot be read."""
    if not root.has_record(FORGOTTEN):
        return frozenset()
    hint = (
        "restore it from a copy, or remove it: forgotten files that are still there are then "
        "listed again"
    )
    return frozenset(root.read_json_as(FORGOTTEN, _Forgotten, hint=hint).names)


def planned_moves(root: DataRoot) -> frozenset[str]:
    """`name_digest` of the paths of files that some plan moves. Raises DamagedError where it cannot
    be read."""
    if not root.has_record(PLANNED):
        return frozenset()
    hint = "remove it: `hapvr index add` then names the files that plans have moved"
    return frozenset(root.read_json_as(PLANNED, _Planned, hint=hint).moved)


def name_digest(name: str) -> str:
    return hashlib.sha256(f"forgotten {name}".encode()).hexdigest()


def _read(root: DataRoot, shard: str) -> pa.Table:
    name = _name(shard)
    with root.open(name) as file, root.corruption_errors(name, hint="restore it from a copy"):
        table = read_table(file)
        check_columns(table, MANIFEST_SCHEMA)
        return table.select(MANIFEST_SCHEMA.names).cast(MANIFEST_SCHEMA)


def _name(shard: str) -> str:
    return f"{MANIFEST_STAGE}/{shard}/rows.parquet"
