"""Similarity normalisation against a background set (S2VS Fig. 5).

A query that is similar to everything pushes its irrelevant pairs above the relevant pairs of other queries. Its
similarity to unrelated videos, the background, measures this, and the normalised score subtracts it:
s'(q, r) = s(q, r) - weight * mean of the top_k similarities of q to the background. This is a constant per query, so it
changes micro-AP and not mAP.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from hapvr.benchmark.pairs import COLUMNS, check_columns
from hapvr.errors import ArgumentError, DataError
from hapvr.files import write_atomic


def background_levels(background: pl.DataFrame, *, top_k: int) -> pl.DataFrame:
    """Mean of the top_k similarities of each query to the background: columns query_id, level.

    background: columns query_id, reference_id, similarity; references are videos unrelated to any query. Queries with
    fewer than top_k of them use those they have.
    """
    if top_k < 1:
        raise ArgumentError(f"top_k is {top_k}; wanted 1 or more")
    finite = background.with_columns(pl.col("query_id").cast(pl.String)).filter(pl.col("similarity").is_finite())
    return finite.group_by("query_id").agg(pl.col("similarity").top_k(top_k).mean().alias("level")).sort("query_id")


def normalize_similarities(
    similarities: Path, background: Path, out_path: Path, *, top_k: int = 1, weight: float = 1.0
) -> Path:
    """Write `similarities` less the level of each query in `background`, a row group at a time; returns `out_path`.

    All three are Parquet files with columns query_id, reference_id, similarity. Raises DataError for a file that cannot
    be read, and where a query has no background similarity.
    """
    levels = dict(background_levels(_table(background), top_k=top_k).iter_rows())
    with (
        _open(similarities) as source,
        write_atomic(out_path) as part,
        pq.ParquetWriter(part, source.schema_arrow, write_page_checksum=True) as writer,
    ):
        for group in range(source.num_row_groups):
            table = source.read_row_group(group)
            ids = table.column("query_id").cast(pa.string()).to_pylist()
            missing = set(ids) - set(levels)
            if missing:
                raise DataError(
                    f"{background}: no similarities for {len(missing)} queries, e.g. {min(missing)!r}; score every "
                    "query against the background set"
                )
            column = table.schema.get_field_index("similarity")
            field = table.schema.field(column)
            scores = table.column(column).to_numpy() - weight * np.array([levels[video] for video in ids])
            writer.write_table(table.set_column(column, field, pa.array(scores, field.type)))
    return out_path


def _table(path: Path) -> pl.DataFrame:
    with _open(path) as file:
        table = pl.from_arrow(file.read(columns=list(COLUMNS)))
    assert isinstance(table, pl.DataFrame)
    return table


def _open(path: Path) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: not a readable Parquet file ({error}); wanted columns {', '.join(COLUMNS)}"
        ) from error
    check_columns(file.schema_arrow, what=str(path))
    return file
