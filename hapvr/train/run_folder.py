"""Files in the folder of a training: the record of the process that prepared it, and checkpoints.

A checkpoint holds plain tensors and numbers. It starts with the SHA-256 of the rest, which is torch's archive; torch's own
reader does not notice flipped bits.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel

from hapvr.errors import DamagedError, DataError
from hapvr.files import read_json_as, write_atomic

CONFIG_NAME = "config.yaml"
RUN_NAME = "run.json"
FAILURE_NAME = "failure.txt"
CHECKPOINTS = "checkpoints"
NETWORK = "network"
DIGEST_BYTES = 32
NUM_KEPT = 2
"""Checkpoints; the one before the last replaces a damaged one."""


class _Record(BaseModel, extra="allow"):
    """What every RUN_NAME has. weights: of the frozen networks; not all trainings have a teacher."""

    mlflow_run_id: str
    shards: list[str]
    data_digests: dict[str, str]
    weights: dict[Literal["backbone", "teacher"], dict[str, str]]
    environment: dict[str, str]
    labelled_pairs: dict[str, Any] = {}


def read_record(folder: Path) -> dict[str, Any]:
    """What `prepare_training` wrote down of the run in a folder. Raises DamagedError if it cannot be read."""
    return read_json_as(folder / RUN_NAME, _Record, hint="train again, with another run key").model_dump()


def save_checkpoint(folder: Path, values: dict[str, Any], *, step: int) -> Path:
    """Write `step-XXXXXXXX.pt`, `step` being the next step to do, and drop all but the last NUM_KEPT."""
    buffer = io.BytesIO()
    torch.save(values, buffer)
    data = buffer.getvalue()
    for part in folder.glob("step-*.part"):  # of a process that was killed while it wrote
        part.unlink()
    path = folder / f"step-{step:08d}.pt"
    with write_atomic(path) as part:
        part.write_bytes(hashlib.sha256(data).digest() + data)
    for old in list_checkpoints(folder)[:-NUM_KEPT]:
        old.unlink()
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(folder.glob("step-????????.pt"))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What `save_checkpoint` wrote, on the CPU. Raises DamagedError."""
    data = path.read_bytes()
    archive = data[DIGEST_BYTES:]
    if hashlib.sha256(archive).digest() != data[:DIGEST_BYTES]:
        raise DamagedError(f"checkpoint: {path} is damaged: its {len(data)} bytes are not those that were written")
    values: dict[str, Any] = torch.load(io.BytesIO(archive), map_location="cpu", weights_only=True)
    return values


def newest_checkpoint(folder: Path) -> tuple[Path | None, dict[str, Any], list[str]]:
    """The newest checkpoint that can be read, None without any, its content, and the faults of newer ones.

    Raises DataError if all are damaged.
    """
    skipped: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            return path, read_checkpoint(path), skipped
        except DamagedError as error:
            skipped.append(str(error))
    if skipped:
        raise DataError(
            f"{skipped[0]}; so are all {len(skipped)} in {folder}; delete that folder to train from the beginning"
        )
    return None, {}, []
