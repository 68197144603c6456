"""What keeps a table in Lance fast to search: few fragments, and an index that has its rows."""

from dataclasses import dataclass

from hapvr.search.frame_index import VECTOR
from hapvr.search.lance_table import Dataset, counts_of, next_version, open_table
from hapvr.settings import IndexSettings

METRIC = "cosine"
LIST_ROWS = 4096
"""Rows of an inverted list, on average; more where that would give more than MAX_LISTS lists."""
MAX_LISTS = 4096
"""A build compares every row with the centre of every list, so more of them take days for 100
million rows."""
SAMPLE_RATE = 64
"""Vectors per inverted list that the centres of the lists are computed from."""
MAX_NEW_RATE = 0.05
"""Rows outside the index, as a part of all rows, from which on they are added to it."""
MAX_PARTS = 16
"""Parts of an index; with more it is rebuilt."""
MAX_FRAGMENTS = 48
"""Fragments of a table, from which on small ones are joined: a search opens every one."""
FRAGMENT_ROWS = 2**20
"""Rows from which on a fragment is large; more where a table would have more than MAX_FRAGMENTS / 2
of them."""


@dataclass(frozen=True)
class TableUpkeep:
    """Joins fragments and builds the index of the table at a place."""

    place: str
    settings: IndexSettings

    def with_few_fragments(self, table: Dataset) -> Dataset:
        """With small fragments joined where there are more than MAX_FRAGMENTS."""
        if counts_of(table).fragments <= MAX_FRAGMENTS:
            return table
        return self._joined(table)

    def without_deleted_rows(self, table: Dataset) -> Dataset:
        """With every fragment written again that has deleted rows, and an index that has their
        codes."""
        before = table.version
        after = self._joined(table, max_deleted_rate=0.0)
        if after.version == before:
            # The record of a deletion, with its values, is no longer that of the last version.
            after.restore()

        indices = after.describe_indices()
        if not indices:
            return after
        if counts_of(table).rows >= self.settings.min_indexed_rows:
            return self.indexed(after, rebuild=True)
        after.drop_index(indices[0].name)
        return after

    def _joined(self, table: Dataset, max_deleted_rate: float | None = None) -> Dataset:
        """With small fragments joined.

        max_deleted_rate: fragments with more deleted rows are written again; None: the engine's
        """
        before = table.version
        rows = counts_of(table).rows
        table.optimize.compact_files(
            target_rows_per_fragment=max(FRAGMENT_ROWS, 2 * rows // MAX_FRAGMENTS),
            materialize_deletions_threshold=max_deleted_rate,
        )
        # One version reserves the numbers of fragments, the next has them.
        return next_version(open_table(self.place), before + 1)

    def indexed(self, table: Dataset, *, rebuild: bool) -> Dataset:
        """With its index up to date: nothing is done, or a part is built for the rows that are new,
        or another index.

        rebuild: build it again in any case where there are enough rows for one
        """
        before = table.version
        counts = counts_of(table)
        if counts.rows < self.settings.min_indexed_rows:
            return table

        # Parts are never merged, see lance#7730: too many of them make a new index.
        if rebuild or not counts.parts or counts.parts >= MAX_PARTS:
            table.create_index(
                VECTOR,
                "IVF_RQ",
                num_partitions=max(1, min(counts.rows // LIST_ROWS, MAX_LISTS)),
                metric=METRIC,
                replace=True,
                sample_rate=SAMPLE_RATE,
                num_bits=self.settings.code_bits,
            )
        elif counts.rows - counts.indexed_rows > MAX_NEW_RATE * counts.rows:
            table.optimize.optimize_indices(num_indices_to_merge=0)

        return next_version(open_table(self.place), before)
