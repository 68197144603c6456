"""What a search knows of its candidates, as numbers that a model weighs: none of them falls where two videos share more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hapvr.scorer.evidence import FEATURES
from hapvr.scorer.logistic import Floats

if TYPE_CHECKING:
    from hapvr.search.engine import ScoredCandidate


def evidence_of(candidates: Sequence[ScoredCandidate]) -> Floats:
    """[N, F] in the order of FEATURES: of all candidates that one query was compared with.

    similarity: the fine score; margin: by how much it exceeds the median of the query's candidates. hashes_aligned,
    hashes_shared, votes_shared: shares of the frames that were looked up, or of the video's where it has fewer, that have a near
    hash at one offset, a near hash at all, and a vote for the best offset; num_hashes, num_votes: how many these are, as
    logarithms, since twenty seconds of an hour are a small share of it; votes: their mean weight. segment_score,
    segment_covered and segment_frames: of the longest and surest common part, how much of the shorter video it covers, and the
    logarithm of its length in sampled frames.
    """
    median = float(np.median([one.similarity for one in candidates])) if candidates else 0.0
    rows = [_row(one, median) for one in candidates]
    return np.array([[row[name] for name in FEATURES] for row in rows], np.float64).reshape(len(rows), len(FEATURES))


def _row(one: ScoredCandidate, median: float) -> dict[str, float]:
    found, segment = one.candidate, one.segment
    asked = max(min(found.num_asked, one.num_frames), 1)
    hashed = max(min(found.num_asked_hashes, one.num_frames), 1)
    frames = min(segment.query[1] - segment.query[0], segment.reference[1] - segment.reference[0]) + 1 if segment else 0
    return {
        "similarity": one.similarity,
        "margin": one.similarity - median,
        "hashes_aligned": min(found.num_aligned / hashed, 1.0),
        "hashes_shared": min(found.num_hashed / hashed, 1.0),
        "num_hashes": float(np.log1p(found.num_hashed)),
        "votes": found.votes / asked,
        "votes_shared": min(found.num_voting / asked, 1.0),
        "num_votes": float(np.log1p(found.num_voting)),
        "segment_score": segment.score if segment else 0.0,
        "segment_covered": min(frames / asked, 1.0),
        "segment_frames": float(np.log1p(frames)),
    }
