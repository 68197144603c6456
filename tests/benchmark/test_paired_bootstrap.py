"""The promotion gate's statistics: paired resamples, what counts as better, what counts as
worse."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, strategies as st

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.paired_bootstrap import Difference, compare, decide
from hapvr.benchmark.tasks import Task
from hapvr.seeding import numpy_rng
from hapvr.settings import GateConfig

GATE = GateConfig()
QUERIES = 24
REFERENCES = 60


def definition() -> BenchmarkDefinition:
    """24 queries with three relevant references each, a mAP and a micro-AP task."""
    queries = tuple(f"q{number}" for number in range(QUERIES))
    database = tuple(f"r{number}" for number in range(REFERENCES))
    labels = [
        (query, f"r{(number * 5 + step) % REFERENCES}", "DS")
        for number, query in enumerate(queries)
        for step in range(3)
    ]
    return BenchmarkDefinition(
        name="made",
        queries=queries,
        database=database,
        labels=pl.DataFrame(labels, schema=["query_id", "reference_id", "label"], orient="row"),
        tasks=tuple(
            Task(name=name, metric=metric, positives=frozenset({"DS"}))
            for name, metric in (("DSVR", "mAP"), ("DSVD", "micro-AP"))
        ),
    )


def scores(benchmark: BenchmarkDefinition, *, gain: float, seed: int) -> pl.DataFrame:
    """Noise, with `gain` added to relevant pairs: a larger gain ranks better."""
    rng = numpy_rng(seed, "scores")
    frame = pl.DataFrame(
        [(query, reference) for query in benchmark.queries for reference in benchmark.database],
        schema=["query_id", "reference_id"],
        orient="row",
    ).with_columns(
        pl.Series("similarity", rng.normal(size=len(benchmark.queries) * len(benchmark.database)))
    )
    relevant = benchmark.labels.select("query_id", "reference_id", pl.lit(gain).alias("gain"))
    return frame.join(relevant, on=["query_id", "reference_id"], how="left").select(
        "query_id",
        "reference_id",
        (pl.col("similarity") + pl.col("gain").fill_null(0.0)).alias("similarity"),
    )


def everything(benchmark: BenchmarkDefinition) -> frozenset[str]:
    return frozenset(benchmark.video_ids)


def test_a_clearly_better_challenger_passes_and_the_reverse_does_not() -> None:
    """Gain 3 against gain 1 is better on both metrics in nearly all resamples; exchanged, it is
    worse."""
    benchmark = definition()
    weak = scores(benchmark, gain=1.0, seed=1)
    strong = scores(benchmark, gain=3.0, seed=1)
    up = decide(
        [compare(benchmark, weak, strong, available=everything(benchmark), config=GATE)],
        target_metrics=("DSVR",),
        config=GATE,
    )
    down = decide(
        [compare(benchmark, strong, weak, available=everything(benchmark), config=GATE)],
        target_metrics=("DSVR",),
        config=GATE,
    )
    assert up.passed
    assert up.target.interval[0] > 0
    assert not down.passed
    assert down.worse == ("made/DSVR",)
    assert "worse on made/DSVR" in down.reason


def test_equal_scores_are_no_improvement() -> None:
    """The same scores twice: the difference is exactly 0 in every resample, since draws are
    paired."""
    benchmark = definition()
    same = scores(benchmark, gain=1.0, seed=3)
    differences = compare(benchmark, same, same, available=everything(benchmark), config=GATE)
    assert all(np.all(difference.samples == 0) for difference in differences.values())
    verdict = decide([differences], target_metrics=("DSVR", "DSVD"), config=GATE)
    assert not verdict.passed
    assert verdict.worse == ()
    assert "not clearly better" in verdict.reason


def difference(name: str, value: float, *, spread: float = 0.001) -> Difference:
    """A measured difference, as `compare` gives it."""
    samples = value + spread * np.linspace(-1, 1, 101)
    return Difference(name, 0.5, 0.5 + value, samples, confidence=GATE.confidence)


@pytest.mark.parametrize(
    ("drop", "spread", "max_drop", "worse"),
    [(-0.005, 0.001, 0.02, True), (-0.03, 0.1, 0.02, True), (-0.03, 0.1, 0.05, False)],
)
def test_one_required_metric_that_got_worse_stops_a_better_target(
    drop: float, spread: float, max_drop: float, worse: bool
) -> None:
    """Surely half a point down, or unsure but more than `max_drop`; a metric that is not required
    may fall, `parts` not."""
    measured = {
        "DSVR": difference("b/DSVR", 0.2),
        "DSVD": difference("b/DSVD", drop, spread=spread),
    }
    gate = GATE.model_copy(update={"required_metrics": ("DSVR", "DSVD"), "max_drop": max_drop})
    verdict = decide([measured], target_metrics=("DSVR",), config=gate)
    assert verdict.worse == (("b/DSVD",) if worse else ())
    assert verdict.passed == (not worse)
    assert decide([measured], target_metrics=("DSVR",), config=GATE).passed
    guarded = {"DSVR": measured["DSVR"], "parts": difference("b/parts", drop, spread=spread)}
    config = GATE.model_copy(update={"max_drop": max_drop})
    assert decide([guarded], target_metrics=("DSVR",), config=config).passed is not worse


@given(values=st.lists(st.floats(-0.3, 0.3), min_size=1, max_size=6))
def test_never_passes_with_a_mean_that_is_not_higher(values: list[float]) -> None:
    """Whatever the metrics, a passed gate means a higher mean of the target metrics."""
    measured = {
        f"T{number}": difference(f"b/T{number}", value) for number, value in enumerate(values)
    }
    verdict = decide([measured], target_metrics=tuple(measured), config=GATE)
    if verdict.passed:
        assert np.mean(values) > 0
        assert min(values) >= -GATE.max_drop
