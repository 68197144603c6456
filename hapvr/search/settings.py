"""Settings of search: the index over descriptors, and searches."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hapvr.scorer.settings import ScoresDtype
from hapvr.settings import Settings


class IndexSettings(Settings):
    """How descriptors are indexed (inverted lists of RaBitQ codes) and how much of the index a query looks at."""

    min_indexed_rows: Annotated[int, Field(ge=64)] = Field(
        default=50_000, description="a table with fewer rows is compared whole, which is exact"
    )
    code_bits: Annotated[int, Field(ge=1, le=9)] = Field(
        default=3,
        description="bits of a code per dimension, in indexes that are built from now on; with fewer than 3, set "
        "refine_factor to 4 or more",
    )
    probed_lists: Annotated[int, Field(ge=1)] = Field(default=16, description="inverted lists that a query looks at")
    refine_factor: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="this many times the wanted rows are found by code and compared exactly; 0: the codes decide, which is "
        "eight times as fast",
    )
    ray_workers: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="workers on a Ray cluster that build the index, each a part of it; 0: this process builds it",
    )
    cache_bytes: Annotated[int, Field(ge=2**20)] = Field(
        default=2**30, description="memory for parts of the index that were read"
    )


class SearchSettings(Settings):
    """Search over the collection."""

    index: IndexSettings = IndexSettings()
    candidates: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=100, description="videos that the network compares with a query"
    )
    dtype: ScoresDtype = Field(
        default="float32",
        description="in which the network compares videos; bfloat16 needs torch, is faster on processors with its "
        "instructions, and rounds similarities",
    )
    min_duplicate_probability: Annotated[float, Field(ge=0.5, le=1)] = Field(
        default=0.9, description="pairs of duplicates below it are stored, but neither shown nor grouped"
    )
