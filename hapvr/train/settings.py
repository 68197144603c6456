"""Settings of labelled pairs of videos as training data."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from hapvr.settings import Rate, Settings


class PairsConfig(Settings):
    """Labelled pairs, which `train.source: labelled_pairs` reads (TCA, VVS, ViSiL): videos that
    share footage, and distractors that share none with any of them. All are videos of the training
    split, named by their id, or by their file name if no other video has the same."""

    path: Path | None = None
    """for `format: table` a .csv or .parquet file with the columns query, reference, query_start_s,
    query_end_s, reference_start_s and reference_end_s; for `format: vcdb` the folder of VCDB's
    annotation files"""
    format: Literal["table", "vcdb"] = "table"
    distractors: Path | None = None
    """a text file with a video in each line; null: all training videos that are in no pair"""
    expected_copies: int | None = Field(default=None, ge=1)
    """how many copied segments `path` must hold (VCDB: 9236), so that a file cut between two lines
    is noticed; VCDB's lines that pair a video with itself may count or not; null: any number"""
    negatives: Literal["random", "hard"] = "random"
    """negatives of a pair: distractors drawn at random (TCA), or from those most like its anchor
    (ViSiL, VVS)"""
    negatives_per_pair: int = Field(default=16, ge=1)
    hard_negatives: int = Field(default=100, ge=1)
    """how many of the distractors most like the anchor count as hard"""
    min_overlap_s: float = Field(default=0.0, ge=0)
    """shorter copied segments are skipped, and clips show this much of theirs (ViSiL: 5 s); 0:
    clips are cut anywhere"""
    swap: bool = False
    """either video of a pair may be the anchor, drawn anew each time (ViSiL); false: the query is
    """
    single_rate: Rate = 0.0
    """part of the batches whose anchors are weak views of distractors, and whose positives are
    strong views of them (ViSiL: 0.5)"""
