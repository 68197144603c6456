"""Tables and figures of results: what they show, and that they leave no global state."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from PIL import Image

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.definitions.fivr import fivr_tasks
from hapvr.benchmark.distributions import relevant_and_irrelevant
from hapvr.benchmark.protocol import evaluate
from hapvr.benchmark.report import (
    metrics_markdown,
    per_query_figure,
    pr_curve_figure,
    similarity_distribution_figure,
    similarity_matrix_figure,
)
from hapvr.seeding import numpy_rng


@pytest.fixture
def definition():
    labels = [("q0", "r0", "ND"), ("q0", "r1", "IS"), ("q1", "r2", "DS")]
    schema = {"query_id": pl.String, "reference_id": pl.String, "label": pl.String}
    return BenchmarkDefinition(
        name="small",
        kind="clips",
        queries=("q0", "q1"),
        database=("r0", "r1", "r2", "r3"),
        labels=pl.DataFrame(labels, schema=schema, orient="row"),
        tasks=fivr_tasks({"ND", "DS", "IS"}),
    )


def similarities(seed):
    rng = numpy_rng(seed, "report")
    return pl.DataFrame(
        [(f"q{q}", f"r{r}", float(rng.random())) for q in range(2) for r in range(4)],
        schema={"query_id": pl.String, "reference_id": pl.String, "similarity": pl.Float32},
        orient="row",
    )


def test_figures_show_what_was_measured(definition):
    """A line per result, a point per query, both classes of pairs, and frames along a heat map; none leaves global state."""
    first, second = (evaluate(definition, similarities(seed)) for seed in (1, 2))
    relevant, irrelevant = relevant_and_irrelevant(definition, similarities(1), task="DSVR")
    assert (len(relevant), len(irrelevant)) == (2, 6)
    curves = pr_curve_figure({"baseline": first, "trained": second}, task="DSVD")
    scatter = per_query_figure(first, second, task="DSVR", names=("baseline", "trained"))
    assert len(scatter.axes[0].collections[0].get_offsets()) == 2
    densities = similarity_distribution_figure(relevant, irrelevant)
    legends = [[text.get_text() for text in one.axes[0].get_legend().get_texts()] for one in (curves, densities)]
    assert [text.split(" ")[0] for text in legends[0]] == ["baseline", "trained"]
    assert legends[1] == ["irrelevant (6 pairs)", "relevant (2 pairs)"]
    strip = [Image.new("RGB", (20, 30), color) for color in ("red", "green", "blue")]
    heat_map = similarity_matrix_figure(
        np.eye(4, 6), query_frames=strip, reference_frames=strip[:2], query="a $\\frac$.mp4"
    )
    assert [axes.images[0].get_array().shape for axes in heat_map.axes[2:]] == [(270, 160, 3), (90, 320, 3)]
    for figure in (curves, scatter, densities, heat_map, similarity_matrix_figure(np.eye(4, 6))):
        figure.canvas.draw()


def test_metrics_markdown_by_hand():
    """Percentages with two digits, a dash where a row lacks a task."""
    table = metrics_markdown({"one": {"DSVR": 0.5, "ISVR": 0.12345}, "two": {"DSVR": 1.0}})
    assert table.splitlines() == [
        "| | DSVR | ISVR |",
        "| --- | ---: | ---: |",
        "| one | 50.00 | 12.35 |",
        "| two | 100.00 | - |",
    ]
