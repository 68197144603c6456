"""Answers as tables: a row per matching segment, with the column names of VSC2022's `matches.csv` first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from hapvr.search.match import Match, SearchAnswer

SCHEMA = pa.schema(
    [
        ("query_id", pa.string()),
        ("ref_id", pa.string()),
        ("query_start", pa.float64()),
        ("query_end", pa.float64()),
        ("ref_start", pa.float64()),
        ("ref_end", pa.float64()),
        ("score", pa.float64()),
        ("rank", pa.int64()),
        ("similarity", pa.float64()),
        ("probability", pa.float64()),
        ("query_covered", pa.float64()),
        ("ref_covered", pa.float64()),
        ("offset", pa.float64()),
        ("mark", pa.string()),
        ("error", pa.string()),
    ]
)
"""Times in seconds. score: of the segment, in [-1, 1], or of the pair where there is no segment; then there are no times."""


def answer_table(answers: Iterable[SearchAnswer]) -> pa.Table:
    """All answers in one table; a match without segments is a row without times, a failed query a row with its error."""
    rows: list[dict[str, Any]] = []
    for answer in answers:
        if answer.error:
            rows.append({"query_id": answer.query, "error": answer.error})
        for match in answer.matches:
            rows += _rows(match)
    return pa.Table.from_pylist([{"error": ""} | row for row in rows], schema=SCHEMA)


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
