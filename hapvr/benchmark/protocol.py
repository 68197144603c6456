"""Evaluation of similarities against a benchmark definition under one of three policies for missing videos.

official: follows the authors' evaluation (see `Task`), to compare with published numbers.
strict: a missing relevant video is a miss, and a missing query scores 0, so losing videos can never raise a score.
frozen: strict, on the videos of a named availability manifest, so that two runs are compared on the same videos.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hapvr.benchmark.definition import BenchmarkDefinition, Task
from hapvr.benchmark.metrics import (
    Floats,
    Ints,
    average_precision,
    bootstrap_interval,
    bootstrap_mean_ap,
    bootstrap_micro_ap,
    curve_from_ranks,
    query_weights,
    ranks_at,
)
from hapvr.benchmark.pairs import ScoredPairs, read_pairs
from hapvr.benchmark.ranking import Coverage, Judgement, Ranking, coverage, judge, own_positions, rank_pairs
from hapvr.benchmark.result import (
    CURVE_SCHEMA,
    PER_QUERY_SCHEMA,
    Availability,
    EvaluationResult,
    TaskResult,
)
from hapvr.config import Policy
from hapvr.errors import ArgumentError, DataError
from hapvr.seeding import numpy_rng

POLICIES: tuple[Policy, ...] = ("official", "strict", "frozen")
RECALLS = np.linspace(0, 1, 101)


def evaluate(
    definition: BenchmarkDefinition,
    similarities: pl.DataFrame | Path | str,
    *,
    policy: Policy = "strict",
    available: frozenset[str] | None = None,
    bootstrap_samples: int = 0,
    seed: int = 0,
) -> EvaluationResult:
    """Every task of `definition` on `similarities` (columns query_id, reference_id, similarity; higher is closer).

    available: ids of the available videos. "frozen" needs it: it is the manifest. Under "official" it decides which
    positives leave the ground truth. None means the ids that occur in the scores.
    bootstrap_samples: > 0 adds 95 % intervals over queries, drawn from `seed`.
    Raises ArgumentError for a wrong policy and DataError for unusable scores. A score that is not finite is an error
    under "official". Otherwise it counts as a miss if the pair is relevant, and as ranked first if not, so it can never
    raise a score.
    """
    if policy not in POLICIES:
        raise ArgumentError(f"policy is {policy!r}; wanted one of {', '.join(POLICIES)}")
    pairs = read_pairs(definition, similarities)
    covered = coverage(definition, pairs, policy=policy, available=available)
    ranking = rank_pairs(pairs, covered)
    if policy == "official" and ranking.invalid.any():
        raise DataError(
            f"{definition.name}: {int(ranking.invalid.sum())} scores are NaN or infinite, which the official protocol "
            "does not define; find out why, or evaluate with the strict policy, which counts them as misses"
        )
    weights = None
    if bootstrap_samples:
        rng = numpy_rng(seed, definition.name, "bootstrap")
        weights = query_weights(len(definition.queries), num_samples=bootstrap_samples, rng=rng)
    judged: dict[Task, Judgement] = {}
    measured: list[_Measured] = []
    for task in definition.tasks:
        # retrieval and detection tasks on the same labels share one judgement
        key = dataclasses.replace(task, name="", metric="mAP", average_precision="step")
        if key not in judged:
            judged[key] = judge(definition, task, ranking, covered, policy=policy)
        measured.append(_measure(definition, task, judged[key], ranking, covered, weights))
    tables = [one.per_query for one in measured if one.per_query is not None]
    curves = [
        pl.DataFrame({"task": one.result.task, "recall": RECALLS, "precision": one.precision}, schema=CURVE_SCHEMA)
        for one in measured
    ]
    return EvaluationResult(
        benchmark=definition.name,
        policy=policy,
        tasks=tuple(one.result for one in measured),
        availability=_availability(definition, pairs, ranking, covered),
        per_query=pl.concat(tables) if tables else pl.DataFrame(schema=PER_QUERY_SCHEMA),
        curves=pl.concat(curves),
        samples={one.result.task: one.samples for one in measured if one.samples is not None},
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Measured:
    """What one task gives. samples: of the bootstrap, [B]; precision: interpolated, at RECALLS; per_query: of mAP tasks."""

    result: TaskResult
    samples: Floats | None
    precision: Floats
    per_query: pl.DataFrame | None


def _measure(
    definition: BenchmarkDefinition,
    task: Task,
    truth: Judgement,
    ranking: Ranking,
    covered: Coverage,
    weights: NDArray[np.float64] | None,
) -> _Measured:
    table = recall_at_90 = None
    if task.metric == "micro-AP":
        value, order_free, precision, recall_at_90 = _pooled(task, truth, ranking)
        samples = _pooled_samples(truth, ranking, weights)
    else:
        table, precision = _per_query(definition, task, truth, ranking)
        value, order_free = _mean(table["average_precision"]), _mean(table["average_precision_order_free"])
        samples = _mean_samples(table["average_precision"].to_numpy(), truth, weights)
    result = TaskResult(
        task=task.name,
        metric=task.metric,
        value=value,
        order_free=order_free,
        interval=None if samples is None else bootstrap_interval(samples),
        num_queries=int(truth.counted.sum()),
        num_queries_skipped=int((~truth.counted & covered.queries_in_scope).sum()),
        num_queries_missing=int((~covered.queries_scored & covered.queries_in_scope).sum()),
        num_relevant=int(truth.num_relevant.sum()),
        num_relevant_scored=int(truth.relevant.sum()),
        num_relevant_unavailable=int(truth.num_unavailable.sum()),
        recall_at_precision_90=recall_at_90,
    )
    return _Measured(result=result, samples=samples, precision=precision, per_query=table)


def _mean(values: pl.Series) -> float:
    """Mean over the queries that count; 0 if none does."""
    mean = values.drop_nulls().mean()
    return float(mean) if isinstance(mean, float) else 0.0


def _per_query(
    definition: BenchmarkDefinition, task: Task, truth: Judgement, ranking: Ranking
) -> tuple[pl.DataFrame, Floats]:
    """PER_QUERY_SCHEMA, a row per query in the definition's order, with null values for queries that do not count, and
    interpolated precision at RECALLS averaged over the queries that count, [101]."""
    rows: list[dict[str, object]] = []
    precision = np.zeros(len(RECALLS))
    for query, query_id in enumerate(definition.queries):
        span = ranking.rows(query)
        candidate, similarity = truth.candidate[span], ranking.similarity[span]
        positions, skipped = np.flatnonzero(truth.relevant[span]), np.flatnonzero(~candidate)
        num_relevant = int(truth.num_relevant[query])
        value = order_free = 0.0 if truth.counted[query] else None
        if truth.counted[query] and len(positions):
            ranks, worst = ranks_at(positions, similarity, skipped=skipped)
            value, order_free = _values(task, ranks, worst, num_relevant=num_relevant)
            precision += curve_from_ranks(worst, similarity[positions], num_relevant=num_relevant).at_recalls(RECALLS)
        rows.append(
            {
                "task": task.name,
                "query_id": query_id,
                "average_precision": value,
                "average_precision_order_free": order_free,
                "num_relevant": num_relevant,
                "num_relevant_scored": len(positions),
                "num_ranked": len(candidate) - len(skipped),
                "status": truth.status[query],
            }
        )
    return pl.DataFrame(rows, schema=PER_QUERY_SCHEMA), precision / max(int(truth.counted.sum()), 1)


def _values(task: Task, ranks: Ints, worst: Ints, *, num_relevant: int) -> tuple[float, float]:
    """The task's average precision with ties as published, and with tied scores at their worst rank."""
    kind = task.average_precision
    legacy = worst if kind == "tie_grouped" else ranks
    free = "step" if kind == "tie_grouped" else kind
    return (
        average_precision(legacy, num_relevant=num_relevant, kind=kind),
        average_precision(worst, num_relevant=num_relevant, kind=free),
    )


