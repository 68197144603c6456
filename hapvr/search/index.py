"""The index of a collection: descriptors of frames, found by their cosine, and their hashes. The
only module that knows Lance.

<folder>/frames.lance    a row per kept frame: shard, video_id, second, hash, vector
<folder>/index.json      its current version, digests of its files, and the shards; written last

Whoever opens the index sees the version of one index.json, so a change is seen whole or not at all,
and what a killed writer left is overwritten by the next. Writers follow each other by a lock; in an
object store, which has none, a writer that comes between two steps of another is noticed by the
version of the table, and refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from hapvr.data.checked_files import CheckedFiles
from hapvr.data.filesystem import DataRoot
from hapvr.errors import DamagedError, DataError, HapvrError
from hapvr.files import digest_of, naming_full_disk
from hapvr.search.hashes import FOUND_FRAMES, SECOND, VIDEO_ID, IndexedFrames
from hapvr.seeding import numpy_rng
from hapvr.settings import IndexSettings, first_line

os.environ.setdefault(
    "LANCE_LOG", "error"
)  # its warnings about its own future are nobody's business here
# From a million values of centres on, the engine would otherwise guess the nearest centre of a row:
# rows come into wrong lists, and some lists become a hundred times as long as the others
# (docs/results.md).
os.environ.setdefault("LANCE_USE_HNSW_SPEEDUP_INDEXING", "disabled")
import lance

STATE_FILE, TABLE, VECTOR = "index.json", "frames.lance", "vector"
LANCE_ERRORS = (OSError, ValueError, RuntimeError, KeyError, pa.ArrowException)
SHARD, HASH = (
    pa.field("shard", pa.string(), nullable=False),
    pa.field("hash", pa.uint64(), nullable=False),
)
BLOCK = 8
"""The codes of an index want vectors whose length is a multiple of this."""
STORED = pa.float32()
"""Stored type of the vectors. Half precision takes half the space, and building its index 4 to 6
times as long."""
METRIC = "cosine"
LIST_ROWS = 4096
"""Rows of an inverted list, on average; more where that would give more than MAX_LISTS lists."""
MAX_LISTS = 4096
"""A build compares every row with the centre of every list, so more of them take days for 100
million rows."""
SAMPLE_RATE = 64
"""Vectors per inverted list that the centres of the lists are computed from."""
MAX_NEW_RATE = 0.05
"""Rows outside the index, as a part of all rows, from which on they are added to it."""
MAX_PARTS = 16
"""Parts of an index; with more it is rebuilt."""
MAX_FRAGMENTS = 48
"""Fragments of a table, from which on small ones are joined: a search opens every one."""
FRAGMENT_ROWS = 2**20
"""Rows from which on a fragment is large; more where a table would have more than MAX_FRAGMENTS / 2
of them."""
CACHE_BYTES = 2**30
"""Memory for parts of the index that were read."""
KEEP_S = 3600.0
"""How long a version stays readable for searches that have it open."""
REBUILD = "`hapvr index build` makes it again"

MIN_RECALL = 0.9
"""Part of their exact nearest neighbours that must be found; an index below does not serve."""

Dataset = Any
"""A `lance.LanceDataset`, at one version."""
Record = TypeVar("Record")


@dataclass(frozen=True, kw_only=True)
class IndexState:
    """What index.json holds. revision: number of changes so far. dims: of the descriptors.
    provenance: what they were made with. version: of the table. shards: name -> digest of the
    descriptors taken in. files: path of each file of the table -> SHA-256."""

    revision: Annotated[int, Field(ge=0, lt=2**63)]
    dims: Annotated[int, Field(ge=1, lt=2**31)]
    provenance: dict[str, Any]
    version: Annotated[int, Field(ge=1, lt=2**63)]
    shards: dict[str, str]
    files: dict[str, str]


@dataclass(frozen=True)
class IndexStatus:
    """What an index holds. revision: number of changes so far. unindexed_frames: are found too, but
    compared one by one. parts: of the index over frames; 0 where every frame is compared.
    fragments: of the table, files that each search opens. shards: name -> digest of what is indexed
    of it. digest: SHA-256 of what is indexed, the model and all shards."""

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

    _indexed_frames: IndexedFrames | None

    def __init__(self, folder: str | Path, settings: IndexSettings) -> None:
        """Open it, and compare every file with its digest: see `CheckedFiles` for when it is read.

        Raises DataError where there is no index, DamagedError for one that cannot be read or whose
        files are not what was written.
        """
        self._root, self._settings = DataRoot(folder), settings
        self._place = self._root.url_of(TABLE)
        state = read_record(self._root, STATE_FILE, IndexState)
        self._require_whole(state)
        self._take(state)
        if _files(self._table) != sorted(state.files) and not self._is_replaced(state):
            raise DamagedError(self._foreign_state())

    @staticmethod
    def create(
        folder: str | Path, dims: int, provenance: dict[str, Any], settings: IndexSettings
    ) -> FrameIndex:
        """An index without videos; replaces any other. provenance: of descriptors. Raises DataError
        if it cannot be written."""
        root = DataRoot(folder)
        with root.lock("index"):
            root.delete(STATE_FILE)
            vector = pa.field(VECTOR, pa.list_(STORED, -(-dims // BLOCK) * BLOCK), nullable=False)
            rows, place = (
                pa.schema([SHARD, VIDEO_ID, SECOND, HASH, vector]).empty_table(),
                root.url_of(TABLE),
            )
            with _naming_damage(place):
                lance.write_dataset(
                    rows, place, mode="overwrite", storage_options=_storage_options(place)
                )
            table = _open(place)
            version, files = int(table.version), _digests(root, table, {})
            state = IndexState(
                revision=0,
                dims=dims,
                provenance=provenance,
                version=version,
                shards={},
                files=files,
            )
            root.write_json(STATE_FILE, asdict(state))
        return FrameIndex(folder, settings)

    def replace_shard(self, shard: str, frames: pa.Table, *, digest: str = "") -> None:
        """Take in the descriptors of a shard, in place of those it had. frames: video_id, second,
        hash and vector of the frames that can be found. Vectors are fixed-size lists of `dims`
        floats, of any length but 0. digest: what `status` tells of the shard."""

        def change(table: Dataset, shards: dict[str, str]) -> Dataset:
            if shard in shards:
                table = _without(table, "shard", [shard])
            shards[shard] = digest
            if not len(frames):
                return table
            return append(
                table, frames.append_column(SHARD, pa.array([shard] * len(frames), pa.string()))
            )

        self._change(change)

    def delete_shard(self, shard: str) -> None:
        """Forget a shard; nothing happens where there is none of this name."""
        self._change(
            lambda table, held: (
                table if held.pop(shard, None) is None else _without(table, "shard", [shard])
            )
        )

    def forget(self, video_ids: Sequence[str], renamed: Mapping[str, str]) -> None:
        """Remove videos, and every file that has their vectors: searches that have an earlier
        version open fail. renamed: digest of a shard's descriptors -> that of those without the
        videos."""

        def change(table: Dataset, shards: dict[str, str]) -> Dataset:
            shards |= {key: renamed.get(digest, digest) for key, digest in shards.items()}
            return self._compacted(_without(table, "video_id", video_ids), whole=True)

        self._change(change, forget="all")

    def optimise(self, *, rebuild: bool = False) -> None:
        """Index rows that are new, where there are enough of them, join small fragments where there
        are many, and remove versions that nobody reads any more.

        rebuild: build the whole index again. What was replaced stays readable for as long as
        `KEEP_S`."""
        self._change(
            lambda table, _: self._indexed(self._compacted(table), rebuild=rebuild), forget="old"
        )

    def search_frames(
        self,
        queries: npt.NDArray[np.floating],
        k: int,
        *,
        exact: bool = False,
        min_refined: int = 0,
    ) -> pa.Table:
        """The k nearest frames of each query frame, nearest first. queries: [Q, dims], finite, none
        of them zero. exact: compare all rows. min_refined: `refine_factor` where that of the
        settings is less. Returns FOUND_FRAMES, query_frame from 0, similarity a cosine in [-1, 1],
        that of the codes of indexed rows without a factor; fewer than k rows a query where the
        index has fewer."""
        table, columns, padded = self._table, ["video_id", "second"], _padded(self._table, queries)
        with _naming_damage(self._place):
            indices = [] if exact else table.describe_indices()
            indexed = {
                number
                for one in indices[:1]
                for part in one.segments
                for number in part.fragment_ids
            }
            others = [one for one in table.get_fragments() if one.fragment_id not in indexed]
            # Compared exactly here: for some hundred queries the engine takes four times as long,
            # and gigabytes, since it compares them one by one.
            directions = padded / np.linalg.norm(padded, axis=1, keepdims=True)
            best = np.full((len(queries), k), -np.inf, np.float32)
            numbers, similarities = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
            tables = [table.schema.empty_table().select(columns)]
            for batch in table.scanner(columns=[*columns, VECTOR], fragments=others).to_batches():
                vectors = np.asarray(batch[VECTOR].flatten(), np.float32).reshape(len(batch), -1)
                near = (directions @ vectors.T / np.linalg.norm(vectors, axis=1)).astype(np.float32)
                best = np.partition(np.hstack([best, near]), -k, axis=1)[:, -k:]
                query, row = np.nonzero(near >= best.min(axis=1, keepdims=True))
                numbers.append(query)
                similarities.append(near[query, row])
                tables.append(pa.Table.from_batches([batch.select(columns)]).take(pa.array(row)))
            if indexed:
                # Only without a factor do all queries share one pass over the lists.
                refined = max(self._settings.refine_factor, min_refined) or None
                lists = {"nprobes": self._settings.probed_lists, "refine_factor": refined}
                hits = table.scanner(
                    columns=[*columns, "_distance"],
                    nearest={"column": VECTOR, "q": padded, "k": k, "metric": METRIC, **lists},
                    disable_scoring_autoprojection=True,
                    fast_search=True,
                ).to_table()
                numbers.append(hits["query_index"].to_numpy())
                similarities.append(1 - hits["_distance"].to_numpy())
                tables.append(hits.select(columns))
        number, similarity = np.concatenate(numbers), np.concatenate(similarities)
        order = np.lexsort((-similarity, number))
        rank = np.arange(len(order)) - np.searchsorted(number[order], number[order])
        order = order[rank < k]
        near, found = (
            similarity[order].clip(-1, 1).astype(np.float32),
            pa.concat_tables(tables).take(pa.array(order)),
        )
        return pa.table([number[order].astype(np.int32), *found.columns, near], schema=FOUND_FRAMES)

    def frames(self) -> IndexedFrames:
        """All hashes, read once, so that an index can be searched on when it was replaced and its
        files are gone."""
        if self._indexed_frames is None:
            with _naming_damage(self._place):
                self._indexed_frames = IndexedFrames(
                    self._table.to_table(columns=["video_id", "second", "hash"])
                )
        return self._indexed_frames

    def videos(self) -> dict[str, str]:
        """Video id -> shard of every video, read without holding all rows."""
        names = ["video_id", "shard"]
        with _naming_damage(self._place):
            found = [self._table.schema.empty_table().select(names)]
            for batch in self._table.scanner(columns=names).to_batches():
                found.append(pa.Table.from_batches([batch]).group_by(names).aggregate([]))
        rows = pa.concat_tables(found).group_by(names).aggregate([])
        return dict(zip(rows["video_id"].to_pylist(), rows["shard"].to_pylist(), strict=True))

    def verify(
        self, passed: set[str] | None = None, *, until: Callable[[], bool] = lambda: False
    ) -> list[str]:
        """What is wrong with the files of the index: a sentence for each that is missing or holds
        other bytes. passed: digests of files that need not be read again; those of this call are
        added. until: true ends the call."""
        passed = set() if passed is None else passed
        wrong = []
        for name, digest in self._state.files.items():
            if digest in passed or until():
                continue
            found = self._root.sha256(name) if self._root.exists(name) else ""
            if found == digest:
                passed.add(digest)
            else:
                wrong.append(self._problem(name, found))
        if not wrong and self._is_of_another_table():
            wrong.append(self._foreign_state())
        return [] if wrong and self._is_replaced(self._state) else wrong

    def _require_whole(self, state: IndexState) -> None:
        """Raise DamagedError unless every file of the index is what was written. This comes before
        the engine opens it, which would wait for the writer of a pipe."""
        checked = CheckedFiles(self._root)
        for name, digest in state.files.items():
            try:
                found = checked.sha256(name)
            except DataError as error:  # a pipe, or a disk that does not give it back
                problem = f"cannot be read ({error.__cause__ or error})"
                place = self._root.url_of(name)
                raise DamagedError(f"search: {place} {problem}; {REBUILD}") from error
            if found != digest and not self._is_replaced(state):
                raise DamagedError(self._problem(name, found))
        checked.save()

    def _problem(self, name: str, found: str) -> str:
        """What is wrong with a file that has not its digest. found: its digest; "" if it is
        missing."""
        problem = "is not what was written" if found else "is missing"
        return f"search: {self._root.url_of(name)} {problem}; {REBUILD}"

    def _foreign_state(self) -> str:
        return f"search: {self._root.url_of(STATE_FILE)} is of another table; {REBUILD}"

    def _is_of_another_table(self) -> bool:
        unknown_shards = {*self.videos().values()} - self._state.shards.keys()
        return bool(unknown_shards) or _files(self._table) != sorted(self._state.files)

    def _is_replaced(self, state: IndexState) -> bool:
        """Whether there is a newer version: files of this one may then be gone by right."""
        return read_record(self._root, STATE_FILE, IndexState).revision != state.revision

    def recall(self, *, probes: int = 200) -> float:
        """What part of their ten exact nearest neighbours stored vectors find, in [0, 1]; 1 where
        there are none. probes: how many, drawn at random. Every vector is read once. Raises
        DamagedError where the index cannot be read."""
        with _naming_damage(self._place):
            if not (rows := int(self._table.count_rows())):
                return 1.0
            chosen = np.sort(
                numpy_rng(0, "frames").choice(rows, size=min(probes, rows), replace=False)
            )
            queries, nearest = (
                vectors_of(self._table.take(chosen.tolist(), columns=[VECTOR])),
                min(10, rows),
            )
        found = self.search_frames(queries, nearest, min_refined=10)
        exact, least = (
            self.search_frames(queries, nearest, exact=True),
            np.full(len(chosen), np.inf, np.float32),
        )
        np.minimum.at(least, exact["query_frame"].to_numpy(), exact["similarity"].to_numpy())
        # By similarity: rows that are equally near, as half precision tells, may stand for each
        # other.
        enough = found["similarity"].to_numpy() >= least[
            found["query_frame"].to_numpy()
        ] - np.float32(1e-3)
        return int(enough.sum()) / (len(chosen) * nearest)

    def shard_digests(self) -> dict[str, str]:
        """Shard -> digest of what is indexed of it."""
        return dict(self._state.shards)

    def status(self) -> IndexStatus:
        """What the index holds."""
        with _naming_damage(self._place):
            rows, fragments, indexed, parts = _counts(self._table)
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
        self._indexed_frames = None
        self._table = _open(self._place, state.version)
        self._state = state

    def _change(
        self,
        change: Callable[[Dataset, dict[str, str]], Dataset],
        *,
        forget: Literal["none", "old", "all"] = "none",
    ) -> None:
        """Make what `change` returns the table of the index, with the shards, which it changes in
        place. forget: versions before the last, with their files: none, those older than KEEP_S, or
        all, and every file that the last one does not use: keep other writers out."""
        with self._root.lock("index"), _naming_damage(self._place):
            state = read_record(self._root, STATE_FILE, IndexState)
            shards, table = dict(state.shards), _open(self._place, state.version)
            if table.latest_version != table.version:  # a writer was killed
                table.restore()
            table = change(table, shards)
            if (table.version, shards) != (state.version, state.shards):
                files = _digests(self._root, table, state.files)
                version = int(table.version)
                state = replace(
                    state, revision=state.revision + 1, version=version, shards=shards, files=files
                )
                self._root.write_json(STATE_FILE, asdict(state))
            self._take(state)
            if forget != "none":
                whole, older = forget == "all", timedelta(seconds=0 if forget == "all" else KEEP_S)
                self._table.cleanup_old_versions(older_than=older, delete_unverified=whole)

    def _compacted(self, table: Dataset, *, whole: bool = False) -> Dataset:
        """With small fragments joined where there are more than MAX_FRAGMENTS. whole: in any case,
        and every fragment written again that has deleted rows, and an index that has their codes.
        """
        before, (rows, fragments, *_) = table.version, _counts(table)
        if fragments <= MAX_FRAGMENTS and not whole:
            return table
        table.optimize.compact_files(
            target_rows_per_fragment=max(FRAGMENT_ROWS, 2 * rows // MAX_FRAGMENTS),
            materialize_deletions_threshold=0.0 if whole else None,
        )
        # one version reserves the numbers of fragments, the next has them
        after = _next(_open(self._place), before + 1)
        if whole and after.version == before:
            # the record of a deletion, with its values, is no longer that of the last version
            after.restore()
        if whole and (found := after.describe_indices()):
            if rows >= self._settings.min_indexed_rows:
                return self._indexed(after, rebuild=True)
            after.drop_index(found[0].name)
        return after

    def _indexed(self, table: Dataset, *, rebuild: bool) -> Dataset:
        """With its index up to date: nothing is done, or a part is made for the rows that are new,
        or another index. rebuild: build it again in any case where there are enough rows for one.
        """
        before, (rows, _, indexed, parts) = table.version, _counts(table)
        if rows < self._settings.min_indexed_rows:
            return table
        # Parts are never merged, see lance#7730: too many of them make a new index.
        if rebuild or not parts or parts >= MAX_PARTS:
            lists, bits = max(1, min(rows // LIST_ROWS, MAX_LISTS)), self._settings.code_bits
            options = {
                "metric": METRIC,
                "replace": True,
                "sample_rate": SAMPLE_RATE,
                "num_bits": bits,
            }
            table.create_index(VECTOR, "IVF_RQ", num_partitions=lists, **options)
        elif rows - indexed > MAX_NEW_RATE * rows:
            table.optimize.optimize_indices(num_indices_to_merge=0)
        return _next(_open(self._place), before)


def append(table: Dataset, rows: pa.Table) -> Dataset:
    """The next version, with these rows. Their vectors are fixed-size lists of `dims` floats, none
    of them zero."""
    before, schema, padded = table.version, table.schema, _padded(table, vectors_of(rows))
    column = pa.FixedSizeListArray.from_arrays(pa.array(padded.reshape(-1)), padded.shape[1])
    rows = (
        rows.drop_columns([VECTOR]).append_column(VECTOR, column).select(schema.names).cast(schema)
    )
    return _next(lance.write_dataset(rows, table, mode="append"), before)


def vectors_of(rows: pa.Table) -> npt.NDArray[np.floating]:
    """[N, dims], the vectors of a table."""
    column = rows[VECTOR].combine_chunks()
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(
        len(rows), column.type.list_size
    )


def read_record(root: DataRoot, name: str, kind: type[Record]) -> Record:
    """The dataclass that a JSON file of search holds. Raises DataError where there is none,
    DamagedError for another value."""
    if not root.exists(name):
        raise DataError(
            f"search: there is no index below {root.url}; `hapvr index build` makes one"
        )
    return root.read_json_as(name, kind, hint=REBUILD)


def _open(place: str, version: int | None = None) -> Dataset:
    """The table at a version; None: the last one. Raises DamagedError where it cannot be read."""
    with _naming_damage(place):
        options = _storage_options(place)
        return lance.dataset(
            place, version=version, index_cache_size_bytes=CACHE_BYTES, storage_options=options
        )


def _next(table: Dataset, before: int) -> Dataset:
    """The table after one change; an error if another writer came between: without a common lock
    (object stores) nothing else shows it."""
    if table.version > before + 1:
        raise OSError("conflict: there is a version of another writer")
    return table


def _without(table: Dataset, column: str, values: Sequence[str]) -> Dataset:
    """The next version, without the rows that have one of these values."""
    before, quoted = (
        table.version,
        ", ".join("'" + value.replace("'", "''") + "'" for value in values),
    )
    table.delete(f"{column} IN ({quoted})")
    return _next(table, before)


def _counts(table: Dataset) -> tuple[int, int, int, int]:
    """Rows; fragments that they are stored in, of which each append makes one; rows that the index
    holds, and its parts."""
    rows, fragments, found = (
        int(table.count_rows()),
        len(table.get_fragments()),
        table.describe_indices(),
    )
    return (
        rows,
        fragments,
        *((int(found[0].num_rows_indexed), len(found[0].segments)) if found else (0, 0)),
    )


def _padded(table: Dataset, vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Vectors [N, dims] with zeros up to the stored width."""
    padded = np.zeros((len(vectors), table.schema.field(VECTOR).type.list_size), np.float32)
    padded[:, : vectors.shape[1]] = vectors
    return padded


