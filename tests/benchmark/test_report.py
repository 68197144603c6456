"""Tables of results."""

from __future__ import annotations

import pytest

from hapvr.benchmark.definition import TASKS
from hapvr.benchmark.definitions.catalog import CATALOG
from hapvr.benchmark.report import PUBLISHED, metrics_markdown, published_markdown, published_sources


def test_metrics_markdown_by_hand():
    """Percentages with two digits, a dash where a row lacks a task."""
    table = metrics_markdown({"one": {"DSVR": 0.5, "ISVR": 0.12345}, "two": {"DSVR": 1.0}})
    assert table.splitlines() == [
        "| | DSVR | ISVR |",
        "| --- | ---: | ---: |",
        "| one | 50.00 | 12.35 |",
        "| two | 100.00 | - |",
    ]


@pytest.mark.parametrize("benchmark", PUBLISHED)
def test_published_rows_stand_beside_ours_with_their_sources(benchmark: str) -> None:
    """Columns are tasks that we measure, no row is longer, and each has one source, which the text names."""
    tasks, rows = PUBLISHED[benchmark]
    assert benchmark in CATALOG
    assert set(tasks) <= {task.name for task in TASKS[benchmark.split("-")[0]]}
    assert all(len(row) <= len(tasks) for row in rows.values())
    sources = published_sources(benchmark)
    assert all(sum(name.startswith(begin) for begin in sources) == 1 for name in rows)
    table, *others = published_markdown(benchmark, {"ours": {tasks[0]: 0.5, "other": 0.25}}).split("\n\n")
    assert "| ours | 50.00 |" in table
    assert table.splitlines()[-len(sources) :] == [f"{begin}: {paper}" for begin, paper in sources.items()]
    assert others == ["| | other |\n| --- | ---: |\n| ours | 25.00 |\n"]
