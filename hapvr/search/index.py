"""The index of a collection: descriptors of frames and of videos, found by their cosine.

<folder>/frames.lance    a row per kept frame: shard, video_id, second, hash, vector
<folder>/videos.lance    a row per video: shard, video_id, vector
<folder>/index.json      which versions of the two belong together, digests of their files, and the shards; written last

Whoever opens the index sees the versions of one index.json, so a change is seen whole or not at all, and what a killed
writer left is overwritten by the next. Writers follow each other by a lock; in an object store, which has none, a writer
that comes between two steps of another is noticed by the versions of the tables, and refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from hapvr.data.filesystem import DataRoot
from hapvr.errors import DataError
from hapvr.search.hash_index import FOUND_FRAMES, SECOND, VIDEO_ID, HashIndex
from hapvr.search.vectors import REBUILD, VECTOR, VectorTable
from hapvr.seeding import numpy_rng
from hapvr.settings import IndexSettings
from hapvr.video.hashes import Hashes

STATE_FILE = "index.json"
SHARD = pa.field("shard", pa.string(), nullable=False)
HASH = pa.field("hash", pa.uint64(), nullable=False)
FOUND_VIDEOS = pa.schema([VIDEO_ID, pa.field("similarity", pa.float32())])
TableName = Literal["frames", "videos"]
TABLES: dict[TableName, tuple[pa.Field, ...]] = {"frames": (SHARD, VIDEO_ID, SECOND, HASH), "videos": (SHARD, VIDEO_ID)}
PROBES = 200
"""Stored frames, and as many videos, that a check of the recall searches for."""
NEIGHBOURS = 10
"""Neighbours by which recall is measured."""
MIN_RECALL = 0.9
"""Part of their exact nearest neighbours that must be found; an index below does not serve."""

REFINED = 10
"""So many times the wanted rows are found by code and compared exactly, for neighbours in a check and for whole videos."""

EQUAL = 1e-3
"""Difference of cosines that half precision does not tell apart."""

Record = TypeVar("Record")
Count = Annotated[int, Field(ge=0, lt=2**63)]
Version = Annotated[int, Field(ge=1, lt=2**63)]


class ShardRows(NamedTuple):
    """What an index takes of a shard. frames: video_id, second, hash and vector of the frames that can be found; videos:
    video_id and vector of the videos that have such frames."""

    frames: pa.Table
    videos: pa.Table


@dataclass(frozen=True, kw_only=True)
class IndexState:
    """What index.json holds. revision: number of changes so far. dims: of the descriptors. provenance: what they were made
    with. versions: of the tables, that belong together. shards: name -> digest of the descriptors that were taken in. files:
    name of each file of the tables, below the folder -> SHA-256."""

    revision: Count
    dims: Annotated[int, Field(ge=1, lt=2**31)]
    provenance: dict[str, Any]
    versions: Annotated[dict[TableName, Version], Field(min_length=2)]
    shards: dict[str, str]
    files: dict[str, str]


@dataclass(frozen=True)
class IndexStatus:
    """What an index holds. revision: number of changes so far. unindexed_frames: are found too, but compared one by one.

    parts: of the index over frames; 0 where every frame is compared. fragments: of both tables, files that each search opens.
    shards: name -> digest of what is indexed of it. digest: SHA-256 of what is indexed, the model and all shards.
    """

    revision: int
    dims: int
    videos: int
    frames: int
    unindexed_frames: int
    parts: int
    fragments: int
    shards: dict[str, str]
    digest: str


class FrameIndex:
    """An index as it was when it was opened. Any thread may search it."""

    _hash_index: HashIndex | None

    def __init__(self, folder: str | Path, state: IndexState, settings: IndexSettings) -> None:
        """For `create` and `open`."""
        self._root = DataRoot(folder)
        self._settings = settings
        self._take(state)

    @staticmethod
    def create(
        folder: str | Path, dims: int, provenance: Mapping[str, Any], *, settings: IndexSettings | None = None
    ) -> FrameIndex:
        """An index without videos; an existing one is replaced. provenance: what the descriptors are made with.

        Raises DataError where the folder cannot be written.
        """
        settings, root = settings or IndexSettings(), DataRoot(folder)
        with root.lock("index"):
            root.delete(STATE_FILE)
            tables = {
                name: VectorTable.create(root.url_of(f"{name}.lance"), fields, dims=dims, settings=settings)
                for name, fields in TABLES.items()
            }
            state = IndexState(
                revision=0,
                dims=dims,
                provenance=dict(provenance),
                versions={name: table.version for name, table in tables.items()},
                shards={},
                files=_digests(root, tables, {}),
            )
            root.write_json(STATE_FILE, asdict(state))
        return FrameIndex(folder, state, settings)

    @staticmethod
    def open(folder: str | Path, *, settings: IndexSettings | None = None) -> FrameIndex:
        """Raises DataError where there is no index, DamagedError for one that cannot be read."""
        return FrameIndex(folder, read_record(DataRoot(folder), STATE_FILE, IndexState), settings or IndexSettings())

    def replace_shard(self, shard: str, frames: pa.Table, videos: pa.Table, *, digest: str = "") -> None:
        """Take in the descriptors of a shard, in place of those it had.

        frames, videos: as in `ShardRows`. Vectors are fixed-size lists of `dims` floats, of any length but 0. digest: what
        `status` tells of the shard.
        """
        with self._changing() as (tables, shards):
            taken: dict[TableName, pa.Table] = {"frames": frames, "videos": videos}
            for name, rows in taken.items():
                if shard in shards:
                    tables[name] = tables[name].delete("shard", [shard])
                if len(rows):
                    named = rows.append_column(SHARD, pa.array([shard] * len(rows), pa.string()))
                    tables[name] = tables[name].append(named.drop_columns([VECTOR]), vectors_of(rows))
            shards[shard] = digest

    def delete_shard(self, shard: str) -> None:
        """Forget a shard; nothing happens where there is none of this name."""
        with self._changing() as (tables, shards):
            if shards.pop(shard, None) is not None:
                tables |= {name: table.delete("shard", [shard]) for name, table in tables.items()}

    def forget(self, video_ids: Sequence[str], renamed: Mapping[str, str]) -> None:
        """Remove videos, and every file that has their vectors: searches that have an earlier version open fail.

        renamed: digest of a shard's descriptors -> that of those without the videos.
        """
        with self._changing() as (tables, shards):
            tables |= {name: table.delete("video_id", video_ids).compact(whole=True) for name, table in tables.items()}
            shards |= {key: renamed.get(digest, digest) for key, digest in shards.items()}
        with self._root.lock("index"):
            for table in self._tables.values():
                table.forget_versions(whole=True)

    def search_frames(self, queries: npt.NDArray[np.floating], k: int) -> pa.Table:
        """The k nearest frames of each query frame, nearest first.

        queries: [Q, dims], finite, none of them zero. Returns query_frame (int32, from 0), video_id, second (float32) and
        similarity (float32, cosine in [-1, 1], approximate without `refine_factor`); fewer than k rows a query where the
        index has fewer.
        """
        if not len(queries):
            return FOUND_FRAMES.empty_table()
        numbers, similarities, found = self._tables["frames"].nearest(queries, k, ["video_id", "second"])
        return pa.table([numbers, *found.columns, similarities], schema=FOUND_FRAMES)

    def search_hashes(self, hashes: Hashes, k: int) -> pa.Table:
        """As `HashIndex.search`; `read_hashes` comes first."""
        return self.read_hashes().search(hashes, k)

    def read_hashes(self) -> HashIndex:
        """All hashes, read once, so that an index can be searched on when it was replaced and its files are gone."""
        if self._hash_index is None:
            self._hash_index = HashIndex(self._tables["frames"].columns(["video_id", "second", "hash"]))
        return self._hash_index

    def search_videos(self, query: npt.NDArray[np.floating], k: int) -> pa.Table:
        """The k nearest videos, nearest first: video_id and similarity (float32, cosine in [-1, 1]). query: [dims], not
        zero."""
        # One look-up costs little, and no votes of others make up for the errors of its codes.
        _, near, found = self._tables["videos"].nearest(query[None], k, ["video_id"], min_refined=REFINED)
        return pa.table([found["video_id"], near], schema=FOUND_VIDEOS)

    def videos(self) -> dict[str, str]:
        """Video id -> shard of every video."""
        rows = self._tables["videos"].columns(["video_id", "shard"])
        return dict(zip(rows["video_id"].to_pylist(), rows["shard"].to_pylist(), strict=True))

    def optimise(self, *, rebuild: bool = False) -> None:
        """Index rows that are new, where there are enough of them, join small fragments where there are many, and remove
        versions that nobody reads any more.

        rebuild: build the whole index again. What was replaced stays readable for as long as `vectors.KEEP_S`.
        """
        with self._changing() as (tables, _):
            tables |= {name: table.compact().optimise(rebuild=rebuild) for name, table in tables.items()}
        with self._root.lock("index"):
            for table in self._open_tables(read_record(self._root, STATE_FILE, IndexState)).values():
                table.forget_versions()

    def verify(self, passed: set[str] | None = None, *, until: Callable[[], bool] = lambda: False) -> list[str]:
        """What is wrong with the files of the index: a sentence for each that is missing or holds other bytes.

        passed: digests of files that need not be read again; those of this call are added. until: true ends the call.
        """
        passed, wrong = set() if passed is None else passed, []
        for name, digest in self._state.files.items():
            if until():
                break
            if digest in passed:
                continue
            found = self._root.sha256(name) if self._root.exists(name) else ""
            if found == digest:
                passed.add(digest)
            else:
                problem = "is not what was written" if found else "is missing"
                wrong.append(f"search: {self._root.url_of(name)} {problem}; {REBUILD}")
        # files of a version that was replaced meanwhile may be gone by right
        replaced = wrong and read_record(self._root, STATE_FILE, IndexState).revision != self._state.revision
        return [] if replaced else wrong

    def recall(self, *, probes: int = PROBES, seed: int = 0) -> float:
        """What part of their exact nearest neighbours stored vectors find, in [0, 1]: of frames or videos, whichever is lower.

        probes: how many frames and videos, of each, drawn at random. Every vector is read once. Raises DamagedError where
        the index cannot be read.
        """
        return min(_recall(table, probes, numpy_rng(seed, name)) for name, table in self._tables.items())

    def shard_digests(self) -> dict[str, str]:
        """Shard -> digest of what is indexed of it."""
        return dict(self._state.shards)

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
            fragments=sum(table.fragments for table in self._tables.values()),
            shards=self.shard_digests(),
            digest=digest_of([self._state.provenance, self._state.shards]),
        )

    def _take(self, state: IndexState) -> None:
        self._hash_index = None
        self._tables = self._open_tables(state)
        self._state = state

    def _open_tables(self, state: IndexState) -> dict[TableName, VectorTable]:
        return {
            name: VectorTable.open(self._root.url_of(f"{name}.lance"), version, settings=self._settings)
            for name, version in state.versions.items()
        }

    @contextmanager
    def _changing(self) -> Iterator[tuple[dict[TableName, VectorTable], dict[str, str]]]:
        """The tables and shards, to be changed in place; they become the index when the block ends well."""
        with self._root.lock("index"):
            state = read_record(self._root, STATE_FILE, IndexState)
            tables = {name: table.as_latest() for name, table in self._open_tables(state).items()}
            shards = dict(state.shards)
            yield tables, shards
            versions = {name: table.version for name, table in tables.items()}
            if (versions, shards) != (state.versions, state.shards):
                files = _digests(self._root, tables, state.files)
                state = replace(state, revision=state.revision + 1, versions=versions, shards=shards, files=files)
                self._root.write_json(STATE_FILE, asdict(state))
            self._take(state)


def read_record(root: DataRoot, name: str, kind: type[Record]) -> Record:
    """The dataclass that a JSON file of search holds. Raises DataError where there is none, DamagedError for another value."""
    if not root.exists(name):
        raise DataError(f"search: there is no index below {root.url}; `hapvr index build` makes one")
    return root.read_json_as(name, kind, hint=REBUILD)


def digest_of(value: object) -> str:
    """Hex SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def vectors_of(rows: pa.Table) -> npt.NDArray[np.floating]:
    """[N, dims], the vectors of a table."""
    column = rows[VECTOR].combine_chunks()
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(len(rows), column.type.list_size)


def _digests(root: DataRoot, tables: Mapping[TableName, VectorTable], known: Mapping[str, str]) -> dict[str, str]:
    """Name of each file -> SHA-256; files of these names never change, so those that are known are not read again."""
    names = [f"{name}.lance/{file}" for name, table in tables.items() for file in table.files()]
    return {name: known.get(name) or root.sha256(name) for name in names}


def _recall(table: VectorTable, probes: int, rng: np.random.Generator) -> float:
    """Part of the exact neighbours of some rows that a search finds; 1 for an empty table."""
    rows = len(table)
    if not rows:
        return 1.0
    chosen = np.sort(rng.choice(rows, size=min(probes, rows), replace=False))
    queries, nearest = table.vectors(chosen.tolist()), min(NEIGHBOURS, rows)
    numbers, similarities, _ = table.nearest(queries, nearest, ["video_id"], min_refined=REFINED)
    exact_numbers, exact, _ = table.nearest(queries, nearest, ["video_id"], exact=True)
    least = np.full(len(chosen), np.inf, np.float32)
    np.minimum.at(least, exact_numbers, exact)
    # By similarity: rows that are equally near may stand for each other.
    return int((similarities >= least[numbers] - np.float32(EQUAL)).sum()) / (len(chosen) * nearest)
