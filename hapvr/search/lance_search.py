"""Finds the nearest frames in a table of Lance: by codes where rows are indexed, else exactly."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hapvr.search.frame_index import VECTOR
from hapvr.search.hashes import FOUND_FRAMES
from hapvr.search.lance_table import Dataset, padded
from hapvr.search.lance_upkeep import METRIC

COLUMNS = ["video_id", "second"]


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
    refine_factor: this many times k rows are found by code and compared exactly; 0: the codes
        decide

    Returns FOUND_FRAMES.
    """
    vectors = padded(table, queries)
    indexed = set() if exact else _indexed_fragments(table)
    others = [part for part in table.get_fragments() if part.fragment_id not in indexed]
    hits = [_no_hits(table), *_exact_hits(table, others, vectors, k)]
    if indexed:
        # Only without a factor do all queries share one pass over the lists.
        options = {"nprobes": probed_lists, "refine_factor": refine_factor or None}
        hits.append(_coded_hits(table, vectors, k, options))
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


def _coded_hits(
    table: Dataset, queries: npt.NDArray[np.float32], k: int, options: dict[str, int | None]
) -> Hits:
    """The k nearest indexed rows of each query."""
    rows = table.scanner(
        columns=[*COLUMNS, "_distance"],
        nearest={"column": VECTOR, "q": queries, "k": k, "metric": METRIC, **options},
        disable_scoring_autoprojection=True,
        fast_search=True,
    ).to_table()
    return Hits(
        query_frames=rows["query_index"].to_numpy(),
        similarities=1 - rows["_distance"].to_numpy(),
        frames=rows.select(COLUMNS),
    )


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
