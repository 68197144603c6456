"""Which pairs are relevant to a task and which may be ranked, as [Q, N] tables."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hapvr.benchmark.definition import BenchmarkDefinition, Task
from hapvr.errors import DataError

Bools = NDArray[np.bool_]


def ranked_pairs(definition: BenchmarkDefinition, task: Task) -> Bools:
    """Pairs that the task ranks: its pool without exclusions and, unless it stays, the query itself. [Q, N] bool."""
    num_queries, num_references = len(definition.queries), len(definition.database)
    if task.pool == "database":
        ranked = np.ones((num_queries, num_references), dtype=bool)
    else:
        ranked = np.zeros((num_queries, num_references), dtype=bool)
        query, reference = pair_codes(definition, definition.labels)
        if task.pool == "labelled_and_unlabelled":
            unlabelled = np.ones(num_references, dtype=bool)
            unlabelled[reference] = False
            ranked[:, unlabelled] = True
        ranked[query, reference] = True
    if task.exclusion is not None:
        listed = definition.exclusions.filter(pl.col("exclusion") == task.exclusion)
        if listed.is_empty():
            raise DataError(f"benchmark {definition.name}: task {task.name} excludes {task.exclusion!r}, an empty list")
        everywhere = listed.filter(pl.col("query_id").is_null())["reference_id"]
        ranked[:, codes(everywhere, definition.database)] = False
        query, reference = pair_codes(definition, listed.filter(pl.col("query_id").is_not_null()))
        ranked[query, reference] = False
    if not task.query_stays:
        own = own_positions(definition)
        rows = np.flatnonzero(own >= 0)
        ranked[rows, own[rows]] = False
    return ranked


def relevant_pairs(definition: BenchmarkDefinition, positives: Iterable[str]) -> Bools:
    """Pairs that carry one of the labels in `positives`. [Q, N] bool."""
    relevant = np.zeros((len(definition.queries), len(definition.database)), dtype=bool)
    query, reference = pair_codes(definition, definition.labels.filter(pl.col("label").is_in(list(positives))))
    relevant[query, reference] = True
    return relevant


def pair_codes(definition: BenchmarkDefinition, table: pl.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of query_id in the queries and of reference_id in the database. Unknown pairs are left out."""
    query = table["query_id"].cast(pl.Enum(definition.queries), strict=False).to_physical().cast(pl.Int64)
    reference = table["reference_id"].cast(pl.Enum(definition.database), strict=False).to_physical().cast(pl.Int64)
    known = pl.DataFrame({"query": query, "reference": reference}).drop_nulls()
    return known["query"].to_numpy(), known["reference"].to_numpy()


def own_positions(definition: BenchmarkDefinition) -> NDArray[np.int64]:
    """Position of every query in the database, -1 where it is not there. int64 [Q]."""
    position = {video: index for index, video in enumerate(definition.database)}
    return np.array([position.get(video, -1) for video in definition.queries])


def codes(ids: Iterable[str] | pl.Series, known: tuple[str, ...]) -> NDArray[np.int64]:
    """Positions of `ids` in `known`; unknown ids are left out. int64 [<= len(ids)]."""
    series = ids if isinstance(ids, pl.Series) else pl.Series(list(ids), dtype=pl.String)
    return series.cast(pl.Enum(known), strict=False).to_physical().cast(pl.Int64).drop_nulls().to_numpy()


def membership(ids: Iterable[str], known: tuple[str, ...]) -> Bools:
    """Which of `known` are in `ids`. bool [len(known)]."""
    member = np.zeros(len(known), dtype=bool)
    member[codes(ids, known)] = True
    return member
