"""What a task's ranking holds: similarities of relevant and irrelevant pairs, and what single queries retrieved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.pairs import ScoredPairs, read_pairs
from hapvr.benchmark.ranking import Bools, Floats, ranked_pairs, relevant_pairs
from hapvr.benchmark.result import EvaluationResult


def relevant_and_irrelevant(
    definition: BenchmarkDefinition, similarities: pl.DataFrame | Path | str, *, task: str
) -> tuple[Floats, Floats]:
    """Finite similarities of the pairs that the task ranks (HAP-VR Fig. 5): ([relevant pairs], [other pairs])."""
    pairs, ranked, relevant = _judged_pairs(definition, similarities, task)
    return pairs.similarity[ranked & relevant], pairs.similarity[ranked & ~relevant]


def _judged_pairs(
    definition: BenchmarkDefinition, similarities: pl.DataFrame | Path | str, task: str
) -> tuple[ScoredPairs, Bools, Bools]:
    """The scored pairs, and which of them the task ranks and which are relevant, [M] bool each."""
    chosen = definition.task(task)
    pairs = read_pairs(definition, similarities)
    ranked = ranked_pairs(definition, chosen)[pairs.query, pairs.reference] & ~pairs.invalid
    return pairs, ranked, relevant_pairs(definition, chosen.positives)[pairs.query, pairs.reference]


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
    pairs, ranked, relevant = _judged_pairs(definition, similarities, task)
    rows = []
    for query_id, average_precision in judged[places].select("query_id", "average_precision").iter_rows():
        own = np.flatnonzero(ranked & (pairs.query == definition.queries.index(query_id)))
        own = own[np.argsort(-pairs.similarity[own], kind="stable")]
        hits = np.flatnonzero(relevant[own])
        shown = [*range(min(num_first, len(own))), *(hits[-1:] if len(hits) and hits[-1] >= num_first else [])]
        videos = tuple(
            RankedVideo(
                definition.database[pairs.reference[own[place]]],
                int(place) + 1,
                float(pairs.similarity[own[place]]),
                bool(relevant[own[place]]),
            )
            for place in shown
        )
        last = videos[num_first] if len(videos) > num_first else None
        rows.append(RetrievedVideos(query_id, average_precision, videos[:num_first], last))
    return rows
