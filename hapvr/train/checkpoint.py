"""Checkpoints of a running training: plain tensors and numbers, written beside and renamed, the last k kept."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hapvr.errors import DataError
from hapvr.model.network import SimilarityNetwork

NAME = re.compile(r"^step-(\d{8})\.pt$")


@dataclass(frozen=True)
class Best:
    """The best validation so far: step (-1: none yet), mean target metric, weights at that step."""

    step: int
    value: float
    weights: dict[str, Tensor]


def save_checkpoint(
    folder: Path,
    *,
    step: int,
    network: SimilarityNetwork,
    optimizer: Optimizer,
    scheduler: LRScheduler,
    best: Best,
    config_digest: str,
    keep: int,
) -> Path:
    """Write `step-XXXXXXXX.pt`, `step` being the next step to do, and drop all but the last `keep`."""
    state = {
        "step": step,
        "network": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "best_step": best.step,
        "best_value": best.value,
        "best_weights": best.weights,
        "config_digest": config_digest,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:08d}.pt"
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.replace(path)
    for old in list_checkpoints(folder)[:-keep]:
        old.unlink()
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(path for path in folder.glob("step-*.pt") if NAME.match(path.name))


def load_latest(
    folder: Path,
    *,
    network: SimilarityNetwork,
    optimizer: Optimizer,
    scheduler: LRScheduler,
    config_digest: str,
) -> tuple[int, Best]:
    """Restore the newest checkpoint into network, optimiser and scheduler; (0, no best) if there is none.

    Raises DataError for a checkpoint of another configuration or a damaged one, naming the file.
    """
    found = list_checkpoints(folder)
    if not found:
        return 0, Best(-1, float("-inf"), {})
    path = found[-1]
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise DataError(
            f"checkpoint: {path} cannot be read ({error}); delete it to go on from the one before"
        ) from error
    if state["config_digest"] != config_digest:
        raise DataError(
            f"checkpoint: {path} belongs to configuration {state['config_digest']}, this run has {config_digest}; "
            f"use that configuration again or another run folder"
        )
    network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    return state["step"], Best(state["best_step"], state["best_value"], state["best_weights"])
