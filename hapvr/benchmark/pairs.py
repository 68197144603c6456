"""Scored (query, reference) pairs as arrays: read from Parquet or a table, checked against a definition."""

from __future__ import annotations

from collections.abc import Iterator
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

COLUMNS = ("query_id", "reference_id", "similarity")
ROWS_PER_BATCH = 1 << 20


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs of a definition's own videos, in file order; what was left out is counted.

    query, reference: int32 [M], positions in `definition.queries` and `definition.database`.
    similarity: float [M]; a score that is not finite stands as +inf and is marked in `invalid`.
    invalid: bool [M]. num_rows: rows read; num_outside: rows with an id that the definition does not have.
    """

    query: NDArray[np.int32]
    reference: NDArray[np.int32]
    similarity: NDArray[np.floating[Any]]
    invalid: NDArray[np.bool_]
    num_rows: int
    num_outside: int


def read_pairs(definition: BenchmarkDefinition, similarities: pl.DataFrame | Path | str) -> ScoredPairs:
    """Reads similarities (columns query_id, reference_id, similarity) of `definition`.

    similarities: a table, or a Parquet file, read a batch at a time. Raises DataError for a missing file or column,
    a similarity column that is not numeric, an empty table, a repeated pair, or ids all unknown to the definition.
    """
    what = f"similarities for {definition.name}" if isinstance(similarities, pl.DataFrame) else str(similarities)
    query_type, reference_type = pl.Enum(definition.queries), pl.Enum(definition.database)
    parts: list[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.floating[Any]]]] = []
    num_rows = 0
    for batch in _batches(similarities, what=what):
        num_rows += len(batch)
        codes = batch.select(
            pl.col("query_id").cast(pl.String).cast(query_type, strict=False).to_physical().cast(pl.Int32),
            pl.col("reference_id").cast(pl.String).cast(reference_type, strict=False).to_physical().cast(pl.Int32),
            pl.col("similarity").fill_null(float("nan")),
        )
        known = codes.drop_nulls(["query_id", "reference_id"])
        parts.append((known["query_id"].to_numpy(), known["reference_id"].to_numpy(), known["similarity"].to_numpy()))
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


def _batches(similarities: pl.DataFrame | Path | str, *, what: str) -> Iterator[pl.DataFrame]:
    if isinstance(similarities, pl.DataFrame):
        _check_columns(similarities.schema, what=what)
        yield similarities.select(_floating(similarities.schema))
        return
    path = Path(similarities)
    if not path.is_file():
        raise DataError(f"{path}: no such file; wanted a Parquet file with columns {', '.join(COLUMNS)}")
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(
            f"{path}: not a readable Parquet file ({error}); wanted columns {', '.join(COLUMNS)}"
        ) from error
    with file:
        schema = pl.from_arrow(file.schema_arrow.empty_table())
        assert isinstance(schema, pl.DataFrame)
        _check_columns(schema.schema, what=what)
        for batch in file.iter_batches(batch_size=ROWS_PER_BATCH, columns=list(COLUMNS)):
            table = pl.from_arrow(pa.Table.from_batches([batch]))
            assert isinstance(table, pl.DataFrame)
            yield table.select(_floating(table.schema))


def _check_columns(schema: pl.Schema, *, what: str) -> None:
    for column in COLUMNS:
        if column not in schema:
            raise DataError(f"{what}: no column {column!r}; found {list(schema)}, wanted {list(COLUMNS)}")
    for column in ("query_id", "reference_id"):
        if not (schema[column] == pl.String or isinstance(schema[column], pl.Categorical | pl.Enum)):
            raise DataError(f"{what}: column {column!r} is {schema[column]}, wanted video ids as strings")
    if not schema["similarity"].is_numeric():
        raise DataError(f"{what}: column 'similarity' is {schema['similarity']}, wanted floats")


def _floating(schema: pl.Schema) -> list[pl.Expr]:
    similarity = pl.col("similarity")
    if schema["similarity"] not in (pl.Float32, pl.Float64):
        similarity = similarity.cast(pl.Float32 if schema["similarity"] == pl.Float16 else pl.Float64)
    return [pl.col("query_id"), pl.col("reference_id"), similarity]


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
