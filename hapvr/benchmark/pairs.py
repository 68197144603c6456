"""Scored (query, reference) pairs as arrays: read from Parquet or a table, checked against a definition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.errors import DataError
from hapvr.tables import TABLE_ERRORS

Floats = NDArray[np.floating[Any]]

COLUMNS = ("query_id", "reference_id", "similarity")
ROWS_PER_BATCH = 1 << 20


@dataclass(frozen=True)
class ScoredPairs:
    """Scored pairs whose videos belong to the definition, in file order. Other rows are counted and left out.

    query, reference: int32 [M], positions in `definition.queries` and `definition.database`.
    similarity: float [M]; a score that is not finite stands as +inf and is marked in `invalid`.
    invalid: bool [M]. num_rows: rows read; num_outside: rows with an id that the definition does not have.
    """

    query: NDArray[np.int32]
    reference: NDArray[np.int32]
    similarity: Floats
    invalid: NDArray[np.bool_]
    num_rows: int
    num_outside: int


def read_pairs(definition: BenchmarkDefinition, similarities: pl.DataFrame | Path | str) -> ScoredPairs:
    """Reads similarities (columns query_id, reference_id, similarity) of `definition`.

    similarities: a table, or a Parquet file, read a batch at a time. Raises DataError for a missing file or column,
    a similarity column that is not numeric, an empty table, a repeated pair, or ids all unknown to the definition.
    """
    what = f"similarities for {definition.name}" if isinstance(similarities, pl.DataFrame) else str(similarities)
    known_queries = {video: code for code, video in enumerate(definition.queries)}
    known_references = {video: code for code, video in enumerate(definition.database)}
    parts: list[tuple[NDArray[np.int32], NDArray[np.int32], Floats]] = []
    num_rows = 0
    for batch in _batches(similarities, what=what):
        num_rows += batch.num_rows
        query = _codes(batch.column("query_id"), known_queries)
        reference = _codes(batch.column("reference_id"), known_references)
        similarity = _floats(batch.column("similarity"))
        known = (query >= 0) & (reference >= 0)
        if not known.all():
            query, reference, similarity = query[known], reference[known], similarity[known]
        parts.append((query, reference, similarity))
    if num_rows == 0:
        raise DataError(f"{what}: no rows; wanted one row per scored (query, reference) pair")
    query = np.concatenate([part[0] for part in parts])
    reference = np.concatenate([part[1] for part in parts])
    if len(query) == 0:
        raise DataError(
            f"{what}: none of {num_rows} rows names a query and a database video of {definition.name} "
            f"(e.g. query {definition.queries[0]!r}); is this another benchmark's file?"
        )
    similarity = np.concatenate([part[2] for part in parts])
    _refuse_repeated_pairs(definition, query, reference, what=what)
    invalid = ~np.isfinite(similarity)
    return ScoredPairs(
        query=query,
        reference=reference,
        similarity=np.where(invalid, np.inf, similarity) if invalid.any() else similarity,
        invalid=invalid,
        num_rows=num_rows,
        num_outside=num_rows - len(query),
    )


def _batches(similarities: pl.DataFrame | Path | str, *, what: str) -> Iterator[pa.RecordBatch]:
    if isinstance(similarities, pl.DataFrame):
        table = similarities.to_arrow()
        check_columns(table.schema, what=what)
        yield from table.select(COLUMNS).to_batches(max_chunksize=ROWS_PER_BATCH)
        return
    path = Path(similarities)
    if not path.is_file():
        raise DataError(f"{path}: no such file; wanted a Parquet file with columns {', '.join(COLUMNS)}")
    try:
        check_columns(pq.read_schema(path), what=what)
        file = pq.ParquetFile(path, read_dictionary=["query_id", "reference_id"])
    except TABLE_ERRORS as error:
        raise _unreadable(path, error) from error
    with file:
        batches = file.iter_batches(batch_size=ROWS_PER_BATCH, columns=list(COLUMNS))
        while True:
            try:
                batch = next(batches, None)
                if batch is None:
                    return
                batch.validate(full=True)
            except TABLE_ERRORS as error:
                raise _unreadable(path, error) from error
            yield batch


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: not a readable Parquet file ({error}); wanted columns {', '.join(COLUMNS)}")


def check_columns(schema: pa.Schema, *, what: str) -> None:
    """DataError unless a table of this schema holds similarities: COLUMNS, ids as strings, similarity as numbers."""
    for column in COLUMNS:
        if column not in schema.names:
            raise DataError(f"{what}: no column {column!r}; found {schema.names}, wanted {list(COLUMNS)}")
        found = schema.field(column).type
        kind = found.value_type if pa.types.is_dictionary(found) else found
        if column == "similarity":
            if not (pa.types.is_floating(found) or pa.types.is_integer(found)):
                raise DataError(f"{what}: column 'similarity' is {found}, wanted floats")
        elif not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
            raise DataError(f"{what}: column {column!r} is {found}, wanted video ids as strings")


def _codes(ids: pa.Array, known: Mapping[str, int]) -> NDArray[np.int32]:
    """Position of every id in the definition, -1 for unknown ones and nulls."""
    encoded = ids if pa.types.is_dictionary(ids.type) else ids.dictionary_encode()
    # the entry after the last one stands for null
    codes = np.array([known.get(video, -1) for video in encoded.dictionary.to_pylist()] + [-1], dtype=np.int32)
    indices = encoded.indices.cast(pa.int64()).fill_null(len(codes) - 1).to_numpy(zero_copy_only=False)
    positions: NDArray[np.int32] = codes[indices]
    return positions


def _floats(column: pa.Array) -> Floats:
    wanted = column.type if column.type in (pa.float32(), pa.float64()) else pa.float64()
    values: Floats = column.cast(wanted).fill_null(float("nan")).to_numpy(zero_copy_only=False)
    return values


def _refuse_repeated_pairs(
    definition: BenchmarkDefinition, query: NDArray[np.int32], reference: NDArray[np.int32], *, what: str
) -> None:
    seen = np.zeros((len(definition.queries), len(definition.database)), dtype=bool)
    seen[query, reference] = True
    repeated = len(query) - int(seen.sum())
    if not repeated:
        return
    keys = query.astype(np.int64) * len(definition.database) + reference
    values, counts = np.unique(keys, return_counts=True)
    q, r = divmod(int(values[np.argmax(counts > 1)]), len(definition.database))
    raise DataError(
        f"{what}: {repeated} pairs are repeated, e.g. query {definition.queries[q]!r} with reference "
        f"{definition.database[r]!r}; keep one score per pair"
    )
