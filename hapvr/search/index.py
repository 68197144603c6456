"""The index of a collection: descriptors of frames, found by their cosine, and their hashes.

<folder>/frames.lance    a row per kept frame: shard, video_id, second, hash, vector
<folder>/index.json      which version of it counts, digests of its files, and the shards; written last

Whoever opens the index sees the version of one index.json, so a change is seen whole or not at all, and what a killed
writer left is overwritten by the next. Writers follow each other by a lock; in an object store, which has none, a writer
that comes between two steps of another is noticed by the version of the table, and refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from hapvr.data.filesystem import DataRoot
from hapvr.errors import DataError
from hapvr.search.vectors import REBUILD, VectorTable
from hapvr.seeding import numpy_rng
from hapvr.settings import IndexSettings
from hapvr.video.frames import NO_HASH, Hashes

STATE_FILE, TABLE = "index.json", "frames.lance"
SHARD, VIDEO_ID = (pa.field(name, pa.string(), nullable=False) for name in ("shard", "video_id"))
SECOND, HASH = pa.field("second", pa.float32(), nullable=False), pa.field("hash", pa.uint64(), nullable=False)
FOUND_FRAMES = pa.schema([("query_frame", pa.int32()), VIDEO_ID, SECOND, ("similarity", pa.float32())])
"""What look-ups of frames give: the number of the query frame, and a frame of a video."""

MIN_RECALL = 0.9
"""Part of their exact nearest neighbours that must be found; an index below does not serve."""

RADIUS = 10
"""Bits by which two frames of one picture may differ. Of real clips, one of 70,000 pairs of frames of two videos
is as near, and these show one scene."""
PARTS = 4
PART_BITS = 16
MAX_COMPARED = 1 << 22
"""Comparisons in memory together."""

_NEAR = np.flatnonzero(np.bitwise_count(np.arange(1 << PART_BITS)) <= RADIUS // PARTS).astype(np.uint16)
"""What turns a part into all parts that differ in few enough bits."""

Record = TypeVar("Record")


@dataclass(frozen=True, kw_only=True)
class IndexState:
    """What index.json holds. revision: number of changes so far. dims: of the descriptors. provenance: what they were made
    with. version: of the table. shards: name -> digest of the descriptors that were taken in. files: name of each file of the
    table, below the folder -> SHA-256."""

    revision: Annotated[int, Field(ge=0, lt=2**63)]
    dims: Annotated[int, Field(ge=1, lt=2**31)]
    provenance: dict[str, Any]
    version: Annotated[int, Field(ge=1, lt=2**63)]
    shards: dict[str, str]
    files: dict[str, str]


@dataclass(frozen=True)
class IndexStatus:
    """What an index holds. revision: number of changes so far. unindexed_frames: are found too, but compared one by one.

    parts: of the index over frames; 0 where every frame is compared. fragments: of the table, files that each search opens.
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


class HashIndex:
    """The hashes of some frames, looked up exactly by Hamming distance. Any thread may search it.

    Multi-index hashing (Norouzi, Punjani and Fleet, "Fast search in Hamming space with multi-index hashing", CVPR 2012): of two
    hashes that differ in at most RADIUS bits, one of four parts differs in at most a quarter of that, so that only frames with
    such a part are compared.
    """

    def __init__(self, frames: pa.Table) -> None:
        """frames: columns video_id, second and hash; those without a hash are never found."""
        hashes = frames["hash"].to_numpy()
        self._frames, self._hashes = frames.select(["video_id", "second"]), hashes
        self._orders, self._starts = [], []
        for part in _parts(hashes):
            order = np.argsort(part, kind="stable").astype(np.int32)
            self._orders.append(order)
            self._starts.append(np.searchsorted(part[order], np.arange((1 << PART_BITS) + 1)))

    def video_ids(self) -> list[str]:
        """Of all frames, each once."""
        return list(self._frames["video_id"].unique().to_pylist())

    def search(self, hashes: Hashes, k: int) -> pa.Table:
        """The k nearest frames of each of the hashes [Q] that are within RADIUS bits, nearest first, none for NO_HASH.

        Returns the columns of FOUND_FRAMES, with similarities above 0, 1 for the same hash.
        """
        asked = np.flatnonzero(hashes != NO_HASH)
        places = [np.zeros(0, np.int64)]
        for part, order, starts in zip(_parts(hashes[asked]), self._orders, self._starts, strict=True):
            near = (part[:, None] ^ _NEAR).astype(np.int64)
            first, count = starts[near], starts[near + 1] - starts[near]
            batch = np.cumsum(count.sum(axis=1)) // MAX_COMPARED
            for some in np.split(np.arange(len(asked)), np.flatnonzero(np.diff(batch)) + 1):
                lengths = count[some].ravel()
                within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
                rows = order[np.repeat(first[some].ravel(), lengths) + within]
                numbers = np.repeat(asked[some], count[some].sum(axis=1))
                same = np.bitwise_count(self._hashes[rows] ^ hashes[numbers]) <= RADIUS
                places.append(numbers[same] * len(self._hashes) + rows[same])
        # equal parts are found more than once
        query, row = np.divmod(np.unique(np.concatenate(places)), max(len(self._hashes), 1))
        bits = np.bitwise_count(self._hashes[row] ^ hashes[query])
        best = np.lexsort((bits, query))
        best = best[np.arange(len(best)) - np.searchsorted(query, query) < k]
        found = self._frames.take(pa.array(row[best]))
        similarity = 1 - bits[best].astype(np.float32) / (RADIUS + 1)
        return pa.table([query[best].astype(np.int32), *found.columns, similarity], schema=FOUND_FRAMES)


