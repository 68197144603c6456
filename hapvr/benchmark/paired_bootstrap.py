"""Is one set of scores better than another? A paired bootstrap over queries, on the videos that
both can use."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from hapvr.benchmark.definition import PARTS_TASK, BenchmarkDefinition
from hapvr.benchmark.metrics import Floats, bootstrap_interval
from hapvr.benchmark.protocol import evaluate
from hapvr.errors import ConfigError
from hapvr.settings import GateConfig

BOOTSTRAP_SAMPLES = 2000


class Difference:
    """Challenger minus champion of one metric. Values in [0, 1], difference in [-1, 1]. samples: of
    the difference in the bootstrap, [B]. interval: of the difference, two-sided at the confidence.
    better, worse: share of resamples in which the challenger is strictly above or below."""

    def __init__(
        self, name: str, champion: float, challenger: float, samples: Floats, *, confidence: float
    ) -> None:
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
    """The gate's decision. target: difference of the mean of the target metrics; better: whether it
    is better. metrics: every required metric; worse: names of those that are worse. reason: a
    sentence for people."""

    better: bool
    reason: str
    target: Difference
    metrics: tuple[Difference, ...]
    worse: tuple[str, ...]

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
    videos that both can use). champion, challenger: columns query_id, reference_id, similarity.
    Both are resampled with the same draws of queries."""
    first, second = (
        evaluate(
            definition,
            scores,
            policy="frozen",
            available=available,
            bootstrap_samples=BOOTSTRAP_SAMPLES,
        )
        for scores in (champion, challenger)
    )
    differences = {}
    for task, before in first.samples.items():
        differences[task] = Difference(
            f"{definition.name}/{task}",
            first.metrics[task],
            second.metrics[task],
            second.samples[task] - before,
            confidence=config.confidence,
        )
    return differences


def decide(
    differences: Iterable[dict[str, Difference]],
    *,
    target_metrics: Sequence[str],
    config: GateConfig,
) -> Verdict:
    """Passed if the mean of the target metrics is better and no required metric is worse.
    differences: of each benchmark, by task. Better: the challenger is ahead in at least
    `confidence` of the resamples. Worse: it is behind in that many, or behind by more than
    `max_drop`. Required are `required_metrics`, or else the target metrics, and PARTS_TASK wherever
    it is measured. Raises ConfigError if no target metric, or not every metric of
    `required_metrics`, was measured.
    """
    measured = [(task, difference) for one in differences for task, difference in one.items()]
    names = {task for task, _ in measured}
    unmeasured = sorted(set(config.required_metrics) - names)
    if unmeasured or not names & set(target_metrics):
        key = "gate.required_metrics" if unmeasured else "target_metrics"
        missing = unmeasured or target_metrics
        raise ConfigError(
            f"evaluation.{key}: {', '.join(missing)} was measured on no benchmark; the benchmarks "
            f"have {', '.join(sorted(names))}"
        )
    targets = [difference for task, difference in measured if task in target_metrics]
    required = (*(config.required_metrics or target_metrics), PARTS_TASK)
    metrics = tuple(difference for task, difference in measured if task in required)
    target = Difference(
        "mean of the target metrics",
        float(np.mean([one.champion for one in targets])),
        float(np.mean([one.challenger for one in targets])),
        np.mean([one.samples for one in targets], axis=0),
        confidence=config.confidence,
    )
    worse = tuple(
        one.name
        for one in metrics
        if one.worse >= config.confidence or one.value < -config.max_drop
    )
    ahead = target.value > 0 and target.better >= config.confidence
    low, high = (100 * end for end in target.interval)
    numbers = (
        f"{target.name} {100 * target.challenger:.2f} against {100 * target.champion:.2f} "
        f"(difference {100 * target.value:+.2f}, {100 * config.confidence:.0f} % interval "
        f"{low:+.2f} to {high:+.2f})"
    )
    if worse:
        reason = f"worse on {', '.join(worse)}; {numbers}"
    elif not ahead:
        reason = f"not clearly better: {numbers}; ahead in {100 * target.better:.0f} % of resamples"
    else:
        reason = f"better: {numbers}; no required metric is worse"
    return Verdict(better=ahead, reason=reason, target=target, metrics=metrics, worse=worse)
