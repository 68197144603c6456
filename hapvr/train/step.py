"""One training step: batches to losses, gradients and new weights."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.optim import Optimizer

from hapvr.config import TrainConfig
from hapvr.errors import ArgumentError
from hapvr.train.batch import Batch
from hapvr.train.checkpoint import TrainingState
from hapvr.train.family import StepOutput
from hapvr.train.guards import actionable_errors, not_finite
from hapvr.train.report import BatchReport
from hapvr.train.schedule import update_ema
from hapvr.train.source import Source


class Throughput:
    """Measures the time that this process trains, and the part of it in which it waits for data."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._waited = 0.0
        self._clips = 0

    def wait_for(self, items: Iterator[Any]) -> Any:
        """The next item."""
        asked = time.monotonic()
        item = next(items)
        self._waited += time.monotonic() - asked
        return item

    def count(self, batch: Batch) -> None:
        self._clips += len(batch.regions)

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self._start, 1e-9)

    def rates(self) -> dict[str, float]:
        """wait_rate: part of the time spent waiting for data; clips_per_s."""
        seconds = self.seconds
        return {"wait_rate": self._waited / seconds, "clips_per_s": self._clips / seconds}


@dataclass(frozen=True)
class Losses:
    """The outcome of one step: means over its batches, the norm of its gradient, and its last batch with similarities."""

    total: float
    terms: dict[str, float]
    counts: dict[str, int]
    gradient_norm: float
    report: BatchReport

    def metrics(self) -> dict[str, float]:
        """Under the names of the history."""
        values = {"loss/total": self.total} | {f"loss/{name}": value for name, value in self.terms.items()}
        return (
            values
            | {f"count/{name}": value for name, value in self.counts.items()}
            | {"gradient_norm": self.gradient_norm}
        )


class TrainStep:
    """Each call updates the weights once.

    module, optimizer: as `fabric.setup` returned them. state: the same network and optimiser without Fabric's wrappers.
    """

    def __init__(
        self,
        settings: TrainConfig,
        *,
        fabric: Fabric,
        module: torch.nn.Module,
        optimizer: Optimizer,
        state: TrainingState,
        folder: Path,
    ) -> None:
        self._settings = settings
        self._fabric = fabric
        self._module = module
        self._optimizer = optimizer
        self._state = state
        self._folder = folder

    def __call__(self, step: int, source: Source, items: Iterator[Any], throughput: Throughput) -> Losses:
        """Change the weights once. Raises NotFiniteError, OutOfMemoryError, CompilerError."""
        settings, count = self._settings, self._settings.accumulate_batches
        sums: dict[str, Tensor] = {}
        for number in range(count):
            item = throughput.wait_for(items)
            syncs = number == count - 1
            with (
                actionable_errors(step, num_videos=source.batch_videos, compiled=settings.compile),
                self._fabric.no_backward_sync(self._module, enabled=not syncs),  # type: ignore[arg-type]
            ):
                batch = source.finish(item)
                total, terms, counts, similarity = self._forward(step, step * count + number, batch)
                self._fabric.backward(total / count)
            throughput.count(batch)
            for name, value in {"total": total, **terms}.items():
                sums[name] = sums.get(name, 0) + value.detach() / count
        norm = self._clip(settings.optimizer.gradient_clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._state.scheduler.step()
        if self._state.ema is not None:
            update_ema(self._state.ema, self._state.network, decay=settings.ema_decay, step=step)
        return Losses(
            total=float(sums.pop("total")),
            terms={name: float(value) for name, value in sums.items()},
            counts=counts,
            gradient_norm=norm,
            report=BatchReport(similarity.float().cpu(), batch.labels, batch.video_ids, batch.view_index),
        )

    def _forward(self, step: int, number: int, batch: Batch) -> StepOutput:
        moved: Batch = self._fabric.to_device(batch)
        try:
            total, terms, counts, similarity = self._module(replace(moved, regions=moved.regions.float()), number)
        except ArgumentError as error:  # the network, a loss or a bank found values that are not finite
            raise not_finite(str(error), step, batch, self._folder) from error
        if not torch.isfinite(total):
            raise not_finite(f"the loss is {float(total.detach())}", step, batch, self._folder)
        return total, terms, counts, similarity

    def _clip(self, max_norm: float | None) -> float:
        """Clip gradients if asked to; returns the norm that they had before."""
        limit = float("inf") if max_norm is None else max_norm
        norm = self._fabric.clip_gradients(self._module, self._optimizer, max_norm=limit, error_if_nonfinite=False)
        return float(norm) if isinstance(norm, Tensor) else 0.0
