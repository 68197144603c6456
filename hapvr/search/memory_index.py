"""Frames in memory, compared one by one: exact, for parts of a collection and for small ones.

<folder>/frames/<version>.arrow    a row per kept frame: shard, video_id, second, hash, vector
<folder>/index.json                see `hapvr.search.frame_index`

Every change writes all rows again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hapvr.data.filesystem import DataRoot
from hapvr.errors import DamagedError, DataError
from hapvr.files import digest_of
from hapvr.scorer.blank import unit
from hapvr.search.frame_index import (
    HASH,
    REBUILD,
    SHARD,
    STATE_FILE,
    VECTOR,
    IndexState,
    IndexStatus,
    read_state,
    vectors_of,
)
from hapvr.search.hashes import FOUND_FRAMES, SECOND, VIDEO_ID, IndexedFrames
from hapvr.search.index_files import (
    file_digests,
    foreign_state,
    is_replaced,
    problems_of_files,
    require_whole,
)
from hapvr.settings import IndexSettings

FRAMES_FOLDER = "frames"
QUERIES_AT_ONCE = 64
"""A row of similarities has an entry for each frame that is in memory."""


class FramesInMemory(IndexedFrames):
    """A `FrameSearch` of some frames, as those of one shard: without others among the nearest."""

    def __init__(self, frames: pa.Table) -> None:
        """frames: columns video_id, second, hash and vector, those of a video contiguous."""
        super().__init__(frames)
        self._vectors = unit(vectors_of(frames).astype(np.float32))

    def search_frames(self, queries: npt.NDArray[np.floating], k: int) -> pa.Table:
        """As `FrameSearch.search_frames`, of queries of unit length."""
        tables = [FOUND_FRAMES.empty_table()]
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            part = np.asarray(queries[start : start + QUERIES_AT_ONCE], np.float32)
            similarities = part @ self._vectors.T
            nearest = np.argsort(-similarities, axis=1, kind="stable")[:, :k]
            query_frames = np.repeat(np.arange(len(part), dtype=np.int32), nearest.shape[1])
            rows = nearest.reshape(-1)
            frames = self._frames.take(pa.array(rows))
            columns = [
                start + query_frames,
                frames["video_id"],
                frames["second"],
                similarities[query_frames, rows],
            ]
            tables.append(pa.table(columns, schema=FOUND_FRAMES))

        return pa.concat_tables(tables)

    def frames(self) -> IndexedFrames:
        """As `FrameSearch.frames`."""
        return self


class MemoryIndex:
    """A `FrameIndex` that has all vectors in memory. Any thread may search it."""

    _state: IndexState
    _rows: pa.Table
    _frames: FramesInMemory

    def __init__(self, folder: str | Path, settings: IndexSettings) -> None:
        """Open it, and compare its file with the recorded digest.

        Raises: DataError where there is no index, and in an object store, DamagedError for one that
        cannot be read or whose file is not what was written.
        """
        del settings  # its searches have nothing to choose
        self._root = DataRoot(folder)
        self._root.local_path(STATE_FILE)  # without a common lock, writers would undo each other
        self._take()

    @staticmethod
    def create(
        folder: str | Path, dims: int, provenance: dict[str, Any], settings: IndexSettings
    ) -> MemoryIndex:
        """An index without videos; replaces any other.

        provenance: of descriptors

        Raises: DataError if it cannot be written.
        """
        root = DataRoot(folder)
        root.local_path(STATE_FILE)
        vector = pa.field(VECTOR, pa.list_(pa.float32(), dims), nullable=False)
        schema = pa.schema([SHARD, VIDEO_ID, SECOND, HASH, vector])
        with root.lock("index"):
            root.delete(STATE_FILE)
            state = IndexState(
                revision=0, dims=dims, provenance=provenance, version=1, shards={}, files={}
            )
            _write(root, state, schema.empty_table())

        return MemoryIndex(folder, settings)

    @staticmethod
    def has_written(state: IndexState) -> bool:
        """Whether the state of an index is of one of this kind."""
        return any(name.startswith(f"{FRAMES_FOLDER}/") for name in state.files)

    def search_frames(self, queries: npt.NDArray[np.floating], k: int) -> pa.Table:
        """As `FrameIndex.search_frames`."""
        frames = self._frames.search_frames(unit(np.asarray(queries, np.float32)), k)
        similarity = frames["similarity"].to_numpy().clip(-1, 1)
        position = frames.schema.get_field_index("similarity")
        return frames.set_column(position, frames.schema.field(position), [similarity])

    def frames(self) -> IndexedFrames:
        """As `FrameIndex.frames`."""
        return self._frames

    def videos(self) -> dict[str, str]:
        """As `FrameIndex.videos`."""
        names = self._rows["video_id"].to_pylist()
        return dict(zip(names, self._rows["shard"].to_pylist(), strict=True))

    def shard_digests(self) -> dict[str, str]:
        """As `FrameIndex.shard_digests`."""
        return dict(self._state.shards)

    def status(self) -> IndexStatus:
        """As `FrameIndex.status`."""
        return IndexStatus(
            revision=self._state.revision,
            dims=self._state.dims,
            videos=len(self.videos()),
            frames=len(self._rows),
            unindexed_frames=0,
            parts=0,
            fragments=1,
            shards=self.shard_digests(),
            digest=digest_of([self._state.provenance, self._state.shards]),
        )

    def replace_shard(self, shard: str, frames: pa.Table, *, digest: str = "") -> None:
        """As `FrameIndex.replace_shard`."""

        def change(rows: pa.Table, shards: dict[str, str]) -> pa.Table:
            shards[shard] = digest
            names = pa.array([shard] * len(frames), pa.string())
            added = frames.append_column(SHARD, names).select(rows.schema.names).cast(rows.schema)
            return pa.concat_tables([_without(rows, "shard", [shard]), added])

        self._change(change)

    def delete_shard(self, shard: str) -> None:
        """As `FrameIndex.delete_shard`."""

        def change(rows: pa.Table, shards: dict[str, str]) -> pa.Table:
            shards.pop(shard, None)
            return _without(rows, "shard", [shard])

        self._change(change)

    def forget(self, video_ids: Sequence[str], renamed: Mapping[str, str]) -> None:
        """As `FrameIndex.forget`."""

        def change(rows: pa.Table, shards: dict[str, str]) -> pa.Table:
            for key, digest in shards.items():
                shards[key] = renamed.get(digest, digest)
            return _without(rows, "video_id", video_ids)

        self._change(change)

    def optimise(self, *, rebuild: bool = False) -> None:
        """As `FrameIndex.optimise`: nothing makes these searches faster."""

    def recall(self, *, probes: int = 200) -> float:
        """As `FrameIndex.recall`: every search is exact."""
        return 1.0

    def verify(
        self, passed: set[str] | None = None, *, until: Callable[[], bool] = lambda: False
    ) -> list[str]:
        """As `FrameIndex.verify`."""
        passed = set() if passed is None else passed
        problems = problems_of_files(self._root, self._state, passed, until=until)
        unknown_shards = set(self.videos().values()) - self._state.shards.keys()
        if not problems and unknown_shards:
            problems.append(foreign_state(self._root))
        if problems and is_replaced(self._root, self._state):
            return []
        return problems

    def _take(self) -> None:
        """Read the version that index.json names, or the one that replaces it meanwhile."""
        while True:
            state = read_state(self._root)
            try:
                require_whole(self._root, state)
                rows = _read(self._root, state)
                break
            except DataError:
                if not is_replaced(self._root, state):
                    raise

        self._state = state
        self._rows = rows
        self._frames = FramesInMemory(rows)

    def _change(self, change: Callable[[pa.Table, dict[str, str]], pa.Table]) -> None:
        """Store the rows that `change` returns, with the shards, which it changes in place."""
        with self._root.lock("index"):
            self._take()
            shards = dict(self._state.shards)
            rows = change(self._rows, shards)
            if shards == self._state.shards and rows.equals(self._rows):
                return
            state = replace(
                self._state,
                revision=self._state.revision + 1,
                version=self._state.version + 1,
                shards=shards,
            )
            _write(self._root, state, rows)
            self._take()


def _without(rows: pa.Table, column: str, values: Sequence[str]) -> pa.Table:
    """The rows that have none of these values."""
    gone = pc.is_in(rows[column], pa.array(values, pa.string()))
    return rows.filter(pc.invert(gone))


def _file_of(state: IndexState) -> str:
    return f"{FRAMES_FOLDER}/{state.version}.arrow"


def _read(root: DataRoot, state: IndexState) -> pa.Table:
    """The rows of a state. Raises DamagedError where they are not what was written."""
    name = _file_of(state)
    if list(state.files) != [name]:
        raise DamagedError(foreign_state(root))
    with root.open(name) as file, root.corruption_errors(name, hint=REBUILD):
        rows = pa.ipc.open_file(file).read_all()
        rows.validate(full=True)

    return rows


def _write(root: DataRoot, state: IndexState, rows: pa.Table) -> None:
    """Store rows and the state that names them, and remove what was stored before."""
    name = _file_of(state)
    with root.write(name) as stream, pa.ipc.new_file(stream, rows.schema) as writer:
        writer.write_table(rows)
    files = file_digests(root, [name], {})
    root.write_json(STATE_FILE, asdict(replace(state, files=files)))
    for file in root.list_files(FRAMES_FOLDER):
        before = f"{FRAMES_FOLDER}/{file}"
        if before != name:
            root.delete(before)
