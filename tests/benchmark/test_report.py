"""Tables of results."""

import pytest

from hapvr.benchmark.definition import TASKS
from hapvr.benchmark.report import metrics_markdown, published_markdown, published_metrics


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
    known = published_metrics(benchmark)
    assert set(known["task"]) <= {task.name for task in TASKS[benchmark.split("-")[0]]}
    table, other = published_markdown(
        benchmark, {"ours": {known["task"][0]: 0.5, "other": 0.25}}
    ).split("\n\n")
    assert "| ours | 50.00 |" in table
    assert f"\n{row}: {known.filter(row=row)['source'][0]}" in table
    assert other == "|  | other |\n| --- | --- |\n| ours | 25.00 |\n"
