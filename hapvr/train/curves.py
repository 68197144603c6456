"""Plots of a training's history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure


def loss_figure(history: Sequence[Mapping[str, float]]) -> Figure:
    """Every logged loss term, unweighted, over steps."""
    return _lines(history, "loss/", title="loss terms (unweighted)")


def validation_figure(history: Sequence[Mapping[str, float]]) -> Figure:
    """Every validation metric over steps."""
    return _lines(history, "validation/", title="validation")


def _lines(history: Sequence[Mapping[str, float]], prefix: str, *, title: str) -> Figure:
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
