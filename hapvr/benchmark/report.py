"""Figures and tables of trainings and benchmark results. Figures are matplotlib `Figure` objects without global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hapvr.benchmark.protocol import EvaluationResult

BLUE, ORANGE, GREY = "#1f5fa8", "#d9761a", "#8a8a8a"
FIVR_TASKS = ("DSVR", "CSVR", "ISVR", "DSVD", "CSVD", "ISVD")
PUBLISHED: dict[str, tuple[tuple[str, ...], dict[str, tuple[float, ...]]]] = {
    "fivr-5k": (
        FIVR_TASKS[:3],
        {"TCA_f": (84.4, 83.4, 76.3), "VVS_500": (63.6, 64.8, 62.0), "VVS_3840": (74.4, 75.2, 70.5)},
    ),
    "fivr-200k": (
        FIVR_TASKS,
        {
            "TCA_c": (57.0, 55.3, 47.3),
            "VVS_3840": (71.1, 68.9, 59.0),
            "TCA_f": (87.7, 83.0, 70.3),
            "ViSiL_v": (89.2, 84.1, 70.2),
            "S2VS (VCDB)": (92.53, 87.73, 74.51, 86.12, 77.41, 63.26),
            "S2VS (DnS-100K)": (92.5, 87.8, 73.9, 89.3, 80.2, 64.9),
            "HAP-VR": (92.83, 88.21, 74.72, 88.41, 79.85, 64.79),
        },
    ),
    "evve": (
        ("EVVE_mAP", "EVVE_uAP"),
        {
            "TCA_f": (60.3,),
            "ViSiL_v": (62.3,),
            "VVS_3840": (64.4,),
            "S2VS (VCDB)": (67.17, 80.72),
            "S2VS (DnS-100K)": (65.9, 78.9),
            "HAP-VR": (69.15, 82.88),
        },
    ),
    "svd": (("mAP", "uAP"), {"S2VS (VCDB)": (88.40, 65.04), "HAP-VR": (89.00, 67.87)}),
    "cc_web_video": (
        ("mAP", "mAP_star", "mAP_c", "mAP_c_star"),
        {
            "TCA_c": (97.3, 94.7, 98.3, 96.5),
            "VVS_3840": (97.5, 95.5, 98.4, 97.3),
            "TCA_f": (98.3, 96.9, 99.4, 99.0),
            "ViSiL_v": (98.5, 97.1, 99.6, 99.3),
        },
    ),
}
"""Numbers of the papers, in percent: columns, then rows, which may end early."""

SOURCES = {
    "HAP-VR": "Liu et al., ACM MM 2024 (arXiv 2407.15566)",
    "S2VS (VCDB)": "as Liu et al., ACM MM 2024, report it",
    "S2VS (DnS-100K)": "Kordopatis-Zilos et al., CVPR Workshops 2023 (arXiv 2304.03378)",
    "ViSiL_v": "Kordopatis-Zilos et al., ICCV 2019, as Shao et al. report it",
    "TCA": "Shao et al., WACV 2021",
    "VVS": "Jo et al., AAAI 2024 (arXiv 2303.08906)",
}
"""Where the rows of PUBLISHED that begin so come from. NOTICE has the titles."""


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
    lines = ["| | " + " | ".join(tasks) + " |", "| --- |" + " ---: |" * len(tasks)]
    for name, row in results.items():
        cells = [f"{100 * row[task]:.2f}" if task in row else "-" for task in tasks]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def published_rows(benchmark: str) -> dict[str, dict[str, float]]:
    """What papers report for a benchmark, under the policy `official`: row name -> {task: value in [0, 1]}; may be empty."""
    tasks, rows = PUBLISHED.get(benchmark, ((), {}))
    return {name: {task: value / 100 for task, value in zip(tasks, row, strict=False)} for name, row in rows.items()}


def published_sources(benchmark: str) -> dict[str, str]:
    """The papers that `published_rows` are from, by how the names of their rows begin."""
    names = tuple(published_rows(benchmark))
    return {begin: paper for begin, paper in SOURCES.items() if any(name.startswith(begin) for name in names)}


def published_markdown(benchmark: str, results: Mapping[str, Mapping[str, float]]) -> str:
    """`metrics_markdown` in the layout of the papers, whose rows come first, with their sources; other tasks follow."""
    known = published_rows(benchmark)
    if not known:
        return metrics_markdown(results)
    tasks = PUBLISHED[benchmark][0]
    others = list(dict.fromkeys(task for row in results.values() for task in row if task not in tasks))
    text = metrics_markdown({**known, **results}, tasks=tasks)
    text += "".join(f"{begin}: {paper}\n" for begin, paper in published_sources(benchmark).items())
    return f"{text}\n{metrics_markdown(results, tasks=others)}" if others else text
