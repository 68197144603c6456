"""Evaluation of similarities against a benchmark definition under one of three policies for missing
videos.

official: follows the authors' evaluation (see `Task`), to compare with published numbers. strict: a
missing relevant video is a miss, and a missing query scores 0, so losing videos can never raise a
score. frozen: strict, on the videos of a named availability manifest, so that two runs are compared
on the same videos.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from hapvr.benchmark import metrics
from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.metrics import Floats, Ints
from hapvr.benchmark.ranking import Judgement, Ranking, read_pairs
from hapvr.benchmark.tasks import Metric, Task
from hapvr.errors import DataError
from hapvr.seeding import numpy_rng
from hapvr.settings import Policy

RECALLS = np.linspace(0, 1, 101)


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """One metric, in [0, 1], and what it was computed on."""

    task: str
    metric: Metric
    value: float
    """With tied scores in row order, like published numbers; in "tie_grouped" at their worst
    rank."""
    interval: tuple[float, float] | None
    """95 % bootstrap interval over queries, if asked for."""
    num_queries: int
    """The number of queries that count."""
    num_relevant: int
    """The number of pairs in the ground truth under the policy."""
    by_event: dict[str, float] = field(default_factory=dict)
    """For mAP, the mean over the queries of each event, if the benchmark has events; `value` is the
    mean over all queries."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationResult:
    """All tasks of one benchmark under one policy."""

    benchmark: str
    policy: Policy
    tasks: tuple[TaskResult, ...]
    availability: dict[str, int]
    """How much of the benchmark the scores cover: num_queries, num_queries_scored, num_references,
    num_references_scored, under the frozen policy within its manifest; num_pairs_invalid, scores
    that are not finite."""
    curves: dict[str, Floats]
    """Interpolated precision at RECALLS by task, [101]; mAP tasks average it over queries."""
    samples: dict[str, Floats] = field(default_factory=dict)
    """Metric of every bootstrap sample of queries by task, [B]; empty without bootstrap. The same
    seed draws the same queries of a benchmark, so that differences between two results are paired.
    """

    @property
    def metrics(self) -> dict[str, float]:
        """Value of every task by name."""
        return {task.task: task.value for task in self.tasks}

    def to_json(self) -> dict[str, object]:
        """Plain values for JSON: benchmark, policy, metrics, intervals, availability, tasks."""
        intervals = {
            task.task: list(task.interval) for task in self.tasks if task.interval is not None
        }
        return {
            "benchmark": self.benchmark,
            "policy": self.policy,
            "metrics": self.metrics,
            "intervals": intervals,
            "availability": self.availability,
            "tasks": {task.task: asdict(task) for task in self.tasks},
        }


def evaluate(
    definition: BenchmarkDefinition,
    similarities: pl.DataFrame | Path | str,
    *,
    policy: Policy = "strict",
    available: frozenset[str] | None = None,
    bootstrap_samples: int = 0,
    seed: int = 0,
) -> EvaluationResult:
    """Every task of `definition` on `similarities` (columns query_id, reference_id, similarity;
    higher is closer).

    A score that is not finite is an error under "official". Otherwise it counts as a miss if the
    pair is relevant, and as ranked first if not, so it can never raise a score.

    available: ids of the available videos. "frozen" needs it: it is the manifest. Under "official"
    it decides which positives leave the ground truth. None means the ids that occur in the scores.
    bootstrap_samples: > 0 adds 95 % intervals over queries, drawn from `seed`.

    Raises:
        DataError: unusable scores."""
    ranking = Ranking(
        definition, read_pairs(definition, similarities), policy=policy, available=available
    )
    if policy == "official" and ranking.invalid.any():
        raise DataError(
            f"{definition.name}: {int(ranking.invalid.sum())} scores are NaN or infinite, "
            "which the official protocol "
            "does not define; find out why, or evaluate with the strict policy, which counts "
            "them as misses"
        )

    weights = None
    if bootstrap_samples:
        rng = numpy_rng(seed, definition.name, "bootstrap")
        weights = metrics.query_weights(
            len(definition.queries), num_samples=bootstrap_samples, rng=rng
        )

    results: list[TaskResult] = []
    samples: dict[str, Floats] = {}
    curves: dict[str, Floats] = {}
    for task in definition.tasks:
        truth = Judgement(definition, task, ranking, policy=policy)
        by_event: dict[str, float] = {}
        if task.metric == "micro-AP":
            measured, drawn = _pooled(task, truth, ranking, weights)
        else:
            of_queries = _by_query(task, truth, ranking)
            measured, drawn = _mean_of_queries(of_queries, truth, weights)
            by_event = _by_event(definition, of_queries, truth)

        curves[task.name] = measured[1:]
        if drawn is not None:
            samples[task.name] = drawn
        result = TaskResult(
            task=task.name,
            metric=task.metric,
            value=float(measured[0]),
            interval=None if drawn is None else metrics.bootstrap_interval(drawn),
            num_queries=int(truth.counted.sum()),
            num_relevant=int(truth.num_relevant.sum()),
            by_event=by_event,
        )
        results.append(result)

    return EvaluationResult(
        benchmark=definition.name,
        policy=policy,
        tasks=tuple(results),
        availability=_availability(ranking),
        curves=curves,
        samples=samples,
    )


