"""Plots of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure


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