class FrameIndex:
    """An index as it was when it was opened. Any thread may search it."""

    _hash_index: HashIndex | None

    def __init__(self, folder: str | Path, settings: IndexSettings) -> None:
        """As `open`."""
        self._root, self._settings = DataRoot(folder), settings
        self._take(read_record(self._root, STATE_FILE, IndexState))

    @staticmethod
    def create(folder: str | Path, dims: int, provenance: dict[str, Any], *, settings: IndexSettings) -> FrameIndex:
        """An index without videos; an existing one is replaced. provenance: what the descriptors are made with.

        Raises DataError where the folder cannot be written.
        """
        root = DataRoot(folder)
        with root.lock("index"):
            root.delete(STATE_FILE)
            fields = (SHARD, VIDEO_ID, SECOND, HASH)
            table = VectorTable.create(root.url_of(TABLE), fields, dims=dims, settings=settings)
            files = _digests(root, table, {})
            state = IndexState(
                revision=0, dims=dims, provenance=provenance, version=table.version, shards={}, files=files
            )
            root.write_json(STATE_FILE, asdict(state))
        return FrameIndex(folder, settings)

    @staticmethod
    def open(folder: str | Path, *, settings: IndexSettings) -> FrameIndex:
        """Raises DataError where there is no index, DamagedError for one that cannot be read."""
        return FrameIndex(folder, settings)

    def replace_shard(self, shard: str, frames: pa.Table, *, digest: str = "") -> None:
        """Take in the descriptors of a shard, in place of those it had.

        frames: video_id, second, hash and vector of the frames that can be found. Vectors are fixed-size lists of `dims`
        floats, of any length but 0. digest: what `status` tells of the shard.
        """

        def change(table: VectorTable, shards: dict[str, str]) -> VectorTable:
            if shard in shards:
                table = table.delete("shard", [shard])
            shards[shard] = digest
            if not len(frames):
                return table
            return table.append(frames.append_column(SHARD, pa.array([shard] * len(frames), pa.string())))

        self._change(change)

    def delete_shard(self, shard: str) -> None:
        """Forget a shard; nothing happens where there is none of this name."""
        self._change(lambda table, shards: table if shards.pop(shard, None) is None else table.delete("shard", [shard]))

    def forget(self, video_ids: Sequence[str], renamed: Mapping[str, str]) -> None:
        """Remove videos, and every file that has their vectors: searches that have an earlier version open fail.

        renamed: digest of a shard's descriptors -> that of those without the videos.
        """

        def change(table: VectorTable, shards: dict[str, str]) -> VectorTable:
            shards |= {key: renamed.get(digest, digest) for key, digest in shards.items()}
            return table.delete("video_id", video_ids).compact(whole=True)

        self._change(change, forget_versions="all")

    def search_frames(self, queries: npt.NDArray[np.floating], k: int) -> pa.Table:
        """The k nearest frames of each query frame, nearest first.

        queries: [Q, dims], finite, none of them zero. Returns query_frame (int32, from 0), video_id, second (float32) and
        similarity (float32, cosine in [-1, 1], approximate without `refine_factor`); fewer than k rows a query where the
        index has fewer.
        """
        numbers, similarities, found = self._table.nearest(queries, k, ["video_id", "second"])
        return pa.table([numbers, *found.columns, similarities], schema=FOUND_FRAMES)

    def read_hashes(self) -> HashIndex:
        """All hashes, read once, so that an index can be searched on when it was replaced and its files are gone."""
        if self._hash_index is None:
            self._hash_index = HashIndex(self._table.columns(["video_id", "second", "hash"]))
        return self._hash_index

    def videos(self) -> dict[str, str]:
        """Video id -> shard of every video."""
        rows = self._table.distinct(["video_id", "shard"])
        return dict(zip(rows["video_id"].to_pylist(), rows["shard"].to_pylist(), strict=True))

    def optimise(self, *, rebuild: bool = False) -> None:
        """Index rows that are new, where there are enough of them, join small fragments where there are many, and remove
        versions that nobody reads any more.

        rebuild: build the whole index again. What was replaced stays readable for as long as `vectors.KEEP_S`.
        """
        self._change(lambda table, _: table.compact().optimise(rebuild=rebuild), forget_versions="old")

    def verify(self, passed: set[str] | None = None, *, until: Callable[[], bool] = lambda: False) -> list[str]:
        """What is wrong with the files of the index: a sentence for each that is missing or holds other bytes.

        passed: digests of files that need not be read again; those of this call are added. until: true ends the call.
        """
        passed, wrong = set() if passed is None else passed, []
        for name, digest in self._state.files.items():
            if digest in passed or until():
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

    def recall(self, *, probes: int = 200) -> float:
        """What part of their ten exact nearest neighbours stored vectors find, in [0, 1]; 1 where there are none.

        probes: how many, drawn at random. Every vector is read once. Raises DamagedError where the index cannot be read.
        """
        table, (rows, *_) = self._table, self._table.counts()
        if not rows:
            return 1.0
        chosen = np.sort(numpy_rng(0, "frames").choice(rows, size=min(probes, rows), replace=False))
        queries, nearest = table.vectors(chosen.tolist()), min(10, rows)
        numbers, similarities, _ = table.nearest(queries, nearest, ["video_id"], min_refined=10)
        exact_numbers, exact, _ = table.nearest(queries, nearest, ["video_id"], exact=True)
        least = np.full(len(chosen), np.inf, np.float32)
        np.minimum.at(least, exact_numbers, exact)
        # By similarity: rows that are equally near, as half precision tells, may stand for each other.
        return int((similarities >= least[numbers] - np.float32(1e-3)).sum()) / (len(chosen) * nearest)

    def shard_digests(self) -> dict[str, str]:
        """Shard -> digest of what is indexed of it."""
        return dict(self._state.shards)

    def status(self) -> IndexStatus:
        """What the index holds."""
        rows, fragments, indexed, parts = self._table.counts()
        return IndexStatus(
            revision=self._state.revision,
            dims=self._state.dims,
            videos=len(self.videos()),
            frames=rows,
            unindexed_frames=rows - indexed if parts else 0,
            parts=parts,
            fragments=fragments,
            shards=self.shard_digests(),
            digest=digest_of([self._state.provenance, self._state.shards]),
        )

    def _take(self, state: IndexState) -> None:
        self._hash_index = None
        self._table = self._open_table(state)
        self._state = state

    def _open_table(self, state: IndexState) -> VectorTable:
        return VectorTable.open(self._root.url_of(TABLE), state.version, settings=self._settings)

    def _change(
        self,
        change: Callable[[VectorTable, dict[str, str]], VectorTable],
        *,
        forget_versions: Literal["none", "old", "all"] = "none",
    ) -> None:
        """Make what `change` returns the table of the index, with the shards, which it changes in place.

        forget_versions: of the table, afterwards: the old ones, which nobody reads any more, or all but the last.
        """
        with self._root.lock("index"):
            state = read_record(self._root, STATE_FILE, IndexState)
            shards = dict(state.shards)
            table = change(self._open_table(state).as_latest(), shards)
            if (table.version, shards) != (state.version, state.shards):
                files = _digests(self._root, table, state.files)
                state = replace(state, revision=state.revision + 1, version=table.version, shards=shards, files=files)
                self._root.write_json(STATE_FILE, asdict(state))
            self._take(state)
            if forget_versions != "none":
                self._table.forget_versions(whole=forget_versions == "all")


def read_record(root: DataRoot, name: str, kind: type[Record]) -> Record:
    """The dataclass that a JSON file of search holds. Raises DataError where there is none, DamagedError for another value."""
    if not root.exists(name):
        raise DataError(f"search: there is no index below {root.url}; `hapvr index build` makes one")
    return root.read_json_as(name, kind, hint=REBUILD)


def digest_of(value: object) -> str:
    """Hex SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _digests(root: DataRoot, table: VectorTable, known: Mapping[str, str]) -> dict[str, str]:
    """Name of each file -> SHA-256; files of these names never change, so those that are known are not read again."""
    names = [f"{TABLE}/{file}" for file in table.files()]
    return {name: known.get(name) or root.sha256(name) for name in names}


def _parts(hashes: Hashes) -> list[npt.NDArray[np.uint16]]:
    return [(hashes >> np.uint64(PART_BITS * number)).astype(np.uint16) for number in range(PARTS)]