def _availability(ranking: Ranking) -> dict[str, int]:
    """See `EvaluationResult.availability`."""
    return {
        "num_queries": int(ranking.queries_in_scope.sum()),
        "num_queries_scored": int(ranking.queries_scored.sum()),
        "num_references": int(ranking.references_in_scope.sum()),
        "num_references_scored": int(ranking.references_scored.sum()),
        "num_pairs_invalid": int(ranking.invalid.sum()),
    }


def _by_query(task: Task, truth: Judgement, ranking: Ranking) -> Floats:
    """`_measure` of each query that counts, in order. Returns [queries, 1 + 101]."""
    rows = []
    for query in np.flatnonzero(truth.counted).tolist():
        span = ranking.rows(query)
        positions = np.flatnonzero(truth.relevant[span])
        skipped = np.flatnonzero(~truth.candidate[span])
        # A query that lost all its positives has no hits in any.
        num_relevant = max(int(truth.num_relevant[query]), 1)
        rows.append(_measure(task, positions, ranking.similarity[span], skipped, num_relevant))

    return np.array(rows).reshape(len(rows), 1 + len(RECALLS))


def _mean_of_queries(
    measured: Floats, truth: Judgement, weights: Floats | None
) -> tuple[Floats, Floats | None]:
    """The mean over queries, 0 if none counts, and mAP of every bootstrap sample. measured: see
    `_by_query`. weights: see `query_weights`; None for no bootstrap."""
    if not len(measured):
        return np.zeros(1 + len(RECALLS)), None
    samples = None
    if weights is not None:
        drawn = weights[:, truth.counted]
        num = drawn.sum(axis=1)  # NaN is the mean of none
        samples = np.divide(
            drawn @ measured[:, 0], num, out=np.full_like(num, np.nan), where=num > 0
        )

    return measured.mean(axis=0), samples


def _by_event(
    definition: BenchmarkDefinition, measured: Floats, truth: Judgement
) -> dict[str, float]:
    """Mean average precision over the queries of each event that count; events without one are
    left out."""
    counted = np.flatnonzero(truth.counted).tolist()
    of_event: dict[str, list[float]] = {}
    for query, precision in zip(counted, measured[:, 0].tolist(), strict=True):
        event = definition.events.get(definition.queries[query])
        if event is not None:
            of_event.setdefault(event, []).append(precision)

    return {event: sum(values) / len(values) for event, values in sorted(of_event.items())}


def _pooled(
    task: Task, truth: Judgement, ranking: Ranking, weights: Floats | None
) -> tuple[Floats, Floats | None]:
    """`_measure` of the ranking of all queries' pairs together, and micro-AP of every bootstrap
    sample."""
    num_relevant = int(truth.num_relevant.sum())
    samples = None
    if weights is not None and truth.counted.any():
        ranked = []
        for query in range(len(truth.counted)):
            span = ranking.rows(query)
            candidate = truth.candidate[span]
            ranked.append((ranking.similarity[span][candidate], truth.relevant[span][candidate]))

        samples = metrics.bootstrap_micro_ap(
            ranked, num_relevant=truth.num_relevant, weights=weights
        )

    if num_relevant == 0:
        return np.zeros(1 + len(RECALLS)), samples
    positions = np.sort(ranking.pooled_position[truth.relevant])
    skipped = np.sort(ranking.pooled_position[~truth.candidate])
    return _measure(task, positions, ranking.pooled_similarity, skipped, num_relevant), samples


def _measure(
    task: Task, positions: Ints, similarity: Floats, skipped: Ints, num_relevant: int
) -> Floats:
    """Average precision of one ranking with ties as published, then interpolated precision at
    RECALLS. Arguments: see `ranks_at`. Returns [1 + 101]."""
    ranks, worst = metrics.ranks_at(positions, similarity, skipped)
    kind = task.average_precision
    chosen = worst if kind == "tie_grouped" else ranks
    precision = metrics.average_precision(chosen, num_relevant=num_relevant, kind=kind)
    curve = metrics.interpolated_precision(worst, num_relevant=num_relevant, recalls=RECALLS)
    return np.hstack([precision, curve])
