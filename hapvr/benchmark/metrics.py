"""Average precision in its published variants, precision-recall curves, and bootstrap intervals, in
NumPy.

Everything follows from the ranks of the relevant items: 1 is the best rank, higher similarity is
closer.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hapvr.benchmark.tasks import ApKind

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def ranks_at(positions: Ints, similarity: Floats, skipped: Ints) -> tuple[Ints, Ints]:
    """Ranks, by row order and worst of ties, of the items at `positions` of a sorted ranking.
    positions: int64 [P], ascending. similarity: [N], descending. skipped: positions of items that
    do not take part in the ranking, ascending and none of `positions`."""
    worst = len(similarity) - np.searchsorted(similarity[::-1], similarity[positions], side="left")
    by_row = positions + 1 - np.searchsorted(skipped, positions)
    of_ties = worst - np.searchsorted(skipped, worst)
    return by_row, of_ties


def average_precision(ranks: Ints, *, num_relevant: int, kind: ApKind = "step") -> float:
    """Average precision of one ranking, in [0, 1].

    ranks: ranks of the relevant items that were ranked, ascending (see `ranks_at`). num_relevant: P
    >= 1, all relevant items, ranked or not; those not ranked are misses. kind: "step" is (1/P)
    sum_i i / r_i. "trapezoid" is EVVE's, (1/P) sum (p0 + p1) / 2 with p0 = n / rank (1 at rank 0),
    p1 = (n + 1) / (rank + 1), ranks from 0. "tie_grouped" counts, at a rank that several relevant
    items share, all of them: with the worst ranks of ties this is scikit-learn's
    average_precision_score."""
    hits = np.arange(1, len(ranks) + 1)
    if kind == "step":
        precision = hits / ranks
    elif kind == "tie_grouped":
        precision = np.searchsorted(ranks, ranks, side="right") / ranks
    else:
        before = np.where(ranks == 1, 1.0, (hits - 1) / np.maximum(ranks - 1, 1))
        precision = (before + hits / ranks) / 2

    return float(precision.sum() / num_relevant)


def interpolated_precision(ranks: Ints, *, num_relevant: int, recalls: Floats) -> Floats:
    """The best precision at each recall or beyond [len(recalls)]; 0 past the last. Tied items enter
    together. ranks: worst ranks of the relevant items that were ranked, ascending. num_relevant:
    all relevant items, ranked or not."""
    last = np.append(ranks[1:] != ranks[:-1], True) if len(ranks) else np.zeros(0, dtype=bool)
    hits = np.arange(1, len(ranks) + 1)[last]
    best_beyond = np.maximum.accumulate((hits / ranks[last])[::-1])[::-1]
    return np.append(best_beyond, 0.0)[
        np.searchsorted(hits / num_relevant, recalls - 1e-12, side="left")
    ]


def bootstrap_interval(samples: Floats, *, confidence: float = 0.95) -> tuple[float, float]:
    """Percentile interval of bootstrap samples [B]. Samples that are NaN (they drew no query that
    counts) are left out."""
    tail = (1 - confidence) / 2
    low, high = np.nanquantile(samples, [tail, 1 - tail])
    return float(low), float(high)


def query_weights(num_queries: int, *, num_samples: int, rng: np.random.Generator) -> Floats:
    """How often each query is drawn in each bootstrap sample: float64 [B, Q], each row sums to
    Q."""
    return rng.multinomial(
        num_queries, np.full(num_queries, 1 / num_queries), size=num_samples
    ).astype(np.float64)


def bootstrap_micro_ap(
    ranked: list[tuple[Floats, Bools]], *, num_relevant: Ints, weights: Floats, block: int = 2048
) -> Floats:
    """Micro-AP [B] when whole queries are drawn again, tied scores grouped. ranked: per query its
    similarities in descending order and which are relevant. num_relevant: [Q]. weights: [B, Q]. The
    precision at a threshold is a weighted sum over queries of hits and of items above it, so all
    samples follow from two matrix products per block of thresholds."""
    ascending = [similarity[::-1] for similarity, _ in ranked]
    hits_ascending = [similarity[relevant][::-1] for similarity, relevant in ranked]
    owner = np.repeat(np.arange(len(ranked)), [len(hits) for hits in hits_ascending])
    threshold = np.concatenate(hits_ascending) if ranked else np.zeros(0)
    total = np.zeros(len(weights))
    for start in range(0, len(threshold), block):
        values = threshold[start : start + block]
        items = np.stack(
            [len(row) - np.searchsorted(row, values, side="left") for row in ascending]
        )
        hits = np.stack(
            [len(row) - np.searchsorted(row, values, side="left") for row in hits_ascending]
        )
        # without an item above the threshold there is no hit above it
        precision = (weights @ hits) / np.maximum(weights @ items, 1)
        total += (precision * weights[:, owner[start : start + block]]).sum(axis=1)

    return np.asarray(total / np.maximum(weights @ num_relevant, 1))
