"""Settings of search: descriptors, and the index over them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hapvr.settings import Rate, Settings


class IndexSettings(Settings):
    """How descriptors are indexed (inverted lists of RaBitQ codes) and how much of the index a query looks at."""

    min_indexed_rows: Annotated[int, Field(ge=64)] = Field(
        default=50_000, description="a table with fewer rows is compared whole, which is exact"
    )
    list_rows: Annotated[int, Field(ge=16)] = Field(default=4096, description="rows of an inverted list, on average")
    code_bits: Annotated[int, Field(ge=1, le=9)] = Field(default=1, description="bits of a code per dimension")
    probed_lists: Annotated[int, Field(ge=1)] = Field(default=16, description="inverted lists that a query looks at")
    refine_factor: Annotated[int, Field(ge=1)] = Field(
        default=4, description="so many times the wanted rows are found by code and compared exactly"
    )
    max_new_rate: Rate = Field(
        default=0.05, description="rows beside the index, as a part of all rows, from which on they are added to it"
    )
    max_parts: Annotated[int, Field(ge=1)] = Field(
        default=16, description="parts of an index; with more it is built anew"
    )
    cache_bytes: Annotated[int, Field(ge=2**20)] = Field(
        default=2**30, description="memory for parts of the index that were read"
    )
    probes: Annotated[int, Field(ge=1)] = Field(
        default=200, description="stored frames, and videos, that a check of the index searches for"
    )
    min_recall: Rate = Field(
        default=0.9,
        description="part of their exact nearest neighbours that must be found; an index below does not serve",
    )
    keep_versions_s: Annotated[float, Field(ge=0)] = Field(
        default=3600.0, description="how long a version that was replaced stays readable for searches that have it open"
    )


class DescriptorSettings(Settings):
    """Which frames can be found. Similarities are cosines of descriptors."""

    max_blank_similarity: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.9, description="with a picture of one colour; a frame above it is blank"
    )
    max_frozen_similarity: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.999, description="with the last frame that can be found; a frame above it is frozen"
    )


class SearchSettings(Settings):
    """Search over the collection."""

    descriptors: DescriptorSettings = DescriptorSettings()
    index: IndexSettings = IndexSettings()
    keep_models: Annotated[int, Field(ge=0)] = Field(
        default=1, description="models before the current one whose indexes are kept for a rollback"
    )
