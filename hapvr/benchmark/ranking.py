"""Ground truth as [Q, N] tables, scored pairs in ranking order, and what a task says of these under a policy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hapvr.benchmark.definition import BenchmarkDefinition, Task
from hapvr.benchmark.metrics import descending_order
from hapvr.benchmark.pairs import ScoredPairs
from hapvr.config import Policy
from hapvr.errors import ArgumentError, DataError

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def ranked_pairs(definition: BenchmarkDefinition, task: Task) -> Bools:
    """Pairs that the task ranks: its pool without exclusions and, unless it stays, the query itself. [Q, N] bool."""
    ranked = np.full((len(definition.queries), len(definition.database)), task.pool == "database")
    if task.pool != "database":
        query, reference = _pair_codes(definition, definition.labels)
        if task.pool == "labelled_and_unlabelled":
            ranked[:, np.setdiff1d(np.arange(len(definition.database)), reference)] = True
        ranked[query, reference] = True
    if task.exclusion is not None:
        listed = definition.exclusions.filter(pl.col("exclusion") == task.exclusion)
        everywhere = listed.filter(pl.col("query_id").is_null())["reference_id"]
        ranked[:, membership(everywhere, definition.database)] = False
        query, reference = _pair_codes(definition, listed.filter(pl.col("query_id").is_not_null()))
        ranked[query, reference] = False
    if not task.query_stays:
        own = own_positions(definition)
        rows = np.flatnonzero(own >= 0)
        ranked[rows, own[rows]] = False
    return ranked


def relevant_pairs(definition: BenchmarkDefinition, positives: Iterable[str]) -> Bools:
    """Pairs that carry one of the labels in `positives`. [Q, N] bool."""
    relevant = np.zeros((len(definition.queries), len(definition.database)), dtype=bool)
    query, reference = _pair_codes(definition, definition.labels.filter(pl.col("label").is_in(list(positives))))
    relevant[query, reference] = True
    return relevant


def _pair_codes(definition: BenchmarkDefinition, table: pl.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of query_id in the queries and of reference_id in the database. Unknown pairs are left out."""
    query = table["query_id"].cast(pl.Enum(definition.queries), strict=False).to_physical().cast(pl.Int64)
    reference = table["reference_id"].cast(pl.Enum(definition.database), strict=False).to_physical().cast(pl.Int64)
    known = pl.DataFrame({"query": query, "reference": reference}).drop_nulls()
    return known["query"].to_numpy(), known["reference"].to_numpy()


def own_positions(definition: BenchmarkDefinition) -> NDArray[np.int64]:
    """Position of every query in the database, -1 where it is not there. int64 [Q]."""
    position = {video: index for index, video in enumerate(definition.database)}
    return np.array([position.get(video, -1) for video in definition.queries])


def membership(ids: Iterable[str] | pl.Series, known: tuple[str, ...]) -> Bools:
    """Which of `known` are in `ids`. bool [len(known)]."""
    return pl.Series(known).is_in(pl.Series(list(ids), dtype=pl.String).implode()).to_numpy()


@dataclass(frozen=True, kw_only=True, eq=False)
class Coverage:
    """Which videos count, by position in the definition. queries_*: bool [Q]; references_*: bool [N].

    in_scope: under the frozen policy the videos of the manifest, else all. scored: videos that occur in the scores.
    available: references in the given list of ids; without a list those that occur in the scores.
    """

    queries_in_scope: Bools
    references_in_scope: Bools
    queries_scored: Bools
    references_scored: Bools
    references_available: Bools


