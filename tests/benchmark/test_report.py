"""Tables of results."""

from __future__ import annotations

from hapvr.benchmark.report import metrics_markdown


def test_metrics_markdown_by_hand():
    """Percentages with two digits, a dash where a row lacks a task."""
    table = metrics_markdown({"one": {"DSVR": 0.5, "ISVR": 0.12345}, "two": {"DSVR": 1.0}})
    assert table.splitlines() == [
        "| | DSVR | ISVR |",
        "| --- | ---: | ---: |",
        "| one | 50.00 | 12.35 |",
        "| two | 100.00 | - |",
    ]
