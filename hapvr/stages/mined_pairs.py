"""Pairs of training videos that the search found, as positives of the next training. No paper has this."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.errors import DataError
from hapvr.search.duplicates import DuplicatePair
from hapvr.stages.duplicates import duplicate_pairs, outdated_duplicates
from hapvr.stages.project import Project
from hapvr.stages.searcher import Searcher
from hapvr.stages.sources import benchmark_folder
from hapvr.train.mined_pairs import MinedPairs

PROBE_PAIRS = 10
"""Pairs of the validation benchmark below which their precision says nothing."""


def find_mined_pairs(project: Project, shards: Sequence[str]) -> MinedPairs:
    """Pairs of videos of these shards that show the same by `train.mined_probability`, or by the mark of a person.

    Pairs with a video of another shard are left out, so nothing of a benchmark reaches the training. Raises DataError
    where no index answers, where a shard was not compared with the collection by the model that answers now, and where
    the precision on the validation benchmark, whose labels are known, is below `train.mined_precision`.
    """
    settings = project.config.train
    searcher = Searcher.open(project)
    compared = set(searcher.indexed) - set(outdated_duplicates(project).uncompared)
    if not_compared := sorted(set(shards) - compared):
        raise DataError(
            f"training: the videos of shard {not_compared[0]} are not compared with the collection yet; run `hapvr "
            "duplicates`, or set train.mined_pairs to false"
        )
    training = {video_id for key in shards for video_id in searcher.collection.video_ids(key)}
    found = sorted(
        duplicate_pairs(project, searcher, min_probability=settings.mined_probability), key=lambda pair: -_surety(pair)
    )
    pairs = tuple((pair.first, pair.second) for pair in found if pair.first in training and pair.second in training)
    name = project.config.evaluation.validation
    validation = None if name is None else load_definition(str(benchmark_folder(project, name) or name))
    num_probes, right = (0, 0) if validation is None else probe(validation, found)
    precision = right / num_probes if num_probes >= PROBE_PAIRS else None
    if precision is not None and precision < settings.mined_precision:
        raise DataError(
            f"training: of {num_probes} pairs that the search finds in {name} only {precision:.0%} are right, and "
            f"train.mined_precision is {settings.mined_precision:.0%}; raise train.mined_probability, or set "
            "train.mined_pairs to false"
        )
    return MinedPairs(pairs, searcher.current.model, num_probes, precision)


def _surety(pair: DuplicatePair) -> float:
    return 1.0 if pair.mark == "match" else pair.probability


def probe(definition: BenchmarkDefinition, found: Sequence[DuplicatePair]) -> tuple[int, int]:
    """Pairs of a query and a database video of a benchmark among those found, and how many of them are relevant."""
    positives = frozenset[str]().union(*(task.positives for task in definition.tasks))
    labelled = definition.labels.filter(pl.col("label").is_in(positives)).select("query_id", "reference_id")
    relevant, queries, database = set(labelled.rows()), set(definition.queries), set(definition.database)
    probes = [
        (query, reference)
        for pair in found
        for query, reference in ((pair.first, pair.second), (pair.second, pair.first))
        if query in queries and reference in database
    ]
    return len(probes), sum(pair in relevant for pair in probes)
