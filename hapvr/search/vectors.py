"""Rows with a vector in a Lance dataset: the only module that knows the search engine.

A `VectorTable` is one version of a dataset, and each change makes the next one. Vectors are compared by their cosine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hapvr.errors import DamagedError, DataError, HapvrError
from hapvr.files import naming_full_disk
from hapvr.settings import IndexSettings, first_line

os.environ.setdefault("LANCE_LOG", "error")  # its warnings about its own future are nobody's business here
# From a million values of centres on, the engine would otherwise guess the nearest centre of a row: rows come into wrong
# lists, and some lists become a hundred times as long as the others (docs/results.md).
os.environ.setdefault("LANCE_USE_HNSW_SPEEDUP_INDEXING", "disabled")
import lance

VECTOR = "vector"
BLOCK = 8
"""The codes of an index want vectors whose length is a multiple of this."""
STORED = pa.float32()
"""Stored type of the vectors. Half precision takes half the space, and building its index 4 to 6 times as long."""
METRIC = "cosine"
LIST_ROWS = 4096
"""Rows of an inverted list, on average; more where that would give more than MAX_LISTS lists."""
MAX_LISTS = 4096
"""A build compares every row with the centre of every list, so more of them take days for 100 million rows."""
SAMPLE_RATE = 64
"""Vectors per inverted list that the centres of the lists are computed from."""
MAX_NEW_RATE = 0.05
"""Rows outside the index, as a part of all rows, from which on they are added to it."""
MAX_PARTS = 16
"""Parts of an index; with more it is rebuilt."""
MAX_FRAGMENTS = 48
"""Fragments of a table, from which on small ones are joined: a search opens every one."""
FRAGMENT_ROWS = 2**20
"""Rows from which on a fragment is large; more where a table would have more than MAX_FRAGMENTS / 2 of them."""
CACHE_BYTES = 2**30
"""Memory for parts of the index that were read."""
KEEP_S = 3600.0
"""How long a version stays readable for searches that have it open."""
REBUILD = "`hapvr index build` makes it again"


class VectorTable:
    """One version of a dataset. Any thread may search it."""

    def __init__(self, dataset: Any, settings: IndexSettings) -> None:
        """dataset: a `lance.LanceDataset`. For `create` and `open`."""
        self._dataset = dataset
        self._settings = settings

    @staticmethod
    def create(place: str, fields: Sequence[pa.Field], *, dims: int, settings: IndexSettings) -> VectorTable:
        """A table without rows; what is at this place is replaced. fields: all but the vector. dims: of the vectors."""
        padded = -(-dims // BLOCK) * BLOCK
        schema = pa.schema([*fields, pa.field(VECTOR, pa.list_(STORED, padded), nullable=False)])
        with _naming_damage(place):
            lance.write_dataset(schema.empty_table(), place, mode="overwrite", storage_options=_storage_options(place))
        return VectorTable.open(place, None, settings=settings)

    @staticmethod
    def open(place: str, version: int | None, *, settings: IndexSettings) -> VectorTable:
        """The table at a version; None: the last one. Raises DamagedError where it cannot be read."""
        with _naming_damage(place):
            options = _storage_options(place)
            dataset = lance.dataset(place, version=version, index_cache_size_bytes=CACHE_BYTES, storage_options=options)
            return VectorTable(dataset, settings)

    @property
    def version(self) -> int:
        return int(self._dataset.version)

    def counts(self) -> tuple[int, int, int, int]:
        """Rows; fragments that they are stored in, of which each append makes one; rows that the index holds, and its parts."""
        with _naming_damage(self._dataset.uri):
            rows, fragments = int(self._dataset.count_rows()), len(self._dataset.get_fragments())
            found = self._dataset.describe_indices()
            return rows, fragments, *((int(found[0].num_rows_indexed), len(found[0].segments)) if found else (0, 0))

    def as_latest(self) -> VectorTable:
        """This content as the last version, which it is not if a writer was killed."""
        with _naming_damage(self._dataset.uri):
            if self._dataset.latest_version != self._dataset.version:
                self._dataset.restore()
        return self

    def _next(self, dataset: Any, before: int) -> VectorTable:
        """The table after one change; an error where another writer changed it in between: without a common lock, as in an
        object store, nothing else shows that."""
        if dataset.version > before + 1:
            raise OSError("conflict: there is a version of another writer")
        return VectorTable(dataset, self._settings)

    def append(self, rows: pa.Table) -> VectorTable:
        """The next version, with these rows. Their vectors are fixed-size lists of `dims` floats, none of them zero."""
        schema, padded = self._dataset.schema, self._padded(vectors_of(rows))
        column = pa.FixedSizeListArray.from_arrays(pa.array(padded.reshape(-1)), padded.shape[1])
        rows = rows.drop_columns([VECTOR]).append_column(VECTOR, column).select(schema.names).cast(schema)
        before = self.version
        with _naming_damage(self._dataset.uri):
            return self._next(lance.write_dataset(rows, self._dataset, mode="append"), before)

    def delete(self, column: str, values: Sequence[str]) -> VectorTable:
        """The next version, without the rows that have one of these values."""
        before, quoted = self.version, ", ".join("'" + value.replace("'", "''") + "'" for value in values)
        with _naming_damage(self._dataset.uri):
            self._dataset.delete(f"{column} IN ({quoted})")
            return self._next(self._dataset, before)

    def compact(self, *, whole: bool = False) -> VectorTable:
        """Join small fragments where there are more than MAX_FRAGMENTS. whole: in any case, and write every fragment again
        that has deleted rows, and an index that has their codes."""
        before, (rows, fragments, *_) = self.version, self.counts()
        if fragments <= MAX_FRAGMENTS and not whole:
            return self
        with _naming_damage(self._dataset.uri):
            self._dataset.optimize.compact_files(
                target_rows_per_fragment=max(FRAGMENT_ROWS, 2 * rows // MAX_FRAGMENTS),
                materialize_deletions_threshold=0.0 if whole else None,
            )
            after = VectorTable.open(self._dataset.uri, None, settings=self._settings)
            # one version reserves the numbers of fragments, the next has them
            after = self._next(after._dataset, min(before + 1, after.version))
            if whole and after.version == before:
                after._dataset.restore()  # the record of a deletion, with its values, is no longer that of the last version
            if whole and (found := after._dataset.describe_indices()):
                if rows >= self._settings.min_indexed_rows:
                    return after.optimise(rebuild=True)
                after._dataset.drop_index(found[0].name)
        return after

    def nearest(
        self,
        queries: npt.NDArray[np.floating],
        k: int,
        columns: Sequence[str],
        *,
        exact: bool = False,
        min_refined: int = 0,
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], pa.Table]:
        """The k nearest rows of each query, by its number and nearness: numbers, similarities in [-1, 1], columns.

        queries: [Q, dims], not zero. exact: compare all rows. min_refined: `refine_factor` where that of the settings is
        less. Without one, and with codes of enough bits, the similarities of indexed rows are those of their codes.
        """
        padded = self._padded(queries)
        with _naming_damage(self._dataset.uri):
            indices = [] if exact else self._dataset.describe_indices()
            indexed = {number for one in indices[:1] for part in one.segments for number in part.fragment_ids}
            others = [one for one in self._dataset.get_fragments() if one.fragment_id not in indexed]
            # Compared exactly here: for some hundred queries the engine takes four times as long, and gigabytes, since it
            # compares them one by one.
            directions = padded / np.linalg.norm(padded, axis=1, keepdims=True)
            best = np.full((len(queries), k), -np.inf, np.float32)
            numbers, similarities = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
            tables = [self._dataset.schema.empty_table().select(list(columns))]
            for batch in self._dataset.scanner(columns=[*columns, VECTOR], fragments=others).to_batches():
                vectors = np.asarray(batch[VECTOR].flatten(), np.float32).reshape(len(batch), -1)
                near = (directions @ vectors.T / np.linalg.norm(vectors, axis=1)).astype(np.float32)
                best = np.partition(np.hstack([best, near]), -k, axis=1)[:, -k:]
                query, row = np.nonzero(near >= best.min(axis=1, keepdims=True))
                numbers.append(query)
                similarities.append(near[query, row])
                tables.append(pa.Table.from_batches([batch.select(list(columns))]).take(pa.array(row)))
            if indexed:
                # Only without a factor do all queries share one pass over the lists.
                refined = max(self._settings.refine_factor, min_refined) or None
                lists = {"nprobes": self._settings.probed_lists, "refine_factor": refined}
                hits = self._dataset.scanner(
                    columns=[*columns, "_distance"],
                    nearest={"column": VECTOR, "q": padded, "k": k, "metric": METRIC, **lists},
                    disable_scoring_autoprojection=True,
                    fast_search=True,
                ).to_table()
                numbers.append(hits["query_index"].to_numpy())
                similarities.append(1 - hits["_distance"].to_numpy())
                tables.append(hits.select(list(columns)))
        number, similarity = np.concatenate(numbers), np.concatenate(similarities)
        order = np.lexsort((-similarity, number))
        rank = np.arange(len(order)) - np.searchsorted(number[order], number[order])
        order = order[rank < k]
        near = similarity[order].clip(-1, 1).astype(np.float32)
        return number[order].astype(np.int32), near, pa.concat_tables(tables).take(pa.array(order))

    def _padded(self, vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
        """Vectors [N, dims] with zeros up to the stored width."""
        padded = np.zeros((len(vectors), self._dataset.schema.field(VECTOR).type.list_size), np.float32)
        padded[:, : vectors.shape[1]] = vectors
        return padded

    def columns(self, names: Sequence[str]) -> pa.Table:
        """These columns of all rows, in the order of storage."""
        with _naming_damage(self._dataset.uri):
            return self._dataset.to_table(columns=list(names))

    def distinct(self, names: Sequence[str]) -> pa.Table:
        """The different values of these columns, read without holding all rows."""
        with _naming_damage(self._dataset.uri):
            found = [self._dataset.schema.empty_table().select(list(names))]
            for batch in self._dataset.scanner(columns=list(names)).to_batches():
                found.append(pa.Table.from_batches([batch]).group_by(list(names)).aggregate([]))
        return pa.concat_tables(found).group_by(list(names)).aggregate([])

    def files(self) -> list[str]:
        """All files that this version is read from, below the dataset's folder. None is changed once it is written."""
        with _naming_damage(self._dataset.uri):
            tracked = self._dataset.tracked_files(min_version=self.version).read_all().to_pylist()
        return sorted(
            file["path"] for file in tracked if file["version"] == self.version and file["type"] != "transaction file"
        )

    def vectors(self, rows: Sequence[int]) -> npt.NDArray[np.floating]:
        """[N, dims] of the rows at these places, padded to the stored width."""
        with _naming_damage(self._dataset.uri):
            return vectors_of(self._dataset.take(list(rows), columns=[VECTOR]))

    def optimise(self, *, rebuild: bool = False) -> VectorTable:
        """Bring the index up to date: nothing, a part for the rows that are new, or another index.

        rebuild: build it again in any case where there are enough rows for one.
        """
        settings, before, (rows, _, indexed, parts) = self._settings, self.version, self.counts()
        if rows < settings.min_indexed_rows:
            return self
        with _naming_damage(self._dataset.uri):
            # Parts are never merged, see lance#7730: too many of them make a new index.
            if rebuild or not parts or parts >= MAX_PARTS:
                options = {
                    "metric": METRIC,
                    "replace": True,
                    "sample_rate": SAMPLE_RATE,
                    "num_bits": settings.code_bits,
                }
                lists = max(1, min(rows // LIST_ROWS, MAX_LISTS))
                self._dataset.create_index(VECTOR, "IVF_RQ", num_partitions=lists, **options)
            elif rows - indexed > MAX_NEW_RATE * rows:
                self._dataset.optimize.optimize_indices(num_indices_to_merge=0)
            after = VectorTable.open(self._dataset.uri, None, settings=settings)
            return self._next(after._dataset, before)

    def forget_versions(self, *, whole: bool = False) -> None:
        """Remove versions before the last, and their files, but for those that were made within `KEEP_S`.

        whole: those too, and every file that the last one is not read from; other writers must be kept out.
        """
        older = timedelta(seconds=0 if whole else KEEP_S)
        with _naming_damage(self._dataset.uri):
            self._dataset.cleanup_old_versions(older_than=older, delete_unverified=whole)


def vectors_of(rows: pa.Table) -> npt.NDArray[np.floating]:
    """[N, dims], the vectors of a table."""
    column = rows[VECTOR].combine_chunks()
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(len(rows), column.type.list_size)


@contextmanager
def _naming_damage(place: str) -> Iterator[None]:
    """Turn Lance's errors into a DamagedError that names the dataset, or a DataError where the disk is full."""
    try:
        with naming_full_disk(place, hint=REBUILD):
            yield
    except HapvrError:
        raise
    except (OSError, ValueError, RuntimeError, KeyError, pa.ArrowException) as error:
        if "conflict" in str(error).lower():
            raise DataError(
                f"search: another process changed {place} at the same time; run this again when that one has ended"
            ) from error
        raise DamagedError(f"search: {place} cannot be used ({first_line(error)}); {REBUILD}") from error


def _storage_options(place: str) -> dict[str, str] | None:
    """What the engine must be told of an object store; server, region and keys it reads from AWS_... itself."""
    if "://" not in place:
        return None
    if "?" in place:
        raise DataError(
            f"search: {place} has options behind a question mark, which the index does not take; set AWS_ENDPOINT_URL and "
            "AWS_DEFAULT_REGION instead"
        )
    plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    return {"allow_http": "true"} if plain else {}
