"""Answers as tables: a row per matching segment, with the column names of VSC2022's `matches.csv` first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl

from hapvr.search.match import Match, SearchAnswer

SCHEMA: dict[str, Any] = {
    "query_id": pl.String,
    "ref_id": pl.String,
    "query_start": pl.Float64,
    "query_end": pl.Float64,
    "ref_start": pl.Float64,
    "ref_end": pl.Float64,
    "score": pl.Float64,
    "rank": pl.Int64,
    "similarity": pl.Float64,
    "probability": pl.Float64,
    "query_covered": pl.Float64,
    "ref_covered": pl.Float64,
    "offset": pl.Float64,
    "mark": pl.String,
    "error": pl.String,
}
"""Times in seconds. score: of the segment, in [-1, 1], or of the pair where there is no segment; then there are no times."""


def answer_table(answers: Iterable[SearchAnswer]) -> pl.DataFrame:
    """All answers in one table; a match without segments is a row without times, a failed query a row with its error."""
    rows: list[dict[str, Any]] = []
    for answer in answers:
        if answer.error:
            rows.append({"query_id": answer.query, "error": answer.error})
        for match in answer.matches:
            rows += _rows(match)
    return pl.DataFrame([dict.fromkeys(SCHEMA) | {"error": ""} | row for row in rows], schema=SCHEMA)


def answer_values(answers: Sequence[SearchAnswer]) -> list[dict[str, Any]]:
    """All answers as plain values for JSON."""
    values = []
    for answer in answers:
        matches = [asdict(match) | {"offset_s": match.offset_s} for match in answer.matches]
        values.append(asdict(answer) | {"matches": matches})
    return values


def _rows(match: Match) -> list[dict[str, Any]]:
    pair = {
        "query_id": match.query,
        "ref_id": match.reference,
        "score": match.similarity,
        "rank": match.rank,
        "similarity": match.similarity,
        "probability": match.probability,
        "query_covered": match.query_covered,
        "ref_covered": match.reference_covered,
        "mark": match.mark,
    }
    return [
        pair
        | {
            "query_start": segment.query_start_s,
            "query_end": segment.query_end_s,
            "ref_start": segment.reference_start_s,
            "ref_end": segment.reference_end_s,
            "score": segment.score,
            "offset": segment.reference_start_s - segment.query_start_s,
        }
        for segment in match.segments
    ] or [pair]
