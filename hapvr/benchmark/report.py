"""Figures and tables of trainings and benchmark results. Figures are matplotlib `Figure` objects without global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hapvr.benchmark.protocol import EvaluationResult
from hapvr.tables import markdown_table

BLUE, ORANGE, GREY = "#1f5fa8", "#d9761a", "#8a8a8a"
FIVR_TASKS = ("DSVR", "CSVR", "ISVR", "DSVD", "CSVD", "ISVD")
PUBLISHED: dict[str, tuple[tuple[str, ...], dict[str, tuple[float, ...]]]] = {
    "fivr-200k": (
        FIVR_TASKS,
        {
            "S2VS (VCDB)": (92.53, 87.73, 74.51, 86.12, 77.41, 63.26),
            "S2VS (DnS-100K)": (92.5, 87.8, 73.9, 89.3, 80.2, 64.9),
            "HAP-VR": (92.83, 88.21, 74.72, 88.41, 79.85, 64.79),
        },
    ),
    "evve": (
        ("EVVE_mAP", "EVVE_uAP"),
        {"S2VS (VCDB)": (67.17, 80.72), "S2VS (DnS-100K)": (65.9, 78.9), "HAP-VR": (69.15, 82.88)},
    ),
    "svd": (("mAP", "uAP"), {"S2VS (VCDB)": (88.40, 65.04), "HAP-VR": (89.00, 67.87)}),
}
"""Numbers of the papers, in percent: columns, then rows. HAP-VR (MM'24) and S2VS (CVPRW'23)."""


def pr_curve_figure(results: Mapping[str, EvaluationResult], *, task: str) -> Figure:
    """Interpolated precision against recall of one task, a line per result. results: row name -> result."""
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    for name, result in results.items():
        curve = result.curves.filter(pl.col("task") == task)
        axes.plot(curve["recall"], curve["precision"], label=f"{name} ({100 * result.metrics[task]:.2f})")
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02), title=task)
    axes.legend(loc="lower left", fontsize="small")
    axes.grid(alpha=0.3)
    return figure


def similarity_distribution_figure(
    relevant: NDArray[np.floating[Any]], irrelevant: NDArray[np.floating[Any]], *, title: str = ""
) -> Figure:
    """Densities of the similarities of relevant and irrelevant pairs (HAP-VR Fig. 5). Both [K], K >= 1."""
    low, high = (float(f([f(relevant), f(irrelevant)])) for f in (np.min, np.max))
    bins = np.linspace(low, max(high, low + 1e-6), 61)
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.subplots()
    for values, label, color in ((irrelevant, "irrelevant", ORANGE), (relevant, "relevant", BLUE)):
        axes.hist(
            values, bins=bins.tolist(), density=True, alpha=0.55, color=color, label=f"{label} ({len(values):,} pairs)"
        )
    axes.set(xlabel="video similarity", ylabel="density", title=title)
    axes.legend(fontsize="small")
    return figure


def history_figure(history: Sequence[Mapping[str, float]], prefix: str, *, title: str) -> Figure:
    """Every metric whose name begins with the prefix, such as "loss/" or "validation/", over steps."""
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    names = dict.fromkeys(name for line in history for name in line if name.startswith(prefix))
    for name in names:
        points = [(line["step"] + 1, line[name]) for line in history if name in line]
        axes.plot(*zip(*points, strict=True), label=name.removeprefix(prefix), linewidth=1.2)
    axes.set(xlabel="step", title=title)
    if names:
        axes.legend(fontsize="x-small", ncols=2)
    axes.grid(alpha=0.3)
    return figure


def metrics_markdown(results: Mapping[str, Mapping[str, float]], *, tasks: Sequence[str] | None = None) -> str:
    """Markdown table of metrics in percent. results: row name -> {task: value in [0, 1]}; "-" marks missing values.

    tasks: the columns; None for every task that some row has.
    """
    tasks = list(dict.fromkeys(task for row in results.values() for task in row)) if tasks is None else tasks
    rows = [
        [name, *(f"{100 * row[task]:.2f}" if task in row else "-" for task in tasks)] for name, row in results.items()
    ]
    return markdown_table(["", *tasks], rows) + "\n"


def published_markdown(benchmark: str, results: Mapping[str, Mapping[str, float]]) -> str:
    """`metrics_markdown` in the layout of the papers, whose rows come first if there are any; other tasks follow."""
    published = PUBLISHED.get(benchmark)
    if published is None:
        return metrics_markdown(results)
    tasks, rows = published
    known = {name: {task: value / 100 for task, value in zip(tasks, row, strict=True)} for name, row in rows.items()}
    others = list(dict.fromkeys(task for row in results.values() for task in row if task not in tasks))
    text = metrics_markdown({**known, **results}, tasks=tasks)
    return f"{text}\n{metrics_markdown(results, tasks=others)}" if others else text
