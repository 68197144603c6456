"""What the watch lists have found so far, for the page."""

from __future__ import annotations

from typing import Any

from hapvr.search.marks import read_marks
from hapvr.serving.collection import OpenIndex
from hapvr.stages.watch_lists import all_matches


def watched(index: OpenIndex, *, watch_list: str = "") -> list[dict[str, Any]]:
    """Matches with videos of the index, the newest first and then the surest. watch_list: of this list alone; "" for all.

    query_id: of a query that is a video of the index, otherwise "". Raises DamagedError for marks that cannot be read.
    """
    marks = read_marks(index.project.root)
    rows = [row for row in all_matches(index.project) if watch_list in ("", row["watch_list"])]
    rows = [row for row in rows if row["video_id"] in index.searcher.collection.shard_of]
    return [
        {
            "watch_list": row["watch_list"],
            "query": row["query"],
            "query_id": row["query"] if row["query"] in index.searcher.collection.shard_of else "",
            "query_sha256": row["query_sha256"],
            "reference": row["video_id"],
            "similarity": row["similarity"],
            "probability": row["probability"],
            "query_covered": row["query_covered"],
            "reference_covered": row["video_covered"],
            "segments": _segments(row),
            "since": row["since"],
            "mark": marks.verdict(row["query_sha256"], row["video_sha256"]) or "",
        }
        for row in sorted(rows, key=lambda row: row["since"], reverse=True)
    ]


def _segments(row: dict[str, Any]) -> list[dict[str, float]]:
    """The surest common part, if there is one."""
    if row["query_start_s"] is None:
        return []
    return [
        {
            "query_start_s": row["query_start_s"],
            "query_end_s": row["query_end_s"],
            "reference_start_s": row["video_start_s"],
            "reference_end_s": row["video_end_s"],
        }
    ]
