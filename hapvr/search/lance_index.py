"""An index in Lance, for collections of any size.

<folder>/frames.lance    a row per kept frame: shard, video_id, second, hash, vector
<folder>/index.json      see `hapvr.search.frame_index`

Writers follow each other by a lock; in an object store, which has none, a writer that comes between
two steps of another is noticed by the version of the table, and refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hapvr.data.filesystem import DataRoot
from hapvr.errors import DamagedError
from hapvr.files import digest_of
from hapvr.search.frame_index import (
    SHARD,
    STATE_FILE,
    VECTOR,
    IndexState,
    IndexStatus,
    read_state,
    vectors_of,
)
from hapvr.search.hashes import IndexedFrames
from hapvr.search.index_files import (
    file_digests,
    foreign_state,
    is_replaced,
    problems_of_files,
    require_whole,
)
from hapvr.search.lance_search import nearest_frames
from hapvr.search.lance_table import (
    TABLE,
    Dataset,
    append,
    counts_of,
    create_table,
    files_of,
    open_table,
    translated_errors,
    without,
)
from hapvr.search.lance_upkeep import TableUpkeep
from hapvr.seeding import numpy_rng
from hapvr.settings import IndexSettings

KEEP_S = 3600.0
"""How long a version stays readable for searches that have it open."""


class LanceIndex:
    """A `FrameIndex` as it was when it was opened. Any thread may search it."""

    _indexed_frames: IndexedFrames | None
    _table: Dataset
    _state: IndexState

    def __init__(self, folder: str | Path, settings: IndexSettings) -> None:
        """Open it, and compare every file with its digest. This comes before the engine opens it,
        which would wait for the writer of a pipe.

        Raises: DataError where there is no index, DamagedError for one that cannot be read or whose
        files are not what was written.
        """
        self._root = DataRoot(folder)
        self._settings = settings
        self._place = self._root.url_of(TABLE)
        self._upkeep = TableUpkeep(self._place, settings)
        state = read_state(self._root)
        require_whole(self._root, state)
        self._take(state)
        if files_of(self._table) != sorted(state.files) and not is_replaced(self._root, state):
            raise DamagedError(foreign_state(self._root))

    @staticmethod
    def create(
        folder: str | Path, dims: int, provenance: dict[str, Any], settings: IndexSettings
    ) -> LanceIndex:
        """An index without videos; replaces any other.

        provenance: of descriptors

        Raises: DataError if it cannot be written.
        """
        root = DataRoot(folder)
        with root.lock("index"):
            root.delete(STATE_FILE)
            table = create_table(root.url_of(TABLE), dims)
            state = IndexState(
                revision=0,
                dims=dims,
                provenance=provenance,
                version=int(table.version),
                shards={},
                files=file_digests(root, files_of(table), {}),
            )
            root.write_json(STATE_FILE, asdict(state))

        return LanceIndex(folder, settings)

    @staticmethod
    def has_written(state: IndexState) -> bool:
        """Whether the state of an index is of one of this kind."""
        return any(name.startswith(f"{TABLE}/") for name in state.files)

    def replace_shard(self, shard: str, frames: pa.Table, *, digest: str = "") -> None:
        """As `FrameIndex.replace_shard`."""

        def change(table: Dataset, shards: dict[str, str]) -> Dataset:
            if shard in shards:
                table = without(table, "shard", [shard])
            shards[shard] = digest
            if not len(frames):
                return table
            names = pa.array([shard] * len(frames), pa.string())
            return append(table, frames.append_column(SHARD, names))

        self._change(change)

    def delete_shard(self, shard: str) -> None:
        """As `FrameIndex.delete_shard`."""

        def change(table: Dataset, shards: dict[str, str]) -> Dataset:
            if shards.pop(shard, None) is None:
                return table
            return without(table, "shard", [shard])

        self._change(change)

    def forget(self, video_ids: Sequence[str], renamed: Mapping[str, str]) -> None:
        """As `FrameIndex.forget`. Keep other writers out."""

        def change(table: Dataset, shards: dict[str, str]) -> Dataset:
            for key, digest in shards.items():
                shards[key] = renamed.get(digest, digest)
            remaining = without(table, "video_id", video_ids)
            return self._upkeep.without_deleted_rows(remaining)

        with self._root.lock("index"):
            self._change(change)
            # Also every file that the last version does not use.
            self._remove_versions(older_than_s=0.0, unverified=True)

    def optimise(self, *, rebuild: bool = False) -> None:
        """Index rows that are new, where there are enough of them, join small fragments where there
        are many, and remove versions that are no longer read.

        rebuild: build the whole index again. What was replaced stays readable for as long as
            `KEEP_S`.
        """

        def change(table: Dataset, _: dict[str, str]) -> Dataset:
            return self._upkeep.indexed(self._upkeep.with_few_fragments(table), rebuild=rebuild)

        with self._root.lock("index"):
            self._change(change)
            self._remove_versions(older_than_s=KEEP_S, unverified=False)

    def search_frames(
        self,
        queries: npt.NDArray[np.floating],
        k: int,
        *,
        exact: bool = False,
        min_refined: int = 0,
    ) -> pa.Table:
        """As `FrameIndex.search_frames`; similarities are those of the codes of indexed rows
        without a `refine_factor`.

        exact: compare all rows
        min_refined: `refine_factor` where that of the settings is less
        """
        with translated_errors(self._place):
            return nearest_frames(
                self._table,
                queries,
                k,
                exact=exact,
                probed_lists=self._settings.probed_lists,
                refine_factor=max(self._settings.refine_factor, min_refined),
            )

    def frames(self) -> IndexedFrames:
        """As `FrameIndex.frames`."""
        if self._indexed_frames is None:
            with translated_errors(self._place):
                rows = self._table.to_table(columns=["video_id", "second", "hash"])
                self._indexed_frames = IndexedFrames(rows)
        return self._indexed_frames

    def videos(self) -> dict[str, str]:
        """Video id -> shard of every video, read without holding all rows."""
        names = ["video_id", "shard"]
        with translated_errors(self._place):
            parts = [self._table.schema.empty_table().select(names)]
            for batch in self._table.scanner(columns=names).to_batches():
                parts.append(pa.Table.from_batches([batch]).group_by(names).aggregate([]))

        rows = pa.concat_tables(parts).group_by(names).aggregate([])
        return dict(zip(rows["video_id"].to_pylist(), rows["shard"].to_pylist(), strict=True))

    def verify(
        self, passed: set[str] | None = None, *, until: Callable[[], bool] = lambda: False
    ) -> list[str]:
        """As `FrameIndex.verify`."""
        passed = set() if passed is None else passed
        problems = problems_of_files(self._root, self._state, passed, until=until)
        if not problems and self._is_of_another_table():
            problems.append(foreign_state(self._root))
        if problems and is_replaced(self._root, self._state):
            return []
        return problems

    def _is_of_another_table(self) -> bool:
        """Whether index.json names other shards or files than the table has."""
        unknown_shards = set(self.videos().values()) - self._state.shards.keys()
        return bool(unknown_shards) or files_of(self._table) != sorted(self._state.files)

    def recall(self, *, probes: int = 200) -> float:
        """As `FrameIndex.recall`. Every vector is read once."""
        with translated_errors(self._place):
            num_rows = int(self._table.count_rows())
            if not num_rows:
                return 1.0
            rng = numpy_rng(0, "frames")
            rows = np.sort(rng.choice(num_rows, size=min(probes, num_rows), replace=False))
            queries = vectors_of(self._table.take(rows.tolist(), columns=[VECTOR]))

        k = min(10, num_rows)
        nearest = self.search_frames(queries, k, min_refined=10)
        exact = self.search_frames(queries, k, exact=True)
        return _recall(nearest, exact, num_wanted=len(queries) * k)

    def shard_digests(self) -> dict[str, str]:
        """As `FrameIndex.shard_digests`."""
        return dict(self._state.shards)

    def status(self) -> IndexStatus:
        """As `FrameIndex.status`."""
        with translated_errors(self._place):
            counts = counts_of(self._table)
        return IndexStatus(
            revision=self._state.revision,
            dims=self._state.dims,
            videos=len(self.videos()),
            frames=counts.rows,
            unindexed_frames=counts.rows - counts.indexed_rows if counts.parts else 0,
            parts=counts.parts,
            fragments=counts.fragments,
            shards=self.shard_digests(),
            digest=digest_of([self._state.provenance, self._state.shards]),
        )

    def _take(self, state: IndexState) -> None:
        """Go on with the version that a state names."""
        self._indexed_frames = None
        self._table = open_table(self._place, state.version)
        self._state = state

    def _change(self, change: Callable[[Dataset, dict[str, str]], Dataset]) -> None:
        """Make what `change` returns the table of the index, with the shards, which it changes in
        place."""
        with self._root.lock("index"), translated_errors(self._place):
            state = read_state(self._root)
            table = open_table(self._place, state.version)
            if table.latest_version != table.version:  # a writer was killed
                table.restore()
            shards = dict(state.shards)
            table = change(table, shards)
            if (table.version, shards) != (state.version, state.shards):
                state = replace(
                    state,
                    revision=state.revision + 1,
                    version=int(table.version),
                    shards=shards,
                    files=file_digests(self._root, files_of(table), state.files),
                )
                self._root.write_json(STATE_FILE, asdict(state))

            self._take(state)

    def _remove_versions(self, *, older_than_s: float, unverified: bool) -> None:
        """Remove versions before the last, with their files.

        unverified: also files that no version names, which another writer may be about to use
        """
        with translated_errors(self._place):
            self._table.cleanup_old_versions(
                older_than=timedelta(seconds=older_than_s), delete_unverified=unverified
            )


def _recall(nearest: pa.Table, exact: pa.Table, *, num_wanted: int) -> float:
    """What part of the exact nearest neighbours was found. Neighbours are compared by similarity:
    rows that are equally near, as half precision tells, may stand for each other."""
    query_frames = exact["query_frame"].to_numpy()
    least = np.full(int(query_frames.max()) + 1, np.inf, np.float32)
    np.minimum.at(least, query_frames, exact["similarity"].to_numpy())
    wanted = least[nearest["query_frame"].to_numpy()] - np.float32(1e-3)
    num_found = int((nearest["similarity"].to_numpy() >= wanted).sum())
    return num_found / num_wanted
