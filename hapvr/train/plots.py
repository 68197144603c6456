"""Plots of a training: its history, the similarity matrix of a batch, and a table of the hardest negatives."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from hapvr.train.run_folder import BatchReport

NUM_HARDEST = 20


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


def similarity_figure(report: BatchReport) -> Figure:
    """A heat map of the video similarities of all pairs of clips. Positives are framed; views of a video are neighbours."""
    figure = Figure(figsize=(6, 5.2), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(report.similarity.numpy(), vmin=-1, vmax=1, cmap="viridis", interpolation="nearest")
    rows, columns = (report.labels > 0).nonzero(as_tuple=True)
    if len(report.labels) <= 64:  # more frames than that would hide the picture
        axes.scatter(
            columns.numpy(), rows.numpy(), marker="s", s=12, facecolors="none", edgecolors="white", linewidths=0.6
        )
    axes.set(xlabel="reference clip", ylabel="query clip", title="video similarity, positives framed")
    figure.colorbar(image, ax=axes, shrink=0.8)
    return figure


def hardest_negatives(report: BatchReport, *, count: int = NUM_HARDEST) -> str:
    """CSV of the `count` most similar pairs of clips that share no video, each pair once: similarity, videos, views."""
    similarity = report.similarity.masked_fill(report.labels >= 0, -math.inf)
    best = similarity.maximum(similarity.T).triu(1).masked_fill(report.labels.tril() != 0, -math.inf)
    order = best.flatten().argsort(descending=True, stable=True)[:count]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["similarity", "video", "view", "other_video", "other_view"])
    for position in order.tolist():
        row, column = divmod(position, len(best))
        if math.isfinite(float(best[row, column])):
            clips = [(report.video_ids[clip], int(report.view_index[clip])) for clip in (row, column)]
            writer.writerow([f"{float(best[row, column]):.4f}", *clips[0], *clips[1]])
    return text.getvalue()
