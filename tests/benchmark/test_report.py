"""Tables of results."""

import polars as pl
import pytest

from hapvr.benchmark.definition import load_definition
from hapvr.benchmark.protocol import evaluate
from hapvr.benchmark.report import (
    events_markdown,
    metrics_markdown,
    pool_note,
    published_markdown,
    published_metrics,
)
from hapvr.benchmark.tasks import TASKS


def test_metrics_markdown_by_hand():
    """Percentages with two digits, a dash where a row lacks a task."""
    table = metrics_markdown({"one": {"DSVR": 0.5, "ISVR": 0.12345}, "two": {"DSVR": 1.0}})
    assert table.splitlines() == [
        "|  | DSVR | ISVR |",
        "| --- | --- | --- |",
        "| one | 50.00 | 12.35 |",
        "| two | 100.00 | - |",
    ]


@pytest.mark.parametrize(
    ("benchmark", "row"), [("fivr-5k", "TCA_f"), ("evve", "HAP-VR"), ("cc_web_video", "ViSiL_v")]
)
def test_published_rows_stand_beside_ours_with_their_sources(benchmark: str, row: str) -> None:
    """Their columns are tasks that we measure; ours that they lack follow in a table of their
    own."""
    figures = published_metrics(benchmark)
    assert set(figures["task"]) <= {task.name for task in TASKS[benchmark.split("-")[0]]}
    table, extra_table = published_markdown(
        benchmark, {"ours": {figures["task"][0]: 0.5, "other": 0.25}}
    ).split("\n\n")
    assert "| ours | 50.00 |" in table
    row_figures = figures.filter(row=row)
    star = " *" if row_figures["measured_on"][0] else ""
    assert f"\n{row}{star}: {row_figures['source'][0]}" in table
    assert extra_table == "|  | other |\n| --- | --- |\n| ours | 25.00 |\n"


@pytest.mark.parametrize(
    ("benchmark", "row", "measured_on"),
    [
        ("svd", "HAP-VR", "the pool with 526,787 unlabelled videos"),
        ("evve", "VVS_3840", "70.5 % of the set"),
        ("evve", "S2VS (DnS-100K)", "504 of the 620 queries"),
        ("fivr-200k", "S2VS (DnS-100K), hard", "4,828 easy videos"),
        ("cc_web_video", "TCA_c", "13,129 videos"),
    ],
)
def test_numbers_of_other_videos_are_marked(benchmark: str, row: str, measured_on: str) -> None:
    """A star, and what they were measured on."""
    task = published_metrics(benchmark)["task"][0]
    table = published_markdown(benchmark, {"ours": {task: 0.5}})
    assert f"| {row} * |" in table
    line = next(line for line in table.splitlines() if line.startswith(f"{row} *: "))
    assert "not comparable as it is" in line
    assert measured_on in line


def test_a_method_without_published_numbers_says_so() -> None:
    table = published_markdown("fivr-5k", {"ours": {"DSVR": 0.5}})
    assert "| S2VS | - | - | - | - | - | - |" in table
    assert "\nS2VS: not published;" in table
    assert "| HAP-VR, all modules | 89.75 | 88.59 | 80.72 | 81.56 | 78.32 | 66.87 |" in table


@pytest.mark.parametrize("benchmark", ["svd-unlabelled", "vcdb", "vcdb-distractors"])
def test_numbers_of_the_papers_pool_stand_without_a_mark(benchmark: str) -> None:
    figures = published_metrics(benchmark)
    assert len(figures)
    assert not any(figures["measured_on"])


def evve_scores(queries: int, references: int) -> pl.DataFrame:
    """One similarity for each pair of the first queries and the first database videos of EVVE."""
    definition = load_definition("evve")
    query = pl.DataFrame({"query_id": definition.queries[:queries]})
    reference = pl.DataFrame({"reference_id": definition.database[:references]})
    pairs = query.join(reference, how="cross")
    return pairs.with_columns(similarity=pl.int_range(pl.len()).cast(pl.Float64))


def test_a_pool_that_is_not_whole_is_noted() -> None:
    """How many queries and database videos have scores; nothing where all have."""
    definition = load_definition("evve")
    part = evaluate(definition, evve_scores(504, 1906), policy="official")
    assert pool_note(definition, part.availability) == (
        "504 of 620 queries have scores; 1,906 of 2,373 database videos have scores"
    )
    whole = {**part.availability, "num_queries_scored": 620, "num_references_scored": 2373}
    assert pool_note(definition, whole) == ""


def test_the_mean_of_the_events_ends_their_table() -> None:
    """Each event weighs the same in it; the metric itself is the mean of the queries."""
    result = evaluate(load_definition("evve"), evve_scores(620, 2373), policy="official")
    rows = events_markdown({"ours": result}).splitlines()
    by_event = next(task.by_event for task in result.tasks if task.by_event)
    assert len(by_event) == 13
    assert rows[-1] == f"| mean of events | {100 * sum(by_event.values()) / 13:.2f} |"
