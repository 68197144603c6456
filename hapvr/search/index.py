"""The index of a collection: descriptors of frames and of videos, found by their cosine.

<folder>/frames.lance    a row per kept frame: shard, video_id, second, vector
<folder>/videos.lance    a row per video: shard, video_id, vector
<folder>/regions.lance   a row per region of a video: shard, video_id, vector
<folder>/index.json      which versions of the three belong together, which they replaced, and the shards; written last

Whoever opens the index sees the versions of one index.json, so a change is seen whole or not at all, and what a killed
writer left beside them is overwritten by the next. Writers follow each other by a lock; in an object store, which has
none, a writer that comes between two steps of another is noticed by the versions of the tables, and refused.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hapvr.errors import ArgumentError
from hapvr.search.index_state import (
    STATE_FILE,
    IndexedShard,
    IndexState,
    ReplacedVersions,
    TableVersions,
    read_state,
    write_state,
)
from hapvr.search.settings import IndexSettings
from hapvr.search.vectors import VECTOR, VectorTable
from hapvr.seeding import numpy_rng
from hapvr.storage.filesystem import DataRoot

SHARD = pa.field("shard", pa.string(), nullable=False)
VIDEO_ID = pa.field("video_id", pa.string(), nullable=False)
SECOND = pa.field("second", pa.float32(), nullable=False)
FOUND_FRAMES = pa.schema([pa.field("query_frame", pa.int32()), VIDEO_ID, SECOND, pa.field("similarity", pa.float32())])
FOUND_VIDEOS = pa.schema([VIDEO_ID, pa.field("similarity", pa.float32())])
TABLES = {"frames": (SHARD, VIDEO_ID, SECOND), "videos": (SHARD, VIDEO_ID), "regions": (SHARD, VIDEO_ID)}
NEIGHBOURS = 10
"""Neighbours by which recall is measured."""

AMONG = 10
"""So many times the wanted rows are found by code and compared exactly, for neighbours in a check and for whole videos."""

EQUAL = 1e-3
"""Difference of cosines that half precision does not tell apart."""


class SearchIndex(Protocol):
    """What a search asks of an index."""

    def search_frames(self, queries: npt.NDArray[np.floating], k: int) -> pa.Table:
        """The k nearest frames of each query frame, see `FrameIndex.search_frames`."""

    def search_videos(self, query: npt.NDArray[np.floating], k: int) -> pa.Table:
        """The k nearest videos, see `FrameIndex.search_videos`."""


class ShardRows(NamedTuple):
    """What an index takes of a shard. frames: video_id, second and vector of the frames that can be found; videos:
    video_id and vector of the videos that have such frames; regions: video_id and vector of each of their regions."""

    frames: pa.Table
    videos: pa.Table
    regions: pa.Table


@dataclass(frozen=True)
class IndexStatus:
    """What an index holds. revision: number of changes so far. provenance: what the descriptors were made with.

    unindexed_frames: are found too, but compared one by one. parts: of the index over frames; 0 where every frame is
    compared.
    """

    revision: int
    dims: int
    videos: int
    frames: int
    unindexed_frames: int
    parts: int
    provenance: dict[str, Any]
    shards: dict[str, IndexedShard]

    @property
    def digest(self) -> str:
        """SHA-256 of what is indexed: the model and the digests of all shards."""
        held = {name: entry.digest for name, entry in self.shards.items()}
        return hashlib.sha256(json.dumps([self.provenance, held], sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Recall:
    """How many of `probes` stored vectors found themselves, and what part of their exact neighbours was found, in [0, 1].

    recall: of frames, videos or regions, whichever is lowest.
    """

    probes: int
    found_themselves: int
    recall: float


class FrameIndex:
    """An index as it was when it was opened; `refresh` opens it again. Any thread may search it."""

    def __init__(self, folder: str | Path, state: IndexState, settings: IndexSettings) -> None:
        """For `create` and `open`."""
        self._root = DataRoot(folder)
        self._settings = settings
        self._replaced: set[TableVersions] = set()
        self._take(state)

    @staticmethod
    def create(
        folder: str | Path, dims: int, provenance: Mapping[str, Any], *, settings: IndexSettings | None = None
    ) -> FrameIndex:
        """An index without videos; one that is there is replaced. provenance: what the descriptors are made with.

        Raises ArgumentError for dims below 1, DataError where the folder cannot be written.
        """
        if dims < 1:
            raise ArgumentError(f"dims: got {dims}, wanted the number of values of a descriptor, 1 or more")
        settings, root = settings or IndexSettings(), DataRoot(folder)
        with root.lock("index"):
            root.delete(STATE_FILE)
            tables = {name: _new_table(root, name, dims, settings) for name in TABLES}
            state = IndexState(
                revision=0,
                dims=dims,
                provenance=dict(provenance),
                versions=TableVersions(**{name: table.version for name, table in tables.items()}),
                shards={},
            )
            write_state(root, state)
        return FrameIndex(folder, state, settings)

    @staticmethod
    def open(folder: str | Path, *, settings: IndexSettings | None = None) -> FrameIndex:
        """Raises DataError where there is no index or one of another format, DamagedError for one that cannot be read."""
        return FrameIndex(folder, read_state(DataRoot(folder)), settings or IndexSettings())

    def refresh(self) -> None:
        """See what was changed since the index was opened. Raises as `open` does."""
        self._take(read_state(self._root))

    def replace_shard(
        self, shard: str, frames: pa.Table, videos: pa.Table, regions: pa.Table | None = None, *, digest: str = ""
    ) -> None:
        """Take in the descriptors of a shard, in place of those it had.

        frames, videos, regions: as in `ShardRows`; None: no regions. Vectors are fixed-size lists of `dims` floats, of
        any length but 0. digest: what `status` tells of the shard. Raises ArgumentError for other columns or dimensions.
        """
        given = {"frames": frames, "videos": videos, "regions": videos[:0] if regions is None else regions}
        vectors = {name: self._vectors(name, rows) for name, rows in given.items()}
        with self._changing() as change:
            for name, table in given.items():
                if shard in change.shards:
                    change.tables[name] = change.tables[name].delete("shard", [shard])
                if len(table):
                    named = table.append_column(SHARD, pa.array([shard] * len(table), pa.string()))
                    change.tables[name] = change.tables[name].append(named.drop_columns([VECTOR]), vectors[name])
            change.shards[shard] = IndexedShard(digest, len(videos), len(frames))

    def delete_shard(self, shard: str) -> None:
        """Forget a shard; nothing happens where there is none of this name."""
        with self._changing() as change:
            if change.shards.pop(shard, None) is not None:
                for name, table in change.tables.items():
                    change.tables[name] = table.delete("shard", [shard])

    def delete_videos(self, video_ids: Sequence[str]) -> None:
        """Forget videos; ids that the index does not have are passed over."""
        with self._changing() as change:
            if video_ids:
                for name, table in change.tables.items():
                    change.tables[name] = table.delete("video_id", video_ids)
                left = {name: change.tables[name].columns(["shard"])["shard"].value_counts() for name in change.tables}
                counts = {
                    name: {str(row["values"]): int(row["counts"]) for row in rows.to_pylist()}
                    for name, rows in left.items()
                }
                for shard, entry in change.shards.items():
                    change.shards[shard] = replace(
                        entry, videos=counts["videos"].get(shard, 0), frames=counts["frames"].get(shard, 0)
                    )

    def search_frames(self, queries: npt.NDArray[np.floating], k: int) -> pa.Table:
        """The k nearest frames of each query frame, nearest first.

        queries: [Q, dims], none of them zero. Returns query_frame (int32, from 0), video_id, second (float32) and
        similarity (float32, cosine in [-1, 1], approximate without `refine_factor`); fewer than k rows a query where the
        index has fewer. Raises ArgumentError for another shape and values that are not finite.
        """
        queries = self._checked(queries)
        if not len(queries):
            return FOUND_FRAMES.empty_table()
        numbers, similarities, found = self._tables["frames"].search(queries, k, ["video_id", "second"])
        return pa.table([numbers, *found.columns, similarities], schema=FOUND_FRAMES)

    def search_videos(self, query: npt.NDArray[np.floating], k: int) -> pa.Table:
        """The k nearest videos, nearest first: video_id and similarity (float32, cosine in [-1, 1]).

        A video is as near as the nearest of its descriptor and those of its regions. query: [dims], not zero. Raises as
        `search_frames` does.
        """
        queries = self._checked(query[None])
        names: list[pa.Array] = []
        similarities = []
        for name, per_video in (("videos", 1), ("regions", self._regions_per_video())):
            if per_video:
                # One look-up costs little, and no votes of others make up for the errors of its codes.
                _, near, found = self._tables[name].search(queries, k * per_video, ["video_id"], min_refined=AMONG)
                names += found["video_id"].chunks
                similarities.append(near)
        return best_of_videos(pa.chunked_array(names, pa.string()), np.concatenate(similarities), k)

    def _regions_per_video(self) -> int:
        """Rows of a video on average, rounded up; 0 in an index without regions."""
        rows = len(self._tables["regions"]) if "regions" in self._tables else 0
        return -(-rows // max(1, len(self._tables["videos"])))

    def videos(self) -> dict[str, str]:
        """Video id -> shard of every video."""
        rows = self._tables["videos"].columns(["video_id", "shard"])
        return dict(zip(rows["video_id"].to_pylist(), rows["shard"].to_pylist(), strict=True))

    def optimise(self, *, anew: bool = False) -> None:
        """Index rows that are new, where there are enough of them, and remove versions that nobody reads any more.

        anew: build the whole index again. What this object replaced stays readable, and what others replaced for
        `keep_versions_s` seconds: a clock that is set forward takes nothing away from searches that go on meanwhile.
        """
        with self._changing() as change:
            for name, table in change.tables.items():
                change.tables[name] = table.optimise(anew=anew)
        with self._root.lock("index"):
            state = read_state(self._root)
            readable = [asdict(entry.versions) for entry in self._readable(state)]
            for name, table in self._open_tables(state).items():
                table.forget_old_versions(keep={versions[name] for versions in readable if versions[name]})

    def verify(self, *, probes: int = 1000, seed: int = 0) -> Recall:
        """Search for stored vectors: do they find themselves, and their exact nearest neighbours?

        probes: how many frames, videos and regions, of each, drawn at random. Every vector is read once. Raises DamagedError
        where the index cannot be read.
        """
        parts = [_probe(table, probes, numpy_rng(seed, name)) for name, table in self._tables.items()]
        asked, themselves, _, _ = (sum(counts) for counts in zip(*parts, strict=True))
        return Recall(asked, themselves, min((found / wanted for *_, found, wanted in parts if wanted), default=1.0))

    def status(self) -> IndexStatus:
        """What the index holds."""
        frames = self._tables["frames"]
        rows = len(frames)
        indexed, parts = frames.index_parts()
        return IndexStatus(
            revision=self._state.revision,
            dims=self._state.dims,
            videos=len(self._tables["videos"]),
            frames=rows,
            unindexed_frames=rows - indexed if parts else 0,
            parts=parts,
            provenance=dict(self._state.provenance),
            shards=dict(self._state.shards),
        )

    def _take(self, state: IndexState) -> None:
        self._tables = self._open_tables(state)
        self._state = state

    def _open_tables(self, state: IndexState) -> dict[str, VectorTable]:
        return {
            name: VectorTable.open(self._root.url_of(f"{name}.lance"), version, settings=self._settings)
            for name, version in asdict(state.versions).items()
            if version is not None
        }

    @contextmanager
    def _changing(self) -> Iterator[_Change]:
        """What a writer may change; it becomes the index when the block ends well."""
        with self._root.lock("index"):
            state = read_state(self._root)
            tables = {name: table.as_latest() for name, table in self._open_tables(state).items()}
            for name in TABLES.keys() - tables.keys():
                tables[name] = _new_table(self._root, name, state.dims, self._settings)
            change = _Change(tables, dict(state.shards))
            yield change
            versions = TableVersions(**{name: table.version for name, table in change.tables.items()})
            if (versions, change.shards) != (state.versions, state.shards):
                self._replaced.add(state.versions)
                state = replace(
                    state,
                    revision=state.revision + 1,
                    versions=versions,
                    shards=change.shards,
                    replaced=(*self._readable(state), ReplacedVersions(state.versions, time.time())),
                )
                write_state(self._root, state)
            self._take(state)

    def _readable(self, state: IndexState) -> list[ReplacedVersions]:
        """The versions that searches may still have open; a time in the future, of a clock that was set, counts as now."""
        now_s = time.time()
        entries = [replace(entry, at_s=min(entry.at_s, now_s)) for entry in state.replaced]
        keep_s = self._settings.keep_versions_s
        return [entry for entry in entries if now_s - entry.at_s < keep_s or entry.versions in self._replaced]

    def _vectors(self, name: str, rows: pa.Table) -> npt.NDArray[np.floating]:
        """[N, dims] of a table that has the columns it must have."""
        wanted = {field.name for field in TABLES[name]} - {SHARD.name} | {VECTOR}
        if not wanted <= set(rows.column_names):
            raise ArgumentError(f"{name}: got the columns {rows.column_names}, wanted {sorted(wanted)}")
        column = rows[VECTOR].combine_chunks()
        width = column.type.list_size if pa.types.is_fixed_size_list(column.type) else None
        if width != self._state.dims:
            raise ArgumentError(
                f"{name}: vectors are {column.type}, wanted fixed-size lists of {self._state.dims} floats"
            )
        vectors = column.flatten().to_numpy(zero_copy_only=False).reshape(len(rows), width)
        if not (np.abs(vectors).max(axis=1, initial=0) > 0).all() or not np.isfinite(vectors).all():
            raise ArgumentError(f"{name}: a vector is zero or not finite; leave such rows out")
        return np.asarray(vectors)

    def _checked(self, queries: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        dims = self._state.dims
        if queries.ndim != 2 or queries.shape[1] != dims:
            raise ArgumentError(f"queries: got shape {queries.shape}, wanted [queries, {dims}]")
        if not np.isfinite(queries).all():
            raise ArgumentError("queries: a value is not finite")
        return queries


@dataclass
class _Change:
    """What a writer works on."""

    tables: dict[str, VectorTable]
    shards: dict[str, IndexedShard]


def _new_table(root: DataRoot, name: str, dims: int, settings: IndexSettings) -> VectorTable:
    return VectorTable.create(root.url_of(f"{name}.lance"), TABLES[name], dims=dims, settings=settings)


def best_of_videos(video_ids: pa.Array | pa.ChunkedArray, similarities: npt.NDArray[np.float32], k: int) -> pa.Table:
    """FOUND_VIDEOS: the k nearest of videos that may have several rows, each by the nearest of them."""
    order = np.argsort(-similarities, kind="stable")
    names = video_ids.take(pa.array(order)).to_numpy(zero_copy_only=False)
    _, first = np.unique(names, return_index=True)
    nearest = np.sort(first)[:k]
    return pa.table([names[nearest], similarities[order[nearest]]], schema=FOUND_VIDEOS)


def _probe(table: VectorTable, probes: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """How many rows were searched for, how many of them were found, how many neighbours were found, and how many there are."""
    rows = len(table)
    if not rows:
        return 0, 0, 0, 0
    chosen = np.sort(rng.choice(rows, size=min(probes, rows), replace=False))
    queries, nearest = table.vectors(chosen.tolist()), min(NEIGHBOURS, rows)
    numbers, similarities, _ = table.search(queries, nearest, ["video_id"], min_refined=AMONG)
    exact_numbers, exact, _ = table.search(queries, nearest, ["video_id"], exact=True)
    themselves = found = 0
    for number in range(len(chosen)):
        got = similarities[numbers == number]
        themselves += bool(len(got) and got[0] >= 1 - EQUAL)
        # By similarity: rows that are equally near may stand for each other.
        found += int((got >= exact[exact_numbers == number].min() - EQUAL).sum())
    return len(chosen), themselves, found, len(chosen) * nearest
