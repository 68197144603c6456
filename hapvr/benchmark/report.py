"""Figures and tables of benchmark results. Figures are matplotlib `Figure` objects without global
state."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.protocol import RECALLS, EvaluationResult
from hapvr.tables import markdown_table

BLUE = "#1f5fa8"
ORANGE = "#d9761a"
GREY = "#8a8a8a"


def pr_curve_figure(results: Mapping[str, EvaluationResult], *, task: str) -> Figure:
    """Interpolated precision against recall of one task, a line per result. results: row name ->
    result."""
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    for name, result in results.items():
        axes.plot(RECALLS, result.curves[task], label=f"{name} ({100 * result.metrics[task]:.2f})")
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02), title=task)
    axes.legend(loc="lower left", fontsize="small")
    axes.grid(alpha=0.3)
    return figure


def similarity_distribution_figure(
    relevant: NDArray[np.floating[Any]], irrelevant: NDArray[np.floating[Any]], *, title: str = ""
) -> Figure:
    """Densities of the similarities of relevant and irrelevant pairs (HAP-VR Fig. 5). Both [K], K
    >= 1."""
    low = float(min(relevant.min(), irrelevant.min()))
    high = float(max(relevant.max(), irrelevant.max()))
    bins = np.linspace(low, max(high, low + 1e-6), 61)
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.subplots()
    for values, name, color in ((irrelevant, "irrelevant", ORANGE), (relevant, "relevant", BLUE)):
        label = f"{name} ({len(values):,} pairs)"
        axes.hist(values, bins=bins.tolist(), density=True, alpha=0.55, color=color, label=label)

    axes.set(xlabel="video similarity", ylabel="density", title=title)
    axes.legend(fontsize="small")
    return figure


def metrics_markdown(
    results: Mapping[str, Mapping[str, float]], *, tasks: Sequence[str] | None = None
) -> str:
    """Markdown table of metrics in percent; "-" marks missing values.

    results: row name -> {task: value in [0, 1]}.
    tasks: the columns; None for every task that some row has."""
    if tasks is None:
        tasks = list(dict.fromkeys(task for row in results.values() for task in row))
    rows = []
    for name, row in results.items():
        rows.append([name] + [_percent(row.get(task)) for task in tasks])
    return markdown_table(["", *tasks], rows) + "\n"


def _percent(value: float | None) -> str:
    """A value in [0, 1] in percent, "-" for None."""
    return "-" if value is None else f"{100 * value:.2f}"


def published_metrics(benchmark: str) -> pl.DataFrame:
    """The numbers that papers report, under the policy `official`: row, task, percent, source,
    measured_on (on what, if that is not the benchmark as defined here; else ""). No rows if no
    paper reports any."""
    return _published(benchmark).drop_nulls("task")


def _published(benchmark: str) -> pl.DataFrame:
    """As `published_metrics`, plus a row without a task for each method whose paper has no
    number."""
    table = Path(__file__).parent / "data" / "published" / "metrics.csv"
    rows = pl.read_csv(table.read_bytes()).with_columns(pl.col("measured_on").fill_null(""))
    return rows.filter(pl.col("benchmark") == benchmark).drop("benchmark")


def published_markdown(benchmark: str, results: Mapping[str, Mapping[str, float]]) -> str:
    """`metrics_markdown` in the layout of the papers, whose rows come first, with their sources;
    other tasks follow. A star marks numbers of other videos than the benchmark's."""
    rows: dict[str, dict[str, float]] = {}
    sources: dict[str, str] = {}
    tasks: dict[str, None] = {}
    for name, task, percent, source, measured_on in _published(benchmark).iter_rows():
        title = f"{name} *" if measured_on else name
        elsewhere = f"; not comparable as it is, measured on {measured_on}" if measured_on else ""
        row = rows.setdefault(title, {})
        sources[title] = f"{title}: {source}{elsewhere}\n"
        if task is not None:
            row[task] = percent / 100
            tasks[task] = None

    others = dict.fromkeys(task for row in results.values() for task in row if task not in tasks)
    tables = []
    if tasks:
        published = metrics_markdown({**rows, **results}, tasks=list(tasks))
        tables.append(published + "".join(sources.values()))

    if others:
        tables.append(metrics_markdown(results, tasks=list(others)))
    return "\n".join(tables)


def pool_note(definition: BenchmarkDefinition, availability: Mapping[str, int]) -> str:
    """How the videos of a result differ from those of the papers; "" if they do not.

    definition: one made from the authors' files says what these lack.
    availability: of the result
    """
    parts = []
    for what, name in (("queries", "queries"), ("database videos", "references")):
        num = availability[f"num_{name}"]
        num_scored = availability[f"num_{name}_scored"]
        if num_scored < num:
            parts.append(f"{num_scored:,} of {num:,} {what} have scores")

    if note := definition.provenance.get("note"):
        parts.append(str(note))
    return "; ".join(parts)


def events_markdown(results: Mapping[str, EvaluationResult]) -> str:
    """Markdown table of mean average precision in percent, a row per event, a column per result,
    and the mean over events, in which each counts alike whatever its number of queries; "" if no
    task has events."""
    columns = {
        f"{name}, {task.task}" if len(results) > 1 else task.task: task.by_event
        for name, result in results.items()
        for task in result.tasks
        if task.by_event
    }
    if not columns:
        return ""
    rows = []
    for event in sorted({event for values in columns.values() for event in values}):
        rows.append([event] + [_percent(values.get(event)) for values in columns.values()])

    means = [fmean(values.values()) for values in columns.values()]
    rows.append(["mean of events", *map(_percent, means)])
    return markdown_table(["event", *columns], rows) + "\n"
