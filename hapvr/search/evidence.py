"""What a search knows of its candidates, as numbers that a model weighs: none of them falls where two videos share more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hapvr.scorer.calibration import Floats
from hapvr.scorer.evidence import FEATURES

if TYPE_CHECKING:
    from hapvr.search.engine import ScoredCandidate


def evidence_of(candidates: Sequence[ScoredCandidate]) -> Floats:
    """[N, F] in the order of FEATURES.

    similarity: the fine score. frame_run: as of `ScoredCandidate`. num_pictures and votes: of `ScoredCandidate` and at the best
    offset, as log(1 + x), since twenty seconds are a small share of an hour. whole_picture: 1, or 0 where an inner picture of
    the query was compared.
    """
    rows = [_row(one) for one in candidates]
    return np.array([[row[name] for name in FEATURES] for row in rows], np.float64).reshape(len(rows), len(FEATURES))


def _row(one: ScoredCandidate) -> dict[str, float]:
    return {
        "similarity": one.similarity,
        "frame_run": one.frame_run,
        "num_pictures": math.log1p(one.num_pictures),
        "votes": math.log1p(one.candidate.votes),
        "whole_picture": float(one.view == 0),
    }
