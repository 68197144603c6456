"""Whether one set of scores is better than another: a paired bootstrap over queries, on the videos
that both can use."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.metrics import Floats, bootstrap_interval
from hapvr.benchmark.protocol import EvaluationResult, evaluate
from hapvr.benchmark.tasks import PARTS_TASK
from hapvr.errors import ConfigError
from hapvr.settings import GateConfig

BOOTSTRAP_SAMPLES = 2000


class Difference:
    """Challenger minus champion of one metric. Values in [0, 1], difference in [-1, 1].

    interval: of the difference, two-sided at the confidence.
    better, worse: share of resamples in which the challenger is strictly above or below."""

    def __init__(
        self, name: str, champion: float, challenger: float, samples: Floats, *, confidence: float
    ) -> None:
        """samples: of the difference in the bootstrap, [B]."""
        self.name = name
        self.champion = champion
        self.challenger = challenger
        self.samples = samples
        self.value = challenger - champion
        usable = samples[~np.isnan(samples)]
        self.interval = bootstrap_interval(usable, confidence=confidence)
        self.better = float((usable > 0).mean())
        self.worse = float((usable < 0).mean())

    def to_json(self) -> dict[str, Any]:
        """Plain values, without the samples."""
        names = ("name", "champion", "challenger", "interval", "better", "worse")
        return {name: getattr(self, name) for name in names} | {"difference": self.value}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The gate's decision."""

    better: bool
    """Whether the target is better."""
    reason: str
    """A sentence for people."""
    target: Difference
    """The difference of the mean of the target metrics."""
    metrics: tuple[Difference, ...]
    """The difference of every required metric."""
    worse: tuple[str, ...]
    """Names of required metrics that are worse."""

    @property
    def passed(self) -> bool:
        return self.better and not self.worse

    def to_json(self) -> dict[str, Any]:
        """Plain values for a file."""
        rows = {
            "target": self.target.to_json(),
            "metrics": [metric.to_json() for metric in self.metrics],
        }
        return vars(self) | {"passed": self.passed, "worse": list(self.worse)} | rows


def compare(
    definition: BenchmarkDefinition,
    champion: pl.DataFrame,
    challenger: pl.DataFrame,
    *,
    available: frozenset[str],
    config: GateConfig,
) -> dict[str, Difference]:
    """Compare two models on every task of a benchmark, under the frozen policy on `available` (the
    videos that both can use). Both are resampled with the same draws of queries.

    champion, challenger: columns query_id, reference_id, similarity."""

    def result_of(scores: pl.DataFrame) -> EvaluationResult:
        return evaluate(
            definition,
            scores,
            policy="frozen",
            available=available,
            bootstrap_samples=BOOTSTRAP_SAMPLES,
        )

    of_champion = result_of(champion)
    of_challenger = result_of(challenger)
    return {
        task: Difference(
            f"{definition.name}/{task}",
            of_champion.metrics[task],
            of_challenger.metrics[task],
            of_challenger.samples[task] - samples,
            confidence=config.confidence,
        )
        for task, samples in of_champion.samples.items()
    }


def decide(
    differences: Iterable[dict[str, Difference]],
    *,
    target_metrics: Sequence[str],
    config: GateConfig,
) -> Verdict:
    """Passed if the mean of the target metrics is better and no required metric is worse.

    Better: the challenger is ahead in at least `confidence` of the resamples. Worse: it is behind
    in that many, or behind by more than `max_drop`. Required are `required_metrics`, or else the
    target metrics, and PARTS_TASK wherever it is measured.

    differences: for each benchmark, by task.

    Raises:
        ConfigError: no target metric, or not every metric of `required_metrics`, was measured."""
    measured = [item for of_benchmark in differences for item in of_benchmark.items()]
    _require_measured({task for task, _ in measured}, target_metrics, config)

    target = _mean_of(
        [difference for task, difference in measured if task in target_metrics], config
    )
    required = (*(config.required_metrics or target_metrics), PARTS_TASK)
    metrics = tuple(difference for task, difference in measured if task in required)
    worse = tuple(metric.name for metric in metrics if _is_worse(metric, config))
    better = target.value > 0 and target.better >= config.confidence
    return Verdict(
        better=better,
        reason=_reason(target, better=better, worse=worse, config=config),
        target=target,
        metrics=metrics,
        worse=worse,
    )


def _require_measured(
    measured: set[str], target_metrics: Sequence[str], config: GateConfig
) -> None:
    """Raise ConfigError if no target metric was measured, or not every required one."""
    problem = ""
    unmeasured = sorted(set(config.required_metrics) - measured)
    if unmeasured:
        problem = f"gate.required_metrics: {', '.join(unmeasured)}"
    elif not measured & set(target_metrics):
        problem = f"target_metrics: {', '.join(target_metrics)}"

    if problem:
        raise ConfigError(
            f"evaluation.{problem} was measured on no benchmark; the benchmarks "
            f"have {', '.join(sorted(measured))}"
        )


def _mean_of(targets: Sequence[Difference], config: GateConfig) -> Difference:
    """The difference of the mean of several metrics."""
    return Difference(
        "mean of the target metrics",
        float(np.mean([target.champion for target in targets])),
        float(np.mean([target.challenger for target in targets])),
        np.mean([target.samples for target in targets], axis=0),
        confidence=config.confidence,
    )


def _is_worse(metric: Difference, config: GateConfig) -> bool:
    return metric.worse >= config.confidence or metric.value < -config.max_drop


def _reason(target: Difference, *, better: bool, worse: Sequence[str], config: GateConfig) -> str:
    """A sentence for people: what the gate decided, and the numbers behind it."""
    low = 100 * target.interval[0]
    high = 100 * target.interval[1]
    numbers = (
        f"{target.name} {100 * target.challenger:.2f} against {100 * target.champion:.2f} "
        f"(difference {100 * target.value:+.2f}, {100 * config.confidence:.0f} % interval "
        f"{low:+.2f} to {high:+.2f})"
    )
    if worse:
        return f"worse on {', '.join(worse)}; {numbers}"
    if not better:
        return f"not clearly better: {numbers}; ahead in {100 * target.better:.0f} % of resamples"
    return f"better: {numbers}; no required metric is worse"
