"""Scored pairs in ranking order, ground truth as [Q, N] tables, and how a task judges these under a
policy.

Videos are their positions in `definition.queries` (Q of them) and `definition.database` (N).
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import polars as pl

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.metrics import Bools, Floats
from hapvr.benchmark.tasks import Task
from hapvr.errors import DamagedError, DataError
from hapvr.files import file_problem
from hapvr.settings import Policy
from hapvr.tables import TABLE_ERRORS, read_user_table

COLUMNS = ["query_id", "reference_id", "similarity"]
MEMORY_BYTES = 12 << 30
"""Memory limit of the process that reads similarities: the 110 million pairs of SVD with its
unlabelled videos take 10.4 GB of addresses, 4.3 GB of memory."""


def read_pairs(
    definition: BenchmarkDefinition, similarities: pl.DataFrame | Path | str
) -> pl.DataFrame:
    """Scored pairs whose videos belong to the definition, in file order.

    similarities: a table of COLUMNS, or a Parquet file.

    Returns query and reference, int32; similarity, where +inf stands for a score that is not
    finite; and invalid, bool, which marks those.

    Raises:
        DataError: a missing file or column, a similarity column that is not numeric, an empty
            table, a repeated pair, or ids all unknown to the definition."""
    place, table = _read_similarities(definition, similarities)
    pairs = _with_positions(definition, table)
    if pairs.is_empty():
        raise DataError(
            f"{place}: none of {len(table)} rows names a query and a database video of "
            f"{definition.name} "
            f"(e.g. query {definition.queries[0]!r}); is this another benchmark's file?"
        )

    repeated = len(pairs) - int(_table_of(definition, pairs).sum())
    if repeated:
        is_repeated = pl.struct("query", "reference").is_duplicated()
        query, reference, _ = pairs.filter(is_repeated).select(COLUMNS).row(0)
        raise DataError(
            f"{place}: {repeated} pairs are repeated, e.g. query {query!r} with reference "
            f"{reference!r}; keep one score per pair"
        )

    score = pl.col("similarity")
    if pairs.schema["similarity"] != pl.Float32:
        score = score.cast(pl.Float64)
    valid = score.is_finite().fill_null(False)
    ranked = pl.when(valid).then(score).otherwise(float("inf"))
    return pairs.select("query", "reference", similarity=ranked, invalid=~valid)


def _read_similarities(
    definition: BenchmarkDefinition, similarities: pl.DataFrame | Path | str
) -> tuple[str, pl.DataFrame]:
    """The name of the similarities in messages, and their table. Raises DamagedError for a table
    that cannot be read."""
    if isinstance(similarities, pl.DataFrame):
        place = f"similarities for {definition.name}"
    else:
        place = str(similarities)

    try:
        if isinstance(similarities, pl.DataFrame):
            table = similarities
        else:
            table = read_user_table(
                Path(similarities), categories=COLUMNS[:2], memory_bytes=MEMORY_BYTES
            )

        problem = _problem(table)
    except (*TABLE_ERRORS, pl.exceptions.PolarsError) as error:
        problem = file_problem(error)

    if problem:
        raise DamagedError(
            f"{place}: not a readable table of similarities ({problem}); score again"
        )

    return place, table


def _problem(table: pl.DataFrame) -> str:
    """What is wrong with the columns; "" if nothing is."""
    for column in COLUMNS:
        dtype = table.schema.get(column)
        if dtype is None:
            return f"no column {column!r}; found {table.columns}"
        if column == "similarity":
            wanted = "floats"
            fits = dtype.is_numeric()
        else:
            wanted = "video ids as strings"
            fits = isinstance(dtype, pl.String | pl.Categorical | pl.Enum)

        if not fits:
            return f"column {column!r} is {str(dtype).lower()}, expected {wanted}"

    return ""


def _with_positions(definition: BenchmarkDefinition, table: pl.DataFrame) -> pl.DataFrame:
    """The rows whose videos the definition knows, with their positions in columns query and
    reference, int32."""
    return table.with_columns(
        pl.col(f"{column}_id")
        .cast(pl.Enum(ids), strict=False)
        .to_physical()
        .cast(pl.Int32)
        .alias(column)
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
    """Pairs that the task ranks: its pool without exclusions and ignored labels and, unless it
    stays, the query itself. [Q, N] bool."""
    if task.pool == "database":
        ranked = np.ones((len(definition.queries), len(definition.database)), dtype=bool)
    else:
        ranked = _pairs_in(definition, definition.labels)
        if task.pool == "labelled_and_unlabelled":
            ranked |= ~ranked.any(axis=0)

    if task.exclusion is not None:
        listed = definition.exclusions.filter(pl.col("exclusion") == task.exclusion)
        for_all_queries = listed.filter(pl.col("query_id").is_null())
        ranked[:, membership(for_all_queries["reference_id"], definition.database)] = False
        ranked &= ~_pairs_in(definition, listed)

    if task.ignored:
        ranked &= ~_labelled_pairs(definition, task.ignored)
    if not task.query_stays:
        with_itself = pl.DataFrame(
            {"query_id": definition.queries, "reference_id": definition.queries}
        )
        ranked &= ~_pairs_in(definition, with_itself)

    return ranked


def _labelled_pairs(definition: BenchmarkDefinition, labels: frozenset[str]) -> Bools:
    """Pairs that carry one of the labels. [Q, N] bool."""
    return _pairs_in(definition, definition.labels.filter(pl.col("label").is_in(list(labels))))


def relevant_and_irrelevant(
    definition: BenchmarkDefinition, similarities: pl.DataFrame | Path | str, *, task: str
) -> tuple[Floats, Floats]:
    """Finite similarities of the pairs that the task ranks (HAP-VR Fig. 5): ([relevant pairs],
    [other pairs])."""
    chosen = next(one for one in definition.tasks if one.name == task)
    pairs = read_pairs(definition, similarities)
    query = pairs["query"].to_numpy()
    reference = pairs["reference"].to_numpy()
    similarity = pairs["similarity"].to_numpy()
    ranked = ranked_pairs(definition, chosen)[query, reference] & ~pairs["invalid"].to_numpy()
    relevant = _labelled_pairs(definition, chosen.positives)[query, reference]
    return similarity[ranked & relevant], similarity[ranked & ~relevant]


def membership(ids: Iterable[str] | pl.Series, known: tuple[str, ...]) -> Bools:
    """Which of `known` are in `ids`. bool [len(known)]."""
    return pl.Series(known).is_in(pl.Series(list(ids), dtype=pl.String).implode()).to_numpy()


class Ranking:
    """Scored pairs in scope, by query, within a query by descending similarity, ties in the order
    of their rows.

    query, reference: int32 [M].
    similarity: float [M].
    invalid: bool [M].
    bounds: int64 [Q + 1], rows of each query.
    pooled_position: int64 [M], where each row stands in the ranking of all queries' pairs together,
        ties in the order of their rows.
    pooled_similarity: float [M], the similarities in that order.
    queries_in_scope, references_in_scope: bool [Q] and [N]; under the frozen policy the videos of
        the manifest, else all.
    queries_scored, references_scored: bool [Q] and [N], videos that occur in the scores in scope.
    references_available: bool [N], those in the given list of ids; without a list those that are
        scored.
    """

    def __init__(
        self,
        definition: BenchmarkDefinition,
        pairs: pl.DataFrame,
        *,
        policy: Policy,
        available: frozenset[str] | None,
    ) -> None:
        """pairs: see `read_pairs`. Raises DataError if the frozen policy has no manifest that
        covers a query and a reference."""
        queries = definition.queries
        database = definition.database
        queries_in = np.ones(len(queries), bool)
        references_in = np.ones(len(database), bool)
        if policy == "frozen":
            manifest = available or frozenset()
            queries_in = membership(manifest, queries)
            references_in = membership(manifest, database)
            if not queries_in.any() or not references_in.any():
                raise DataError(
                    f"{definition.name}: the frozen policy needs an availability manifest, "
                    "the ids that both runs could "
                    f"use; these {len(manifest)} ids name {int(queries_in.sum())} queries "
                    f"and {int(references_in.sum())} "
                    "database videos. Is it another benchmark's?"
                )

            pairs = pairs.filter(queries_in[pairs["query"]] & references_in[pairs["reference"]])

        pooled = pairs.sort("similarity", descending=True, maintain_order=True)
        pooled = pooled.with_row_index("place")
        rows = pooled.sort("query", maintain_order=True)
        self.query = rows["query"].to_numpy()
        self.reference = rows["reference"].to_numpy()
        self.similarity = rows["similarity"].to_numpy()
        self.invalid = rows["invalid"].to_numpy()
        self.bounds = np.searchsorted(self.query, np.arange(len(queries) + 1))
        self.pooled_position = rows["place"].to_numpy().astype(np.int64)
        self.pooled_similarity = pooled["similarity"].to_numpy()
        self.queries_in_scope = queries_in
        self.references_in_scope = references_in
        self.queries_scored = np.isin(np.arange(len(queries)), self.query)
        self.references_scored = np.isin(np.arange(len(database)), self.reference)
        self.references_available = self.references_scored
        if available is not None:
            self.references_available = membership(available, database)

    def rows(self, query: int) -> slice:
        """Rows of one query."""
        return slice(int(self.bounds[query]), int(self.bounds[query + 1]))


class Judgement:
    """How one task judges a ranking: its ground truth under the policy, applied to the ranking.

    candidate, relevant: bool [M], rows that are ranked, and those of them that are hits.
    num_relevant: int64 [Q], the ground truth under the policy.
    counted: bool [Q], queries that enter the mean."""

    def __init__(
        self, definition: BenchmarkDefinition, task: Task, ranking: Ranking, *, policy: Policy
    ) -> None:
        ranked = ranked_pairs(definition, task)
        ranked &= ranking.queries_in_scope[:, None] & ranking.references_in_scope[None, :]
        truth = _labelled_pairs(definition, task.positives) & ranked
        # one table of 0 (not ranked), 1 (ranked) and 2 (a hit), so that millions of rows need only
        # one look-up each
        role = (ranked.view(np.uint8) + truth.view(np.uint8))[ranking.query, ranking.reference]
        self.relevant = (role > 1) & ~ranking.invalid
        self.candidate = (role == 1) | self.relevant
        official = policy == "official"
        usable = ranking.queries_scored if official else ranking.queries_in_scope
        self.counted = truth.any(axis=1) & usable
        if official and task.official_missing_positive == "leaves":
            truth &= ranking.references_available
        num_relevant = truth.sum(axis=1)
        if official and task.official_empty_query == "skipped":
            self.counted &= num_relevant > 0
        self.num_relevant = np.where(self.counted, num_relevant, 0)
