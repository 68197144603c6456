"""Files in the folder of a training: the record of the process that prepared it, history, result
and checkpoints; and its loggers.

A checkpoint holds plain tensors and numbers. It starts with the SHA-256 of the rest, which is
torch's archive; torch's own reader does not notice flipped bits.
"""

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from filelock import FileLock, Timeout
from pydantic import BaseModel, TypeAdapter

from hapvr.errors import DamagedError, DataError
from hapvr.files import (
    PART_SUFFIX,
    read_bytes,
    read_json_as,
    read_json_lines,
    write_atomic,
    write_text,
)
from hapvr.train.run_names import (
    CHECKPOINTS as CHECKPOINTS,
    FAILURE_NAME as FAILURE_NAME,
    NETWORK as NETWORK,
    RESULT_NAME as RESULT_NAME,
    RUN_NAME as RUN_NAME,
)

CONFIG_NAME = "config.yaml"
HISTORY_NAME = "history.jsonl"
NUM_KEPT = 2
"""Checkpoints; the one before the last replaces a damaged one."""


class _Record(BaseModel, extra="allow"):
    """What every RUN_NAME has. copies: see `hapvr.steps.training.copies_of`. weights: of the frozen
    networks."""

    mlflow_run_id: str
    shards: list[str]
    copies: dict[str, str]
    data_digests: dict[str, str]
    weights: dict[Literal["backbone", "teacher"], dict[str, str]]
    environment: dict[str, str]


def read_record(folder: Path) -> dict[str, Any]:
    """What `prepare_training` wrote down of the run in a folder. Raises DamagedError if it cannot
    be read."""
    return read_json_as(
        folder / RUN_NAME, _Record, hint="train again, with another run key"
    ).model_dump()


def save_checkpoint(folder: Path, values: dict[str, Any], *, step: int) -> None:
    """Write `step-XXXXXXXX.pt`, `step` being the next step to do, and drop all but the last
    NUM_KEPT."""
    buffer = io.BytesIO()
    torch.save(values, buffer)
    data = buffer.getvalue()
    for part in folder.glob(f"step-*{PART_SUFFIX}"):  # of a process that was killed while it wrote
        part.unlink()
    with write_atomic(folder / f"step-{step:08d}.pt") as part:
        part.write_bytes(hashlib.sha256(data).digest() + data)
    for old in list_checkpoints(folder)[:-NUM_KEPT]:
        old.unlink()


def list_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(folder.glob("step-????????.pt"))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What `save_checkpoint` wrote, on the CPU. Raises DamagedError."""
    data = read_bytes(path)
    archive = data[32:]
    if hashlib.sha256(archive).digest() != data[:32]:
        raise DamagedError(
            f"checkpoint: {path} is damaged: its {len(data)} bytes are not those that were written"
        )

    values: dict[str, Any] = torch.load(io.BytesIO(archive), map_location="cpu", weights_only=True)
    return values


@dataclass(frozen=True)
class TrainingResult:
    """steps: done in all; first_step: 0, or where a resumed run went on; best_step, best_value: of
    validation, or -1 and 0."""

    steps: int
    first_step: int
    best_step: int
    best_value: float
    num_videos: int
    seconds: float
    weights_sha256: str


class Logger(Protocol):
    """Gets the metrics of a step (losses unweighted, learning rate, validation) and messages; drops
    what no subclass overrides."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        return

    def message(self, text: str) -> None:
        return


class History(Logger):
    """A logger that writes metrics as JSON lines. Lines after the checkpoint that training
    continues from are removed."""

    def __init__(self, folder: Path, *, first_step: int) -> None:
        self._path = folder / HISTORY_NAME
        kept = [line for line in read_history(folder) if line["step"] < first_step]
        write_text(self._path, "".join(json.dumps(line) + "\n" for line in kept))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")


def read_history(folder: Path) -> list[dict[str, float]]:
    """All logged lines in order, each with `step` and the metrics of that step; empty if nothing
    was logged."""
    return read_json_lines(folder / HISTORY_NAME, TypeAdapter(dict[str, int | float]))


@contextmanager
def writing_alone(folder: Path) -> Iterator[None]:
    """Hold the lock on the folder of a run. Raises DataError where another process holds it."""
    try:
        with FileLock(folder / "training.lock", timeout=30):
            yield
    except Timeout:
        raise DataError(
            f"training: another process is training in {folder}; wait for it or stop it (the "
            "lock is training.lock there)"
        ) from None
