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

from hapvr.files import write_atomic
from hapvr.tables import read_frame


def background_levels(background: pl.DataFrame, *, top_k: int = 1) -> pl.DataFrame:
    """Mean of the top_k similarities of each query to the background: columns query_id, level.

    background: columns query_id, reference_id, similarity; references are videos unrelated to any query. Queries with
    fewer than top_k of them use those they have.
    """
    finite = background.filter(pl.col("similarity").is_finite())
    return finite.group_by("query_id").agg(pl.col("similarity").top_k(top_k).mean().alias("level")).sort("query_id")


def normalize_similarities(
    similarities: Path, background: Path, out_path: Path, *, top_k: int = 1, weight: float = 1.0
) -> Path:
    """Write `similarities` less the level of each query in `background`, a row group at a time; returns `out_path`.

    similarities, background: as `score_benchmark` writes them. Raises KeyError for a query without background similarities.
    """
    levels = dict(background_levels(read_frame(background), top_k=top_k).iter_rows())
    with (
        pq.ParquetFile(similarities) as source,
        write_atomic(out_path) as part,
        pq.ParquetWriter(part, source.schema_arrow, write_page_checksum=True) as writer,
    ):
        for group in range(source.num_row_groups):
            table = source.read_row_group(group)
            level = np.array([levels[video] for video in table["query_id"].to_pylist()])
            scores = table["similarity"].to_numpy() - weight * level
            place = table.schema.get_field_index("similarity")
            writer.write_table(
                table.set_column(place, table.schema.field(place), pa.array(scores, table.schema.field(place).type))
            )
    return out_path
