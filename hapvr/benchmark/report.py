"""Tables of benchmark results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from hapvr.tables import markdown_table


def metrics_markdown(results: Mapping[str, Mapping[str, float]], *, tasks: Sequence[str] | None = None) -> str:
    """Markdown table of metrics in percent. results: row name -> {task: value in [0, 1]}; "-" marks missing values.

    tasks: the columns; None for every task that some row has.
    """
    tasks = list(dict.fromkeys(task for row in results.values() for task in row)) if tasks is None else tasks
    rows = [
        [name, *(f"{100 * row[task]:.2f}" if task in row else "-" for task in tasks)] for name, row in results.items()
    ]
    return markdown_table(["", *tasks], rows) + "\n"


def published_metrics(benchmark: str) -> pl.DataFrame:
    """What papers report, under the policy `official`: row, task, percent, source; no rows where none of ours does."""
    table = Path(__file__).parent / "data" / "published" / "metrics.csv"
    return pl.read_csv(table.read_bytes()).filter(pl.col("benchmark") == benchmark).drop("benchmark")


def published_markdown(benchmark: str, results: Mapping[str, Mapping[str, float]]) -> str:
    """`metrics_markdown` in the layout of the papers, whose rows come first, with their sources; other tasks follow."""
    rows, sources, tasks = dict[str, dict[str, float]](), dict[str, str](), dict[str, None]()
    for name, task, percent, source in published_metrics(benchmark).iter_rows():
        rows.setdefault(name, {})[task] = percent / 100
        sources[name], tasks[task] = f"{name}: {source}\n", None
    others = dict.fromkeys(task for row in results.values() for task in row if task not in tasks)
    tables = [metrics_markdown({**rows, **results}, tasks=list(tasks)) + "".join(sources.values())] if tasks else []
    return "\n".join([*tables, *([metrics_markdown(results, tasks=list(others))] if others else [])])
