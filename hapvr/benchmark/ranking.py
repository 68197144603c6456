"""Scored pairs in ranking order, ground truth as [Q, N] tables, and what a task says of these under a policy.

Videos are their positions in `definition.queries` (Q of them) and `definition.database` (N).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hapvr.benchmark.definition import BenchmarkDefinition, Task
from hapvr.benchmark.metrics import Bools, Floats, Ints
from hapvr.errors import DamagedError, DataError
from hapvr.settings import Policy
from hapvr.tables import TABLE_ERRORS, read_frame

COLUMNS = ["query_id", "reference_id", "similarity"]


def read_pairs(definition: BenchmarkDefinition, similarities: pl.DataFrame | Path | str) -> tuple[pl.DataFrame, int]:
    """Scored pairs whose videos belong to the definition, in file order, and the number of all rows.

    similarities: a table of COLUMNS, or a Parquet file. Returns query and reference, int32; similarity, where +inf stands for
    a score that is not finite; and invalid, bool, which marks those. Raises DataError for a missing file or column, a
    similarity column that is not numeric, an empty table, a repeated pair, or ids all unknown to the definition.
    """
    what = f"similarities for {definition.name}" if isinstance(similarities, pl.DataFrame) else str(similarities)
    try:
        table = similarities if isinstance(similarities, pl.DataFrame) else read_frame(Path(similarities))
        problem = _problem(table)
    except TABLE_ERRORS as error:
        problem = str(error)
    if problem:
        raise DamagedError(f"{what}: not a readable table of similarities ({problem}); score again")
    known = _with_positions(definition, table)
    if known.is_empty():
        raise DataError(
            f"{what}: none of {len(table)} rows names a query and a database video of {definition.name} "
            f"(e.g. query {definition.queries[0]!r}); is this another benchmark's file?"
        )
    repeated = len(known) - int(_table_of(definition, known).sum())
    if repeated:
        first, second, *_ = known.filter(pl.struct("query", "reference").is_duplicated()).select(COLUMNS).row(0)
        raise DataError(
            f"{what}: {repeated} pairs are repeated, e.g. query {first!r} with reference {second!r}; keep one score per pair"
        )
    score = pl.col("similarity")
    score = score if known.schema["similarity"] == pl.Float32 else score.cast(pl.Float64)
    valid = score.is_finite().fill_null(False)
    ranked = pl.when(valid).then(score).otherwise(float("inf"))
    return known.select("query", "reference", similarity=ranked, invalid=~valid), len(table)


def _problem(table: pl.DataFrame) -> str:
    """What is wrong with the columns; "" for nothing."""
    for column, wanted in zip(COLUMNS, ("video ids as strings", "video ids as strings", "floats"), strict=True):
        found = table.schema.get(column)
        if found is None:
            return f"no column {column!r}; found {table.columns}"
        if not (found.is_numeric() if wanted == "floats" else isinstance(found, pl.String | pl.Categorical | pl.Enum)):
            return f"column {column!r} is {str(found).lower()}, wanted {wanted}"
    return ""


def _with_positions(definition: BenchmarkDefinition, table: pl.DataFrame) -> pl.DataFrame:
    """The rows whose videos the definition knows, with their positions in columns query and reference, int32."""
    return table.with_columns(
        pl.col(f"{column}_id").cast(pl.Enum(ids), strict=False).to_physical().cast(pl.Int32).alias(column)
        for column, ids in (("query", definition.queries), ("reference", definition.database))
    ).drop_nulls(["query", "reference"])


def _table_of(definition: BenchmarkDefinition, pairs: pl.DataFrame) -> Bools:
    """[Q, N] bool, True at these pairs, which `_with_positions` gave."""
    table = np.zeros((len(definition.queries), len(definition.database)), dtype=bool)
    table[pairs["query"].to_numpy(), pairs["reference"].to_numpy()] = True
    return table


def _pairs_in(definition: BenchmarkDefinition, table: pl.DataFrame) -> Bools:
    return _table_of(definition, _with_positions(definition, table))


def ranked_pairs(definition: BenchmarkDefinition, task: Task) -> Bools:
    """Pairs that the task ranks: its pool without exclusions and ignored labels and, unless it stays, the query itself.
    [Q, N] bool."""
    if task.pool == "database":
        ranked = np.ones((len(definition.queries), len(definition.database)), dtype=bool)
    else:
        ranked = _pairs_in(definition, definition.labels)
        if task.pool == "labelled_and_unlabelled":
            ranked |= ~ranked.any(axis=0)
    if task.exclusion is not None:
        listed = definition.exclusions.filter(pl.col("exclusion") == task.exclusion)
        ranked[:, membership(listed.filter(pl.col("query_id").is_null())["reference_id"], definition.database)] = False
        ranked &= ~_pairs_in(definition, listed)
    if task.ignored:
        ranked &= ~_labelled_pairs(definition, task.ignored)
    if not task.query_stays:
        ranked &= ~_pairs_in(
            definition, pl.DataFrame({"query_id": definition.queries, "reference_id": definition.queries})
        )
    return ranked


def _labelled_pairs(definition: BenchmarkDefinition, labels: frozenset[str]) -> Bools:
    """Pairs that carry one of the labels. [Q, N] bool."""
    return _pairs_in(definition, definition.labels.filter(pl.col("label").is_in(list(labels))))


def relevant_and_irrelevant(
    definition: BenchmarkDefinition, similarities: pl.DataFrame | Path | str, *, task: str
) -> tuple[Floats, Floats]:
    """Finite similarities of the pairs that the task ranks (HAP-VR Fig. 5): ([relevant pairs], [other pairs])."""
    chosen = next(one for one in definition.tasks if one.name == task)
    pairs, _ = read_pairs(definition, similarities)
    query, reference, similarity, invalid = (column.to_numpy() for column in pairs)
    ranked = ranked_pairs(definition, chosen)[query, reference] & ~invalid
    relevant = _labelled_pairs(definition, chosen.positives)[query, reference]
    return similarity[ranked & relevant], similarity[ranked & ~relevant]


def membership(ids: Iterable[str] | pl.Series, known: tuple[str, ...]) -> Bools:
    """Which of `known` are in `ids`. bool [len(known)]."""
    return pl.Series(known).is_in(pl.Series(list(ids), dtype=pl.String).implode()).to_numpy()


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranking:
    """Scored pairs in scope, by query, within a query by descending similarity, ties in the order of their rows.

    query, reference: int32 [M]; similarity: float [M]; invalid: bool [M]; bounds: int64 [Q + 1], rows of each query.
    pooled_position: int64 [M], where each row stands in the ranking of all queries' pairs together, ties in the order
    of their rows; pooled_similarity: float [M], the similarities in that order.

    queries_*: bool [Q]; references_*: bool [N]. in_scope: under the frozen policy the videos of the manifest, else all.
    scored: videos that occur in the scores in scope. available: references in the given list of ids; without a list those
    that are scored.
    """

    query: NDArray[np.int32]
    reference: NDArray[np.int32]
    similarity: Floats
    invalid: Bools
    bounds: Ints
    pooled_position: Ints
    pooled_similarity: Floats
    queries_in_scope: Bools
    references_in_scope: Bools
    queries_scored: Bools
    references_scored: Bools
    references_available: Bools

    def rows(self, query: int) -> slice:
        """Rows of one query."""
        return slice(int(self.bounds[query]), int(self.bounds[query + 1]))


def rank_pairs(
    definition: BenchmarkDefinition, pairs: pl.DataFrame, *, policy: Policy, available: frozenset[str] | None
) -> Ranking:
    """The ranking of those of the pairs, see `read_pairs`, that are in scope.

    Raises DataError if the frozen policy has no manifest that covers a query and a reference.
    """
    queries_in, references_in = np.ones(len(definition.queries), bool), np.ones(len(definition.database), bool)
    if policy == "frozen":
        manifest = available or frozenset()
        queries_in, references_in = membership(manifest, definition.queries), membership(manifest, definition.database)
        if not queries_in.any() or not references_in.any():
            raise DataError(
                f"{definition.name}: the frozen policy needs an availability manifest, the ids that both runs could use; "
                f"these {len(manifest)} ids name {int(queries_in.sum())} queries and {int(references_in.sum())} database "
                "videos. Is it another benchmark's?"
            )
        pairs = pairs.filter(queries_in[pairs["query"]] & references_in[pairs["reference"]])
    pooled = pairs.sort("similarity", descending=True, maintain_order=True).with_row_index("place")
    rows = pooled.sort("query", maintain_order=True)
    query, reference = rows["query"].to_numpy(), rows["reference"].to_numpy()
    references_scored = np.isin(np.arange(len(references_in)), reference)
    return Ranking(
        query=query,
        reference=reference,
        similarity=rows["similarity"].to_numpy(),
        invalid=rows["invalid"].to_numpy(),
        bounds=np.searchsorted(query, np.arange(len(queries_in) + 1)),
        pooled_position=rows["place"].to_numpy().astype(np.int64),
        pooled_similarity=pooled["similarity"].to_numpy(),
        queries_in_scope=queries_in,
        references_in_scope=references_in,
        queries_scored=np.isin(np.arange(len(queries_in)), query),
        references_scored=references_scored,
        references_available=references_scored if available is None else membership(available, definition.database),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Judgement:
    """What one task says of a ranking under a policy.

    candidate, relevant: bool [M], rows that are ranked, and those of them that are hits.
    num_relevant: int64 [Q], the ground truth under the policy. counted: bool [Q], queries that enter the mean.
    """

    candidate: Bools
    relevant: Bools
    num_relevant: Ints
    counted: Bools


def judge(definition: BenchmarkDefinition, task: Task, ranking: Ranking, *, policy: Policy) -> Judgement:
    """The task's ground truth under the policy, applied to the ranking."""
    ranked = ranked_pairs(definition, task)
    ranked &= ranking.queries_in_scope[:, None] & ranking.references_in_scope[None, :]
    truth = _labelled_pairs(definition, task.positives)
    truth &= ranked
    # one table of 0 (not ranked), 1 (ranked) and 2 (a hit), so that millions of rows are looked up once
    role = (ranked.view(np.uint8) + truth.view(np.uint8))[ranking.query, ranking.reference]
    candidate, relevant = role > 0, role > 1
    if ranking.invalid.any():
        candidate &= ~(relevant & ranking.invalid)
        relevant &= ~ranking.invalid

    num_defined = truth.sum(axis=1)
    if policy == "official" and task.official_missing_positive == "leaves":
        truth &= ranking.references_available
    num_relevant = truth.sum(axis=1)
    counted = num_defined > 0
    if policy == "official":
        counted &= ranking.queries_scored
        if task.official_empty_query == "skipped":
            counted &= num_relevant > 0
    else:
        counted &= ranking.queries_in_scope
    return Judgement(
        candidate=candidate, relevant=relevant, num_relevant=np.where(counted, num_relevant, 0), counted=counted
    )
