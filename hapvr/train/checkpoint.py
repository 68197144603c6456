"""Checkpoints of a running training: plain tensors and numbers, of which the last k are kept.

A file is written beside its name and then renamed. It starts with the SHA-256 of the rest, which is torch's archive;
torch's own reader does not notice flipped bits.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hapvr.errors import DataError
from hapvr.files import write_atomic
from hapvr.model.family import VideoNetwork
from hapvr.model.settings import family_of
from hapvr.provenance import Provenance
from hapvr.train.family import FamilyTraining

NAME = re.compile(r"^step-(\d{8})\.pt$")
DIGEST_BYTES = 32


@dataclass(frozen=True)
class Best:
    """The best validation so far. step: -1 if there was none; value: mean target metric; since: validations after it."""

    step: int = -1
    value: float = float("-inf")
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    since: int = 0


@dataclass
class TrainingState:
    """Everything that changes while training. ema: the moving average of the weights, or None; training: around the network."""

    network: VideoNetwork
    ema: VideoNetwork | None
    optimizer: Optimizer
    scheduler: LRScheduler
    best: Best
    training: FamilyTraining

    @property
    def result(self) -> VideoNetwork:
        """The network that is validated and kept."""
        return self.network if self.ema is None else self.ema


@dataclass(frozen=True)
class Resumed:
    """Where training continues. first_step: 0 without a checkpoint; skipped: the faults of newer checkpoints."""

    first_step: int
    skipped: tuple[str, ...]


def save_checkpoint(folder: Path, state: TrainingState, *, step: int, settings: Mapping[str, Any], keep: int) -> Path:
    """Write `step-XXXXXXXX.pt`, `step` being the next step to do, and drop all but the last `keep`.

    settings: what a run must share to go on from it. Raises DataError where there is no space.
    """
    values = {
        "step": step,
        "network": state.network.state_dict(),
        "average": None if state.ema is None else state.ema.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "scheduler": state.scheduler.state_dict(),
        "best": {
            "step": state.best.step,
            "value": state.best.value,
            "weights": dict(state.best.weights),
            "since": state.best.since,
        },
        "family": state.training.extra_state(),
        "settings": json.dumps(settings),
    }
    buffer = io.BytesIO()
    torch.save(values, buffer)
    path = folder / f"step-{step:08d}.pt"
    data = buffer.getvalue()
    _write(path, hashlib.sha256(data).digest() + data)
    for old in list_checkpoints(folder)[:-keep]:
        old.unlink()
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(path for path in folder.glob("step-*.pt") if NAME.match(path.name))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What `save_checkpoint` wrote, on the CPU. Raises DataError for a file that is damaged."""
    data = path.read_bytes()
    archive = data[DIGEST_BYTES:]
    if hashlib.sha256(archive).digest() != data[:DIGEST_BYTES]:
        raise DataError(f"checkpoint: {path} is damaged: its {len(data)} bytes are not those that were written")
    values: dict[str, Any] = torch.load(io.BytesIO(archive), map_location="cpu", weights_only=True)
    return values


def load_latest(folder: Path, state: TrainingState, *, settings: Mapping[str, Any]) -> Resumed:
    """Restore the newest readable checkpoint into `state`; damaged ones are skipped.

    Raises DataError, which names the file, for a checkpoint of other settings, and if all are damaged.
    """
    found = list_checkpoints(folder)
    skipped: list[str] = []
    for path in reversed(found):
        try:
            values = read_checkpoint(path)
        except DataError as error:
            skipped.append(str(error))
            continue
        _require_settings(path, json.loads(values["settings"]), settings)
        _restore(state, values)
        return Resumed(values["step"], tuple(skipped))
    if found:
        raise DataError(
            f"{skipped[0]}; so are all {len(found)} in {folder}; delete that folder to train from the beginning"
        )
    return Resumed(0, ())


def _require_settings(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    families = [family_of(values["train"]["network"]) for values in (found, wanted)]
    if families[0] != families[1]:
        raise DataError(
            f"checkpoint: {path} belongs to a training of family {families[0]}, and train.network.family is {families[1]}; "
            f"set train.network.family: {families[0]} to go on with it, or use another run folder"
        )
    differences = Provenance("training", wanted).differences(Provenance("training", found))
    if differences:
        raise DataError(
            f"checkpoint: {path} belongs to a training of other settings or data: "
            f"{'; '.join(text.removeprefix('settings ') for text in differences[:5])}. "
            f"Use those again, or another run folder"
        )


def _restore(state: TrainingState, values: Mapping[str, Any]) -> None:
    state.network.load_state_dict(values["network"])
    if state.ema is not None:
        state.ema.load_state_dict(values["average"])
    state.optimizer.load_state_dict(values["optimizer"])
    state.scheduler.load_state_dict(values["scheduler"])
    state.best = Best(**values["best"])
    state.training.load_extra_state(values.get("family", {}))


def _write(path: Path, data: bytes) -> None:
    for part in path.parent.glob("step-*.part"):  # of a process that was killed while it wrote
        part.unlink()
    try:
        with write_atomic(path) as part:
            part.write_bytes(data)
    except OSError as error:
        raise DataError(
            f"checkpoint: {path} ({len(data)} bytes) could not be written: {error.strerror}. Make space there, or set "
            f"data_root to another disk; the training then goes on from the checkpoint before"
        ) from error
