"""What a search knows of its candidates, as numbers that a model weighs: none of them falls where two videos share more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hapvr.scorer.evidence import FEATURES
from hapvr.scorer.logistic import Floats

if TYPE_CHECKING:
    from hapvr.search.engine import ScoredCandidate


UNSEEN = 2
"""Frames without a near hash that are added to those that were looked up: one near hash of a video of one frame says little."""


def evidence_of(candidates: Sequence[ScoredCandidate]) -> Floats:
    """[N, F] in the order of FEATURES.

    similarity: the fine score. hashes_aligned and hashes_shared: shares of the frames that were looked up, or of the video's
    where it has fewer, that have a near hash at one offset, and at any. votes: at the best offset, for each of these frames.
    num_hashes and num_votes: how many frames have a near hash, and vote for that offset, as logarithms, since twenty seconds
    are a small share of an hour. whole_picture: 1, or 0 where it is an inner picture of the query that was compared.
    """
    rows = [_row(one) for one in candidates]
    return np.array([[row[name] for name in FEATURES] for row in rows], np.float64).reshape(len(rows), len(FEATURES))


def _row(one: ScoredCandidate) -> dict[str, float]:
    found = one.candidate
    asked = max(min(found.num_asked, one.num_frames), 1)
    hashed = min(found.num_asked_hashes, one.num_frames) + UNSEEN
    return {
        "similarity": one.similarity,
        "hashes_aligned": min(found.num_aligned / hashed, 1.0),
        "hashes_shared": min(found.num_hashed / hashed, 1.0),
        "num_hashes": math.log1p(found.num_hashed),
        "votes": found.votes / asked,
        "num_votes": math.log1p(found.num_voting),
        "whole_picture": float(one.view == 0),
    }
