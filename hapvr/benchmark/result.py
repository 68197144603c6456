"""The outcome of an evaluation: metrics, what they were computed on, per-query values and curves."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hapvr.benchmark.definition import Metric
from hapvr.config import Policy

PER_QUERY_SCHEMA = {
    "task": pl.String,
    "query_id": pl.String,
    "average_precision": pl.Float64,
    "average_precision_order_free": pl.Float64,
    "num_relevant": pl.Int64,
    "num_relevant_scored": pl.Int64,
    "num_ranked": pl.Int64,
    "status": pl.String,
}
CURVE_SCHEMA = {"task": pl.String, "recall": pl.Float64, "precision": pl.Float64}


@dataclass(frozen=True, kw_only=True)
class Availability:
    """How much of the benchmark the scores cover. Under the frozen policy all counts are within its manifest.

    num_pairs_unscored: pairs of a scored query and a scored reference, other than a video with itself, without a row;
      they are ranked nowhere, so relevant ones are misses.
    num_pairs_invalid: scores that are not finite; a relevant one is a miss, any other is ranked first.
    num_rows_outside: rows left out because an id is not the definition's (or not the manifest's).
    """

    num_queries: int
    num_queries_scored: int
    num_references: int
    num_references_scored: int
    num_pairs_scored: int
    num_pairs_unscored: int
    num_pairs_invalid: int
    num_rows: int
    num_rows_outside: int


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """One metric, in [0, 1], and what it was computed on.

    value: ties in row order, as published numbers are. order_free: tied scores share the worst rank.
    interval: 95 % bootstrap interval over queries, where asked for.
    num_relevant: pairs in the ground truth under the policy; num_relevant_scored: those that were ranked.
    num_queries_skipped: queries without a positive pair under the policy, or missing ones where the policy skips them.
    num_queries_missing: queries without any score, whether they were skipped or scored zero.
    recall_at_precision_90: of pooled rankings only.
    """

    task: str
    metric: Metric
    value: float
    order_free: float
    interval: tuple[float, float] | None
    num_queries: int
    num_queries_skipped: int
    num_queries_missing: int
    num_relevant: int
    num_relevant_scored: int
    num_relevant_unavailable: int
    recall_at_precision_90: float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationResult:
    """All tasks of one benchmark under one policy.

    per_query: a row per mAP task and query (PER_QUERY_SCHEMA); status is evaluated, missing (no score),
      no_positives (none in the definition) or positives_unavailable (none left under the policy).
    curves: interpolated precision at 101 recalls per task (CURVE_SCHEMA); mAP tasks average it over queries.
    samples: metric of every bootstrap sample of queries by task, [B]; the same seed draws the same queries of a benchmark,
      so that differences between two results are paired. Empty without bootstrap.
    """

    benchmark: str
    policy: Policy
    tasks: tuple[TaskResult, ...]
    availability: Availability
    per_query: pl.DataFrame
    curves: pl.DataFrame
    samples: dict[str, NDArray[np.floating[Any]]] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, float]:
        """Value of every task by name."""
        return {task.task: task.value for task in self.tasks}

    def to_json(self) -> dict[str, object]:
        """Plain values for JSON: benchmark, policy, metrics, order_free, intervals, availability, tasks."""
        return {
            "benchmark": self.benchmark,
            "policy": self.policy,
            "metrics": self.metrics,
            "order_free": {task.task: task.order_free for task in self.tasks},
            "intervals": {task.task: list(task.interval) for task in self.tasks if task.interval is not None},
            "availability": asdict(self.availability),
            "tasks": {task.task: asdict(task) for task in self.tasks},
        }
