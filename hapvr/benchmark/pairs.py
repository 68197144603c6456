"""Scored (query, reference) pairs as arrays: read from Parquet or a table, checked against a definition."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.errors import DamagedError, DataError
from hapvr.files import require_regular
from hapvr.tables import TABLE_ERRORS

Floats = NDArray[np.floating[Any]]

IDS = ["query_id", "reference_id"]
COLUMNS = [*IDS, "similarity"]


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

    similarities: a table, or a Parquet file. Raises DataError for a missing file or column, a similarity column that is
    not numeric, an empty table, a repeated pair, or ids all unknown to the definition.
    """
    what = f"similarities for {definition.name}" if isinstance(similarities, pl.DataFrame) else str(similarities)
    try:
        table = _table(similarities)
    except TABLE_ERRORS as error:
        raise DamagedError(f"{what}: not a readable Parquet file of similarities ({error}); score again") from error
    query = _codes(table.column("query_id"), definition.queries)
    reference = _codes(table.column("reference_id"), definition.database)
    similarity = table.column("similarity").fill_null(float("nan")).to_numpy()
    known = (query >= 0) & (reference >= 0)
    if not known.all():
        query, reference, similarity = query[known], reference[known], similarity[known]
    if len(query) == 0:
        raise DataError(
            f"{what}: none of {len(table)} rows names a query and a database video of {definition.name} "
            f"(e.g. query {definition.queries[0]!r}); is this another benchmark's file?"
        )
    _refuse_repeated_pairs(definition, query, reference, what=what)
    invalid = ~np.isfinite(similarity)
    return ScoredPairs(
        query=query,
        reference=reference,
        similarity=np.where(invalid, np.inf, similarity) if invalid.any() else similarity,
        invalid=invalid,
        num_rows=len(table),
        num_outside=len(table) - len(query),
    )


def _table(similarities: pl.DataFrame | Path | str) -> pa.Table:
    """COLUMNS, ids as dictionaries of strings and similarities as floats. Raises one of TABLE_ERRORS."""
    if not isinstance(similarities, pl.DataFrame):
        require_regular(Path(similarities))
    names = similarities.columns if isinstance(similarities, pl.DataFrame) else pq.read_schema(similarities).names
    if missing := set(COLUMNS) - set(names):
        raise ValueError(f"no column {min(missing)!r}; found {names}, wanted {COLUMNS}")
    if isinstance(similarities, pl.DataFrame):
        table = similarities.select(COLUMNS).to_arrow()
    else:
        with pq.ParquetFile(similarities, read_dictionary=IDS) as file:
            table = file.read(columns=COLUMNS)
        table.validate(full=True)
    strings = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    numbers = (pa.types.is_floating, pa.types.is_integer)
    for column in COLUMNS:
        kind = table.schema.field(column).type
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not any(fits(plain) for fits in (strings if column in IDS else numbers)):
            wanted = "video ids as strings" if column in IDS else "floats"
            raise ValueError(f"column {column!r} is {plain}, wanted {wanted}")
    if kind not in (pa.float32(), pa.float64()):
        table = table.set_column(2, "similarity", table.column("similarity").cast(pa.float64()))
    return table


def _codes(ids: pa.ChunkedArray, known: tuple[str, ...]) -> NDArray[np.int32]:
    """Position of every id in the definition, -1 for unknown ones and nulls."""
    places = {video: code for code, video in enumerate(known)}
    found = [np.zeros(0, np.int32)]
    for chunk in ids.chunks:
        encoded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        # the entry after the last one stands for null
        codes = np.array([places.get(video, -1) for video in encoded.dictionary.to_pylist()] + [-1], dtype=np.int32)
        found.append(codes[encoded.indices.cast(pa.int64()).fill_null(len(codes) - 1).to_numpy(zero_copy_only=False)])
    return np.concatenate(found)


def _refuse_repeated_pairs(
    definition: BenchmarkDefinition, query: NDArray[np.int32], reference: NDArray[np.int32], *, what: str
) -> None:
    seen = np.zeros((len(definition.queries), len(definition.database)), dtype=bool)
    seen[query, reference] = True
    repeated = len(query) - int(seen.sum())
    if repeated:
        keys = query.astype(np.int64) * len(definition.database) + reference
        values, counts = np.unique(keys, return_counts=True)
        q, r = divmod(int(values[np.argmax(counts > 1)]), len(definition.database))
        raise DataError(
            f"{what}: {repeated} pairs are repeated, e.g. query {definition.queries[q]!r} with reference "
            f"{definition.database[r]!r}; keep one score per pair"
        )
