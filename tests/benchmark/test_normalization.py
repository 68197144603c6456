"""Similarity normalisation by hand."""

from __future__ import annotations

import polars as pl
import pytest

from hapvr.benchmark.normalization import background_levels, normalize_similarities

SCHEMA = {"query_id": pl.String, "reference_id": pl.String, "similarity": pl.Float32}
BACKGROUND = pl.DataFrame(
    [("a", "x", 0.25), ("a", "y", 0.75), ("a", "z", -0.5), ("b", "x", 0.0)], schema=SCHEMA, orient="row"
)


def test_normalize_similarities_takes_the_level_off(tmp_path):
    """The level is the mean of the two largest for a, the only one for b; ids, row order and type stay."""
    assert background_levels(BACKGROUND, top_k=2).rows() == [("a", 0.5), ("b", 0.0)]
    scores = pl.DataFrame([("a", "r", 0.9), ("b", "r", 0.5), ("a", "s", 0.1)], schema=SCHEMA, orient="row")
    scores.write_parquet(tmp_path / "s.parquet", row_group_size=2)
    BACKGROUND.write_parquet(tmp_path / "background.parquet")
    files = (tmp_path / name for name in ("s.parquet", "background.parquet", "n.parquet"))
    out = normalize_similarities(*files, top_k=2, weight=0.5)
    result = pl.read_parquet(out)
    assert result["reference_id"].to_list() == ["r", "r", "s"]
    assert result["similarity"].to_list() == pytest.approx([0.65, 0.5, -0.15])
    assert result.schema["similarity"] == pl.Float32
