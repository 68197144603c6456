"""A search of a collection against comparing the query with each of its videos, and how many of the nearest it finds.

    python -m bench.search --config configs/demo.yaml [--data-root DIR] [--queries 20] [--top 10]

The index of the project must be there. Queries are videos of the collection, evenly spaced; searches list whole matches,
without segments. `R@n` is the part of the n most similar videos, by comparison with all, that a search lists.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from bench.table import ratio, show
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher, SearchOptions


def measure(searcher: Searcher, *, num_queries: int, top: int) -> list[dict[str, Any]]:
    """A row for searches and one for comparison with all videos."""
    ids = sorted(searcher.collection.video_ids())
    options = SearchOptions(top=top, segments=False)
    searcher.search_id(ids[0], options)  # opens what is opened once
    seconds: dict[str, list[float]] = {"search": [], "every video": []}
    recalls = []
    for query in ids[:: max(1, len(ids) // num_queries)][:num_queries]:
        start = time.perf_counter()
        answer = searcher.search_id(query, options)
        seconds["search"].append(time.perf_counter() - start)
        start = time.perf_counter()
        similarity = {other: searcher.compare(query, other)[0].similarity for other in ids if other != query}
        seconds["every video"].append(time.perf_counter() - start)
        nearest = set(sorted(similarity, key=lambda other: -similarity[other])[:top])
        recalls.append(len(nearest & {match.reference for match in answer.matches}) / len(nearest))
    return [
        {
            "way": name,
            "videos": len(ids),
            "queries": len(found),
            "ms per query": 1e3 * statistics.median(found),
            "speedup": ratio(seconds["every video"], found),
            **({f"R@{top}": statistics.fmean(recalls)} if name == "search" else {}),
        }
        for name, found in seconds.items()
    ]


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", type=Path, default=Path("configs/demo.yaml"))
    parser.add_argument("--data-root", help="default: the configuration's")
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--top", type=int, default=10)
    options = parser.parse_args()
    overrides = {"data_root": options.data_root} if options.data_root else {}
    searcher = Searcher.open(Project.open(options.config, overrides=overrides))
    show(measure(searcher, num_queries=options.queries, top=options.top))


if __name__ == "__main__":
    main()
