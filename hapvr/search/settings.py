"""Settings of search: descriptors, the index over them, and searches."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hapvr.scorer.settings import ScoresDtype
from hapvr.settings import Rate, Settings


class IndexSettings(Settings):
    """How descriptors are indexed (inverted lists of RaBitQ codes) and how much of the index a query looks at."""

    min_indexed_rows: Annotated[int, Field(ge=64)] = Field(
        default=50_000, description="a table with fewer rows is compared whole, which is exact"
    )
    list_rows: Annotated[int, Field(ge=16)] = Field(
        default=4096,
        description="rows of an inverted list, on average; more where that would give more than 4096 lists",
    )
    code_bits: Annotated[int, Field(ge=1, le=9)] = Field(
        default=3, description="bits of a code per dimension, in indexes that are built from now on"
    )
    probed_lists: Annotated[int, Field(ge=1)] = Field(default=16, description="inverted lists that a query looks at")
    refine_factor: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="so many times the wanted rows are found by code and compared exactly; 0: the codes decide, which is "
        "eight times as fast; with codes of less than 3 bits it stands for 4",
    )
    max_new_rate: Rate = Field(
        default=0.05, description="rows beside the index, as a part of all rows, from which on they are added to it"
    )
    max_parts: Annotated[int, Field(ge=1)] = Field(
        default=16, description="parts of an index, beside those of `ray_workers`; with more it is built anew"
    )
    ray_workers: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="workers on a Ray cluster that build the index, each a part of it; 0: this process builds it",
    )
    cache_bytes: Annotated[int, Field(ge=2**20)] = Field(
        default=2**30, description="memory for parts of the index that were read"
    )
    probes: Annotated[int, Field(ge=1)] = Field(
        default=200, description="stored frames, videos and regions, of each, that a check of the index searches for"
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


class DuplicateSettings(Settings):
    """Which pairs count as duplicates."""

    min_probability: Annotated[float, Field(ge=0.5, le=1)] = Field(
        default=0.9, description="pairs below it are stored, but neither shown nor grouped"
    )


class SearchSettings(Settings):
    """Search over the collection."""

    descriptors: DescriptorSettings = DescriptorSettings()
    index: IndexSettings = IndexSettings()
    duplicates: DuplicateSettings = DuplicateSettings()
    keep_models: Annotated[int, Field(ge=0)] = Field(
        default=1, description="models before the current one whose indexes are kept for a rollback"
    )
    candidates: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=100, description="videos that the network compares with a query"
    )
    dtype: ScoresDtype = Field(
        default="float32",
        description="in which the network compares videos; bfloat16 needs torch, is faster on processors with its "
        "instructions, and rounds similarities",
    )
    video_candidates: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=33,
        description="videos that are asked for by their mean over time, of all regions or of one; votes fill the other places",
    )
    query_frames: Annotated[int, Field(ge=1)] = Field(
        default=120, description="frames of a query that are looked up; those of a longer one are spread evenly"
    )
    frame_hits: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=100, description="nearest frames that a frame of the query gets from the index"
    )
    hits_per_video: Annotated[int, Field(ge=1)] = Field(
        default=3, description="of these, how many of one video may vote: still pictures have many equal frames"
    )
    hit_floor: bool = Field(
        default=True,
        description="a hit counts by how far it is above the last hit of its query frame; false: by its similarity",
    )
    rarity: bool = Field(default=True, description="a query frame counts less the more videos have one like it")
    region_frames: Annotated[int, Field(ge=0)] = Field(
        default=12,
        description="frames of a query, spread evenly, whose nine regions are looked up by themselves too: they find videos "
        "that fill only a part of the picture",
    )
    tolerance_frames: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="sampled frames by which the offsets of one copy may differ"
    )
    windows_per_video: Annotated[int, Field(ge=1)] = Field(
        default=3, description="places of a long video that are compared with the query"
    )
    part_frames: Annotated[int, Field(ge=1)] = Field(
        default=8, description="sampled frames of query and video around votes that are compared at least"
    )
    whole_frames: Annotated[int, Field(ge=1)] = Field(
        default=60,
        description="sampled frames up to which a query and a video are compared whole, if both are that short",
    )
