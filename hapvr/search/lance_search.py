"""Finds the nearest frames in a table of Lance: by codes where rows are indexed, else exactly."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hapvr.search.frame_index import VECTOR, vectors_of
from hapvr.search.hashes import FOUND_FRAMES
from hapvr.search.lance_table import Dataset, padded
from hapvr.search.lance_upkeep import METRIC

COLUMNS = ["video_id", "second"]
REFINED_AT_ONCE = 4096
"""Stored vectors that are in memory to be compared exactly."""


@dataclass(frozen=True)
class Hits:
    """Frames that may be among the nearest of query frames, in any order."""

    query_frames: npt.NDArray[np.int64]
    """[N], numbers of query frames"""
    similarities: npt.NDArray[np.float32]
    """[N], cosines"""
    frames: pa.Table
    """[N], of COLUMNS"""


def nearest_frames(
    table: Dataset,
    queries: npt.NDArray[np.floating],
    k: int,
    *,
    exact: bool,
    probed_lists: int,
    refine_factor: int,
) -> pa.Table:
    """The k nearest rows of each query, nearest first.

    queries: [Q, dims]
    exact: compare all rows
    probed_lists: inverted lists that a query looks at
    refine_factor: this many times k rows are found by code, and their stored vectors compared; 0:
        the codes decide

    Returns FOUND_FRAMES.
    """
    vectors = padded(table, queries)
    indexed = set() if exact else _indexed_fragments(table)
    others = [part for part in table.get_fragments() if part.fragment_id not in indexed]
    hits = [_no_hits(table), *_exact_hits(table, others, vectors, k)]
    if indexed:
        coded = _CodedRows.found(table, vectors, k * max(refine_factor, 1), probed_lists)
        hits += _refined_hits(table, vectors, coded) if refine_factor else [coded.hits]

    return _best_of(hits, k)


def _indexed_fragments(table: Dataset) -> set[int]:
    """The fragments whose rows the index holds."""
    indices = table.describe_indices()
    if not indices:
        return set()
    return {number for part in indices[0].segments for number in part.fragment_ids}


def _no_hits(table: Dataset) -> Hits:
    return Hits(
        query_frames=np.zeros(0, np.int64),
        similarities=np.zeros(0, np.float32),
        frames=table.schema.empty_table().select(COLUMNS),
    )


def _exact_hits(
    table: Dataset, fragments: Sequence[Any], queries: npt.NDArray[np.float32], k: int
) -> Iterator[Hits]:
    """Rows of some fragments that are among the k nearest of those that were read so far.

    They are compared here: for some hundred queries the engine takes four times as long, and
    gigabytes, since it compares them one by one.
    """
    directions = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    best = np.full((len(queries), k), -np.inf, np.float32)
    for batch in table.scanner(columns=[*COLUMNS, VECTOR], fragments=fragments).to_batches():
        vectors = np.asarray(batch[VECTOR].flatten(), np.float32).reshape(len(batch), -1)
        cosines = directions @ vectors.T / np.linalg.norm(vectors, axis=1)
        cosines = cosines.astype(np.float32)
        best = np.partition(np.hstack([best, cosines]), -k, axis=1)[:, -k:]
        query_frames, rows = np.nonzero(cosines >= best.min(axis=1, keepdims=True))
        frames = pa.Table.from_batches([batch.select(COLUMNS)]).take(pa.array(rows))
        yield Hits(query_frames, cosines[query_frames, rows], frames)


@dataclass(frozen=True)
class _CodedRows:
    """Indexed rows that are among the nearest of query frames, as codes tell."""

    row_ids: npt.NDArray[np.uint64]
    """[N], of the table"""
    hits: Hits

    @staticmethod
    def found(
        table: Dataset, queries: npt.NDArray[np.float32], count: int, probed_lists: int
    ) -> "_CodedRows":
        """The `count` nearest of each query. The engine is not asked to refine them: it would go
        through the lists once for each query instead of once for all."""
        nearest = {"column": VECTOR, "q": queries, "k": count, "metric": METRIC}
        rows = table.scanner(
            columns=[*COLUMNS, "_distance"],
            nearest={**nearest, "nprobes": probed_lists, "refine_factor": None},
            with_row_id=True,
            disable_scoring_autoprojection=True,
            fast_search=True,
        ).to_table()
        hits = Hits(
            query_frames=rows["query_index"].to_numpy(),
            similarities=1 - rows["_distance"].to_numpy(),
            frames=rows.select(COLUMNS),
        )
        return _CodedRows(rows["_rowid"].to_numpy(), hits)


def _refined_hits(
    table: Dataset, queries: npt.NDArray[np.float32], coded: _CodedRows
) -> Iterator[Hits]:
    """The rows that codes found, with the cosines of their stored vectors. A row is read once,
    however many queries found it: those of one video share most of theirs."""
    directions = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    by_row = np.argsort(coded.row_ids, kind="stable")
    row_ids = coded.row_ids[by_row]
    wanted = np.unique(row_ids)
    for start in range(0, len(wanted), REFINED_AT_ONCE):
        part = wanted[start : start + REFINED_AT_ONCE]
        first, last = np.searchsorted(row_ids, [part[0], part[-1] + 1])
        places = by_row[first:last]
        vectors = _stored_directions(table, part)[np.searchsorted(part, row_ids[first:last])]
        query_frames = coded.hits.query_frames[places]
        cosines = np.einsum("nd,nd->n", directions[query_frames], vectors)
        yield Hits(query_frames, cosines, coded.hits.frames.take(pa.array(places)))


def _stored_directions(table: Dataset, row_ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    """Vectors [N, width] of unit length of rows, whose ids are sorted."""
    listed = ", ".join(map(str, row_ids.tolist()))
    rows = table.scanner(
        columns=[VECTOR], with_row_id=True, filter=f"_rowid IN ({listed})"
    ).to_table()
    vectors = vectors_of(rows).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors[np.argsort(rows["_rowid"].to_numpy())]


def _best_of(hits: Sequence[Hits], k: int) -> pa.Table:
    """The k most similar of each query frame, nearest first, as FOUND_FRAMES."""
    query_frames = np.concatenate([part.query_frames for part in hits])
    similarities = np.concatenate([part.similarities for part in hits])
    order = np.lexsort((-similarities, query_frames))
    sorted_frames = query_frames[order]
    rank = np.arange(len(order)) - np.searchsorted(sorted_frames, sorted_frames)
    order = order[rank < k]

    frames = pa.concat_tables([part.frames for part in hits]).take(pa.array(order))
    columns = [
        query_frames[order].astype(np.int32),
        *frames.columns,
        similarities[order].clip(-1, 1).astype(np.float32),
    ]
    return pa.table(columns, schema=FOUND_FRAMES)