def _digests(root: DataRoot, table: Dataset, known: Mapping[str, str]) -> dict[str, str]:
    """Name of each of `_files` -> SHA-256; files of these names never change, so those that are
    known are not read again."""
    checked = CheckedFiles(root)
    digests = {name: known.get(name) or checked.sha256(name) for name in _files(table)}
    checked.save()
    return digests


def _files(table: Dataset) -> list[str]:
    """The files that this version is read from, sorted."""
    with _naming_damage(table.uri):
        tracked = table.tracked_files(min_version=table.version).read_all().to_pylist()
    used = [
        file
        for file in tracked
        if file["version"] == table.version and file["type"] != "transaction file"
    ]
    return sorted(f"{TABLE}/{file['path']}" for file in used)


@contextmanager
def _naming_damage(place: str) -> Iterator[None]:
    """Turn Lance's errors into a DamagedError that names the dataset, or a DataError where the disk
    is full."""
    try:
        with naming_full_disk(place, hint=REBUILD):
            yield
    except HapvrError:
        raise
    except BaseException as error:
        # a panic of the engine is no Exception, and its class cannot be imported
        if not isinstance(error, LANCE_ERRORS) and type(error).__name__ != "PanicException":
            raise
        if "conflict" in str(error).lower():
            raise DataError(
                f"search: another process changed {place} at the same time; run this again "
                "when that one has ended"
            ) from error
        said = first_line(error).replace(place.lstrip("/"), TABLE)
        hint = f"if another process has just changed it, run this again; else {REBUILD}"
        raise DamagedError(f"search: {place} cannot be used ({said}); {hint}") from error


def _storage_options(place: str) -> dict[str, str] | None:
    """What the engine must be told of an object store; server, region and keys it reads from
    AWS_... itself."""
    if "://" not in place:
        return None
    if "?" in place:
        raise DataError(
            f"search: {place} has options behind a question mark, which the index does not "
            "take; set AWS_ENDPOINT_URL and "
            "AWS_DEFAULT_REGION instead"
        )
    return (
        {"allow_http": "true"}
        if os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
        else {}
    )