def _pooled(task: Task, truth: Judgement, ranking: Ranking) -> tuple[float, float, Floats, float]:
    """Micro-AP as published and order-free, interpolated precision at RECALLS, recall at precision 0.9."""
    num_relevant = int(truth.num_relevant.sum())
    if num_relevant == 0:
        return 0.0, 0.0, np.zeros(len(RECALLS)), 0.0
    positions = np.sort(ranking.pooled_position[truth.relevant])
    skipped = np.sort(ranking.pooled_position[~truth.candidate])
    ranks, worst = ranks_at(positions, ranking.pooled_similarity, skipped=skipped)
    curve = curve_from_ranks(worst, ranking.pooled_similarity[positions], num_relevant=num_relevant)
    value, order_free = _values(task, ranks, worst, num_relevant=num_relevant)
    return value, order_free, curve.at_recalls(RECALLS), curve.recall_at_precision(0.9)


def _mean_samples(per_query: Floats, truth: Judgement, weights: NDArray[np.float64] | None) -> Floats | None:
    """Mean AP of every bootstrap sample, [B]; NaN where a sample drew no query that counts."""
    if weights is None or not truth.counted.any():
        return None
    return bootstrap_mean_ap(per_query[truth.counted], weights[:, truth.counted])


def _pooled_samples(truth: Judgement, ranking: Ranking, weights: NDArray[np.float64] | None) -> Floats | None:
    """Micro-AP of every bootstrap sample, [B]."""
    if weights is None or not truth.counted.any():
        return None
    ranked = []
    for span in map(ranking.rows, range(len(truth.counted))):
        candidate = truth.candidate[span]
        ranked.append((ranking.similarity[span][candidate], truth.relevant[span][candidate]))
    return bootstrap_micro_ap(ranked, num_relevant=truth.num_relevant, weights=weights)


def _availability(
    definition: BenchmarkDefinition, pairs: ScoredPairs, ranking: Ranking, covered: Coverage
) -> Availability:
    num_queries, num_references = int(covered.queries_scored.sum()), int(covered.references_scored.sum())
    own = own_positions(definition)
    selves = int((covered.references_scored[own] & (own >= 0) & covered.queries_scored).sum())
    num_own_rows = int((own[ranking.query] == ranking.reference).sum())
    return Availability(
        num_queries=int(covered.queries_in_scope.sum()),
        num_queries_scored=num_queries,
        num_references=int(covered.references_in_scope.sum()),
        num_references_scored=num_references,
        num_pairs_scored=len(ranking.query),
        num_pairs_unscored=num_queries * num_references - selves - (len(ranking.query) - num_own_rows),
        num_pairs_invalid=int(ranking.invalid.sum()),
        num_rows=pairs.num_rows,
        num_rows_outside=pairs.num_rows - len(ranking.query),
    )
