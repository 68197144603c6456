"""Settings of labelled pairs of videos as training data."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from hapvr.settings import Rate, Settings


class PairsConfig(Settings):
    """Labelled pairs, which `train.source: labelled_pairs` reads (TCA, VVS, ViSiL): videos that
    share footage, and distractors that share none with any of them. All are videos of the training
    split, named by their id, or by their file name where one video alone has it."""

    path: Path | None = None
    """of `format: table` a .csv or .parquet file with the columns query, reference, query_start_s,
    query_end_s, reference_start_s and reference_end_s; of `format: vcdb` the folder of VCDB's
    annotation files"""
    format: Literal["table", "vcdb"] = "table"
    distractors: Path | None = None
    """a text file with a video in each line; null: all training videos that are in no pair"""
    expected_copies: int | None = Field(default=None, ge=1)
    """copied segments that `path` must hold, 9236 of VCDB, so that a file that was cut between two
    lines is noticed; VCDB's lines of a video with itself may count or not; null: any number"""
    negatives: Literal["random", "hard"] = "random"
    """of a pair: distractors drawn at random (TCA), or among those most like its anchor (ViSiL,
    VVS)"""
    negatives_per_pair: int = Field(default=16, ge=1)
    hard_negatives: int = Field(default=100, ge=1)
    """how many distractors, those most like the anchor, count as hard"""
    min_overlap_s: float = Field(default=0.0, ge=0)
    """shorter copied segments are left out, and clips show so much of theirs (ViSiL: 5 s); 0: clips
    are cut anywhere"""
    swap: bool = False
    """either video of a pair may be the anchor, drawn anew each time (ViSiL); false: the query is
    """
    single_rate: Rate = 0.0
    """part of the batches whose anchors are weak views of distractors, and whose positives are
    strong views of them (ViSiL: 0.5)"""
