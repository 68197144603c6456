"""What is shown of a step that has run."""

from typing import Any

import pytest

from hapvr.commands.step_rows import lines_of, row_of
from hapvr.steps.project import Project
from hapvr.steps.video_manifest import make_manifest

SCORES = {"own-test": {"untrained baseline": {"DSVR": 0.5}, "trained model": {"DSVR": 0.75}}}


def shown(step: str, **fields: Any) -> list[str]:
    return lines_of({"step": step, "shard": "", "was_finished": False} | fields)


def test_scores_are_shown_as_a_table() -> None:
    """A row for each network, in percent, below the benchmark's name."""
    assert shown("benchmark_scores", scores=SCORES) == [
        "benchmark_scores: own-test",
        "own-test:",
        "|  | DSVR |",
        "| --- | --- |",
        "| untrained baseline | 50.00 |",
        "| trained model | 75.00 |",
    ]


@pytest.mark.parametrize(
    ("step", "fields", "text"),
    [
        pytest.param(
            "benchmark_scores",
            {"scores": {}},
            "evaluation.benchmarks names no benchmark",
            id="no benchmarks",
        ),
        pytest.param(
            "registered_model",
            {"name": "hapvr", "version": 2, "decision": "is champion"},
            "models:/hapvr/2 is champion",
            id="a version",
        ),
        pytest.param(
            "search_index",
            {"videos": 1, "frames": 10, "recall": 1.0, "passed": True},
            "1 video, 10 frames, recall 1.000",
            id="an index",
        ),
        pytest.param(
            "search_index",
            {"videos": 2, "frames": 10, "recall": 0.5, "passed": False},
            "2 videos, 10 frames, recall 0.500: too low, so the index before it answers",
            id="an index that does not pass",
        ),
    ],
)
def test_a_step_without_shards_says_what_it_made(
    step: str, fields: dict[str, Any], text: str
) -> None:
    assert shown(step, **fields) == [f"{step}: {text}"]


def test_the_manifest_says_what_is_new(small_project: Project) -> None:
    row = row_of("video_manifest", "", make_manifest(small_project))
    (line,) = lines_of(row)
    assert line == f"video_manifest: {row['num_shards']} shards, 0 of them new (was finished)"
