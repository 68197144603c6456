"""How often the promotion gate is wrong: equal models that it promotes, better ones that it does not.

    python -m bench.gate [--trials 200] [--queries 16 50 100]

Scores are drawn: each query has 3 relevant and 97 other references; relevant pairs lie `gain` higher, by query more or less. The
two models share half of the noise's variance, as two trainings on like data do. "ahead by" is the challenger's true lead in gain.
"""

import argparse
import json
import sys

import numpy as np
import polars as pl
from rich.progress import track

from hapvr.benchmark.definition import BenchmarkDefinition, Task
from hapvr.benchmark.paired_bootstrap import compare, decide
from hapvr.config import GateConfig
from hapvr.seeding import numpy_rng

RELEVANT, REFERENCES = 3, 100
GAIN, SPREAD, SHARED = 2.0, 1.0, 0.5
LEADS = (-0.2, 0.0, 0.1, 0.2, 0.4)
TASKS = {"mAP": "mAP", "micro-AP": "micro-AP"}


def drawn_definition(num_queries: int) -> BenchmarkDefinition:
    """References of their own for each query's relevant pairs."""
    queries = tuple(f"q{number}" for number in range(num_queries))
    database = tuple(f"r{number}" for number in range(REFERENCES))
    labels = [
        (query, database[(number * RELEVANT + step) % REFERENCES], "DS")
        for number, query in enumerate(queries)
        for step in range(RELEVANT)
    ]
    return BenchmarkDefinition(
        name="drawn",
        kind="clips",
        queries=queries,
        database=database,
        labels=pl.DataFrame(labels, schema=["query_id", "reference_id", "label"], orient="row"),
        tasks=tuple(Task(name=name, metric=metric, positives=frozenset({"DS"})) for name, metric in TASKS.items()),
    )


def drawn_scores(
    definition: BenchmarkDefinition, lead: float, rng: np.random.Generator
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Similarities of a champion and of a challenger that is `lead` ahead."""
    shape = (len(definition.queries), REFERENCES)
    relevant = np.zeros(shape)
    for number in range(shape[0]):
        relevant[number, [(number * RELEVANT + step) % REFERENCES for step in range(RELEVANT)]] = 1
    gain = GAIN + SPREAD * rng.normal(size=(shape[0], 1))
    common = np.sqrt(SHARED) * rng.normal(size=shape)
    champion, challenger = (
        relevant * (gain + extra) + common + np.sqrt(1 - SHARED) * rng.normal(size=shape) for extra in (0.0, lead)
    )
    return _frame(definition, champion), _frame(definition, challenger)


def _frame(definition: BenchmarkDefinition, scores: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "query_id": np.repeat(definition.queries, REFERENCES),
            "reference_id": np.tile(definition.database, len(definition.queries)),
            "similarity": scores.ravel(),
        }
    )


def rates(num_queries: int, lead: float, *, trials: int) -> dict[str, float]:
    """Part of the trials in which the gate promotes, and in which it calls the challenger worse; mean difference of the target."""
    definition, gate = drawn_definition(num_queries), GateConfig(bootstrap_samples=1000)
    rng = numpy_rng(0, "gate", num_queries, lead)
    verdicts = []
    for _ in track(range(trials), description=f"{num_queries} queries, lead {lead:+g}"):
        champion, challenger = drawn_scores(definition, lead, rng)
        differences = compare(definition, champion, challenger, available=frozenset(definition.video_ids), config=gate)
        verdicts.append(decide([differences], target_metrics=list(TASKS), config=gate))
    return {
        "queries": num_queries,
        "lead": lead,
        "difference": float(np.mean([verdict.target.value for verdict in verdicts])),
        "promoted": float(np.mean([verdict.passed for verdict in verdicts])),
        "called_worse": float(np.mean([bool(verdict.worse) for verdict in verdicts])),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--queries", type=int, nargs="+", default=[16, 50, 100])
    arguments = parser.parse_args()
    rows = [rates(queries, lead, trials=arguments.trials) for queries in arguments.queries for lead in LEADS]
    sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
