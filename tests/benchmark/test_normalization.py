"""Similarity normalisation by hand."""

from __future__ import annotations

import polars as pl
import pytest

from hapvr.benchmark.normalization import background_levels, normalize_similarities
from hapvr.errors import ArgumentError, DataError


def table(rows):
    return pl.DataFrame(
        rows,
        schema={"query_id": pl.String, "reference_id": pl.String, "similarity": pl.Float32},
        orient="row",
    )


BACKGROUND = [("a", "x", 0.25), ("a", "y", 0.75), ("a", "z", -0.5), ("b", "x", 0.0)]


def test_background_levels_are_means_of_the_largest():
    """The mean of the two largest for a, of the only one for b."""
    assert background_levels(table(BACKGROUND), top_k=2).rows() == [("a", 0.5), ("b", 0.0)]
    with pytest.raises(ArgumentError, match="top_k is 0"):
        background_levels(table(BACKGROUND), top_k=0)


def test_normalize_similarities_takes_the_level_off(tmp_path):
    """Each score loses its query's level times the weight; ids and row order stay."""
    table([("a", "r", 0.9), ("b", "r", 0.5), ("a", "s", 0.1)]).write_parquet(tmp_path / "s.parquet", row_group_size=2)
    table(BACKGROUND).write_parquet(tmp_path / "background.parquet")
    out = normalize_similarities(
        tmp_path / "s.parquet", tmp_path / "background.parquet", tmp_path / "n.parquet", top_k=2, weight=0.5
    )
    result = pl.read_parquet(out)
    assert result["reference_id"].to_list() == ["r", "r", "s"]
    assert result["similarity"].to_list() == pytest.approx([0.65, 0.5, -0.15])
    assert result.schema["similarity"] == pl.Float32


def test_normalize_similarities_refuses_queries_without_background(tmp_path):
    """A query that was not scored against the background is named."""
    table([("c", "r", 0.9)]).write_parquet(tmp_path / "s.parquet")
    table(BACKGROUND).write_parquet(tmp_path / "background.parquet")
    with pytest.raises(DataError, match=r"1 queries, e\.g\. 'c'"):
        normalize_similarities(tmp_path / "s.parquet", tmp_path / "background.parquet", tmp_path / "n.parquet")
    assert not (tmp_path / "n.parquet").exists()


def test_normalize_similarities_names_a_file_that_cannot_be_read(tmp_path):
    """A damaged background, and one without the wanted columns."""
    table([("a", "r", 0.9)]).write_parquet(tmp_path / "s.parquet")
    (tmp_path / "background.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match=r"background\.parquet: not a readable Parquet file"):
        normalize_similarities(tmp_path / "s.parquet", tmp_path / "background.parquet", tmp_path / "n.parquet")
    pl.DataFrame({"query_id": ["a"]}).write_parquet(tmp_path / "background.parquet")
    with pytest.raises(DataError, match="no column 'reference_id'"):
        normalize_similarities(tmp_path / "s.parquet", tmp_path / "background.parquet", tmp_path / "n.parquet")
