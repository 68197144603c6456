"""The table of an index in Lance, version by version. The only module that imports Lance, where a
table is opened or written: whoever only asks which index answers is spared a third of a second.

Every function that changes the table returns its next version, and notices a writer that came
between: in an object store, which has no common lock, nothing else shows it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hapvr.errors import DamagedError, DataError, HapvrError
from hapvr.files import naming_full_disk
from hapvr.search.frame_index import HASH, REBUILD, SHARD, VECTOR, vectors_of
from hapvr.search.hashes import SECOND, VIDEO_ID
from hapvr.settings import first_line

# Its warnings about its own future are nobody's business here.
os.environ.setdefault("LANCE_LOG", "error")
# From a million values of centres on, the engine would otherwise guess the nearest centre of a row:
# rows come into wrong lists, and some lists become a hundred times as long as the others
# (docs/results.md).
os.environ.setdefault("LANCE_USE_HNSW_SPEEDUP_INDEXING", "disabled")

TABLE = "frames.lance"
LANCE_ERRORS = (OSError, ValueError, RuntimeError, KeyError, pa.ArrowException)
BLOCK = 8
"""The codes of an index want vectors whose length is a multiple of this."""
STORED = pa.float32()
"""Stored type of the vectors. Half precision takes half the space, and building its index 4 to 6
times as long."""
CACHE_BYTES = 2**30
"""Memory for parts of the index that were read."""

Dataset = Any
"""A `lance.LanceDataset`, at one version."""


@dataclass(frozen=True)
class TableCounts:
    """How much a version of the table holds."""

    rows: int
    fragments: int
    """that the rows are stored in, of which each append makes one"""
    indexed_rows: int
    parts: int
    """of the index; 0 where there is none"""


def open_table(place: str, version: int | None = None) -> Dataset:
    """The table at a version; None: the last one. Raises DamagedError where it cannot be read."""
    import lance

    with translated_errors(place):
        return lance.dataset(
            place,
            version=version,
            index_cache_size_bytes=CACHE_BYTES,
            storage_options=_storage_options(place),
        )


def create_table(place: str, dims: int) -> Dataset:
    """A table without rows for vectors of `dims` values, in place of any other."""
    import lance

    width = -(-dims // BLOCK) * BLOCK
    vector = pa.field(VECTOR, pa.list_(STORED, width), nullable=False)
    rows = pa.schema([SHARD, VIDEO_ID, SECOND, HASH, vector]).empty_table()
    options = _storage_options(place)
    with translated_errors(place):
        lance.write_dataset(rows, place, mode="overwrite", storage_options=options)
    return open_table(place)


def append(table: Dataset, rows: pa.Table) -> Dataset:
    """The next version, with these rows. Their vectors are fixed-size lists of `dims` floats, none
    of them zero."""
    import lance

    before = table.version
    schema = table.schema
    vectors = padded(table, vectors_of(rows))
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    rows = rows.drop_columns([VECTOR]).append_column(VECTOR, column)
    rows = rows.select(schema.names).cast(schema)
    return next_version(lance.write_dataset(rows, table, mode="append"), before)


def without(table: Dataset, column: str, values: Sequence[str]) -> Dataset:
    """The next version, without the rows that have one of these values."""
    before = table.version
    quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
    table.delete(f"{column} IN ({quoted})")
    return next_version(table, before)


def next_version(table: Dataset, before: int) -> Dataset:
    """The table after one change to the version `before`, or after none. Raises OSError if another
    writer came between."""
    if table.version > before + 1:
        raise OSError("conflict: there is a version of another writer")
    return table


def counts_of(table: Dataset) -> TableCounts:
    """How much a table holds."""
    indices = table.describe_indices()
    return TableCounts(
        rows=int(table.count_rows()),
        fragments=len(table.get_fragments()),
        indexed_rows=int(indices[0].num_rows_indexed) if indices else 0,
        parts=len(indices[0].segments) if indices else 0,
    )


def padded(table: Dataset, vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Vectors [N, dims] with zeros up to the stored width."""
    width = table.schema.field(VECTOR).type.list_size
    wider = np.zeros((len(vectors), width), np.float32)
    wider[:, : vectors.shape[1]] = vectors
    return wider


def files_of(table: Dataset) -> list[str]:
    """The files that this version is read from, sorted, relative to the folder of the index."""
    with translated_errors(table.uri):
        tracked = table.tracked_files(min_version=table.version).read_all().to_pylist()
    used = [
        file
        for file in tracked
        if file["version"] == table.version and file["type"] != "transaction file"
    ]
    return sorted(f"{TABLE}/{file['path']}" for file in used)


@contextmanager
def translated_errors(place: str) -> Iterator[None]:
    """Turn Lance's errors into a DamagedError that names the dataset, or a DataError where the disk
    is full."""
    try:
        with naming_full_disk(place, hint=REBUILD):
            yield
    except HapvrError:
        raise
    except BaseException as error:
        # A panic of the engine is not an Exception, and its class cannot be imported.
        is_panic = type(error).__name__ == "PanicException"
        if not isinstance(error, LANCE_ERRORS) and not is_panic:
            raise
        if "conflict" in str(error).lower():
            raise DataError(
                f"search: another process changed {place} at the same time; run this again "
                "when that one has ended"
            ) from error

        cause = first_line(error).replace(place.lstrip("/"), TABLE)
        hint = f"if another process has just changed it, run this again; else {REBUILD}"
        raise DamagedError(f"search: {place} cannot be used ({cause}); {hint}") from error


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
    if os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        return {"allow_http": "true"}
    return {}
