"""Similarities of relevant and irrelevant pairs of a task (HAP-VR Fig. 5)."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.pairs import read_pairs
from hapvr.benchmark.ranking import Floats, ranked_pairs, relevant_pairs


def relevant_and_irrelevant(
    definition: BenchmarkDefinition, similarities: pl.DataFrame | Path | str, *, task: str
) -> tuple[Floats, Floats]:
    """Finite similarities of the pairs that the task ranks: ([relevant pairs], [other pairs])."""
    chosen = definition.task(task)
    pairs = read_pairs(definition, similarities)
    ranked = ranked_pairs(definition, chosen)[pairs.query, pairs.reference] & ~pairs.invalid
    relevant = relevant_pairs(definition, chosen.positives)[pairs.query, pairs.reference]
    return pairs.similarity[ranked & relevant], pairs.similarity[ranked & ~relevant]