def coverage(
    definition: BenchmarkDefinition, pairs: ScoredPairs, *, policy: Policy, available: frozenset[str] | None
) -> Coverage:
    """Coverage of the definition by the scores.

    Raises ArgumentError if the frozen policy has no manifest, DataError if the manifest or the scores cover no query or
    no reference."""
    queries_in, references_in = np.ones(len(definition.queries), bool), np.ones(len(definition.database), bool)
    if policy == "frozen":
        if available is None:
            raise ArgumentError("the frozen policy needs an availability manifest: the ids that both runs could use")
        queries_in = membership(available, definition.queries)
        references_in = membership(available, definition.database)
        if not queries_in.any() or not references_in.any():
            raise DataError(
                f"{definition.name}: the availability manifest of {len(available)} ids names {int(queries_in.sum())} "
                f"queries and {int(references_in.sum())} database videos; is it another benchmark's?"
            )
    inside = queries_in[pairs.query] & references_in[pairs.reference]
    queries_scored, references_scored = np.zeros_like(queries_in), np.zeros_like(references_in)
    queries_scored[pairs.query[inside]] = True
    references_scored[pairs.reference[inside]] = True
    return Coverage(
        queries_in_scope=queries_in,
        references_in_scope=references_in,
        queries_scored=queries_scored,
        references_scored=references_scored,
        references_available=references_scored if available is None else membership(available, definition.database),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranking:
    """Scored pairs in scope, by query, within a query by descending similarity, ties in the order of their rows.

    query, reference: int32 [M]; similarity: float [M]; invalid: bool [M]; bounds: int64 [Q + 1], rows of each query.
    pooled_position: int64 [M], where each row stands in the ranking of all queries' pairs together, ties in the order
    of their rows; pooled_similarity: float [M], the similarities in that order.
    """

    query: NDArray[np.int32]
    reference: NDArray[np.int32]
    similarity: Floats
    invalid: Bools
    bounds: Ints
    pooled_position: Ints
    pooled_similarity: Floats

    def rows(self, query: int) -> slice:
        """Rows of one query."""
        return slice(int(self.bounds[query]), int(self.bounds[query + 1]))


def rank_pairs(pairs: ScoredPairs, covered: Coverage) -> Ranking:
    """The ranking of the pairs that are in scope."""
    num_queries = len(covered.queries_in_scope)
    pooled = descending_order(pairs.similarity)
    if not (covered.queries_in_scope.all() and covered.references_in_scope.all()):
        inside = covered.queries_in_scope[pairs.query] & covered.references_in_scope[pairs.reference]
        pooled = pooled[inside[pooled]]
    # a stable sort of short integers is a radix sort, much quicker than sorting by both keys at once
    keys = pairs.query[pooled].astype(np.uint16 if num_queries <= 1 << 16 else np.int32)
    pooled_position = np.argsort(keys, kind="stable")
    order = pooled[pooled_position]
    query = pairs.query[order]
    return Ranking(
        query=query,
        reference=pairs.reference[order],
        similarity=pairs.similarity[order],
        invalid=pairs.invalid[order],
        bounds=np.searchsorted(query, np.arange(num_queries + 1)),
        pooled_position=pooled_position,
        pooled_similarity=pairs.similarity[pooled],
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Judgement:
    """What one task says of a ranking under a policy.

    candidate, relevant: bool [M], rows that are ranked, and those of them that are hits.
    num_relevant: int64 [Q], the ground truth under the policy. num_unavailable: int64 [Q], relevant pairs of the
    definition whose reference is not available, whether or not they count.
    counted: bool [Q], queries that enter the mean. status: per query, see EvaluationResult.
    """

    candidate: Bools
    relevant: Bools
    num_relevant: Ints
    num_unavailable: Ints
    counted: Bools
    status: tuple[str, ...]


def judge(
    definition: BenchmarkDefinition, task: Task, ranking: Ranking, covered: Coverage, *, policy: Policy
) -> Judgement:
    """The task's ground truth under the policy, applied to the ranking."""
    ranked = ranked_pairs(definition, task)
    ranked &= covered.queries_in_scope[:, None] & covered.references_in_scope[None, :]
    truth = relevant_pairs(definition, task.positives)
    truth &= ranked
    # one table of 0 (not ranked), 1 (ranked) and 2 (a hit), so that millions of rows are looked up once
    role = (ranked.view(np.uint8) + truth.view(np.uint8))[ranking.query, ranking.reference]
    candidate, relevant = role > 0, role > 1
    if ranking.invalid.any():
        candidate &= ~(relevant & ranking.invalid)
        relevant &= ~ranking.invalid

    num_defined = truth.sum(axis=1)
    num_unavailable = truth[:, ~covered.references_available].sum(axis=1)
    leaves = policy == "official" and task.official_missing_positive == "leaves"
    num_relevant = num_defined - num_unavailable if leaves else num_defined
    scored = covered.queries_scored
    counted = num_defined > 0
    if policy == "official":
        counted = counted & scored
        if task.official_empty_query == "skipped":
            counted = counted & (num_relevant > 0)
    else:
        counted = counted & covered.queries_in_scope
    return Judgement(
        candidate=candidate,
        relevant=relevant,
        num_relevant=np.where(counted, num_relevant, 0),
        num_unavailable=num_unavailable,
        counted=counted,
        status=_status(num_defined, num_relevant, scored),
    )


def _status(num_defined: Ints, num_relevant: Ints, scored: Bools) -> tuple[str, ...]:
    conditions = [num_defined == 0, ~scored, num_relevant == 0]
    names = ["no_positives", "missing", "positives_unavailable"]
    return tuple(np.select(conditions, names, default="evaluated").tolist())
