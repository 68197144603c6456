"""What single queries retrieved: the best ranked videos, and the relevant one that is ranked last."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.ground_truth import ranked_pairs, relevant_pairs
from hapvr.benchmark.pairs import read_pairs
from hapvr.benchmark.result import EvaluationResult


@dataclass(frozen=True)
class RankedVideo:
    """A reference of a query's ranking. rank: 1 is the best. relevant: whether the task counts it."""

    video_id: str
    rank: int
    similarity: float
    relevant: bool


@dataclass(frozen=True)
class RetrievedVideos:
    """The first videos of a query's ranking, and the relevant video that is ranked last if it is not among them."""

    query_id: str
    average_precision: float
    first: tuple[RankedVideo, ...]
    last_relevant: RankedVideo | None


def retrieved_videos(
    definition: BenchmarkDefinition,
    similarities: pl.DataFrame | Path,
    result: EvaluationResult,
    *,
    task: str,
    num_queries: int = 6,
    num_first: int = 5,
) -> list[RetrievedVideos]:
    """Some queries of a task, evenly spaced from the lowest average precision to the highest.

    Empty for a task that ranks all pairs together, which has no average precision per query.
    """
    judged = result.per_query.filter(pl.col("task") == task).drop_nulls("average_precision")
    judged = judged.sort("average_precision", "query_id")
    places = np.unique(np.linspace(0, max(0, len(judged) - 1), num_queries).round().astype(int))[: len(judged)]
    chosen = definition.task(task)
    pairs = read_pairs(definition, similarities)
    ranked = ranked_pairs(definition, chosen)[pairs.query, pairs.reference] & ~pairs.invalid
    relevant = relevant_pairs(definition, chosen.positives)
    positions = {query: number for number, query in enumerate(definition.queries)}
    rows = []
    for query_id, average_precision in judged[places].select("query_id", "average_precision").iter_rows():
        query = positions[query_id]
        own = np.flatnonzero(ranked & (pairs.query == query))
        own = own[np.argsort(-pairs.similarity[own], kind="stable")]
        hits = relevant[query, pairs.reference[own]]

        def video(place: int, pair: int, is_relevant: bool) -> RankedVideo:
            return RankedVideo(
                definition.database[pairs.reference[pair]], place + 1, float(pairs.similarity[pair]), is_relevant
            )

        first = tuple(video(place, own[place], bool(hits[place])) for place in range(min(num_first, len(own))))
        last = int(np.flatnonzero(hits)[-1]) if hits.any() else 0
        missed = video(last, own[last], True) if last >= num_first else None
        rows.append(RetrievedVideos(query_id, average_precision, first, missed))
    return rows
