"""How a training run reports: loggers, and the history file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, TypeAdapter
from torch import Tensor

from hapvr.files import read_json_lines, write_atomic

HISTORY_NAME = "history.jsonl"
RESULT_NAME = "result.json"
"""Written last, when a training has come to its end."""


@dataclass(frozen=True)
class TrainingResult:
    """steps: done in all; first_step: 0, or where a resumed run went on; best_step and best_value: of validation, -1 and
    0 without one. wait_rate: part of the time in which the loop waited for data; clips_per_s: of this process.
    """

    steps: int
    first_step: int
    best_step: int
    best_value: float
    num_videos: int
    seconds: float
    wait_rate: float
    clips_per_s: float
    weights_sha256: str


@dataclass(frozen=True)
class BatchReport:
    """A batch as the network saw it. similarity: [B, B] in [-1, 1]; labels: int8 [B, B]; of each clip its video and view."""

    similarity: Tensor
    labels: Tensor
    video_ids: tuple[str, ...]
    view_index: Tensor


class Logger(Protocol):
    """Gets the metrics of a step (losses unweighted, learning rate, validation), batches to look at, and messages; what a
    subclass does not override is dropped."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        return

    def batch(self, step: int, report: BatchReport) -> None:
        return

    def message(self, text: str) -> None:
        return


class _Line(BaseModel, extra="allow"):
    """A line of HISTORY_NAME: a step and its metrics."""

    __pydantic_extra__: dict[str, float]
    step: int


class History(Logger):
    """A logger that writes metrics as JSON lines. Lines after the checkpoint that training continues from are removed."""

    def __init__(self, folder: Path, *, first_step: int) -> None:
        self._path = folder / HISTORY_NAME
        kept = [line for line in read_history(folder) if line["step"] < first_step]
        with write_atomic(self._path) as part:
            part.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")


def read_history(folder: Path) -> list[dict[str, float]]:
    """All logged lines in order, each with `step` and the metrics of that step; empty if nothing was logged."""
    return [line.model_dump() for line in read_json_lines(folder / HISTORY_NAME, TypeAdapter(_Line))]
