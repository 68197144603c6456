"""How a family trains: what a step calls, what changes with it, and how processes share a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch import distributed as dist

from hapvr.model.family import VideoNetwork
from hapvr.seeding import derive_seed
from hapvr.train.batch import Batch

Gather = Callable[[Tensor], Tensor]
"""[n, ...] of this process to [processes * n, ...] of all, in the order of ranks; gradients flow back and are summed."""

StepOutput = tuple[Tensor, dict[str, Tensor]]
"""The loss [], and its unweighted terms [] by name."""


class FamilyTraining(nn.Module, ABC):
    """A batch to the terms of a family's objective.

    Whatever else changes while training, such as a memory bank or a key encoder, is a buffer or a submodule, so that it
    moves to the device, is in the checkpoint, and is equal in all processes.
    """

    def __init__(self, network: VideoNetwork) -> None:
        super().__init__()
        self.network = network

    @abstractmethod
    def forward(self, batch: Batch, batch_number: int = 0) -> StepOutput:
        """The loss of a batch, in containers that DDP can traverse.

        batch_number: counts the batches of the training. Random draws are functions of the seed and of it, never of
        torch's global generator, so that a resumed training ends as an uninterrupted one. Gradients that DDP averages
        over processes are those of one process with the whole batch. DDP waits for a gradient of every weight that is
        trained.
        """


@contextmanager
def drawing_by(*parts: int | str, device: torch.device) -> Iterator[None]:
    """What is drawn inside, such as dropout, is a function of the parts; torch's generators are then as they were before."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(derive_seed(*parts))
        yield


def gather_of(fabric: Fabric) -> Gather | None:
    """How this process gathers values of all; None if it is the only one."""
    if fabric.world_size == 1:
        return None

    def gather(values: Tensor) -> Tensor:
        every: Tensor = _GatherRanks.apply(values)
        return every

    return gather


class _GatherRanks(torch.autograd.Function):
    """torch's own, torch.distributed.nn.functional.all_gather, mixes up gradients that are not contiguous on gloo."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        values = values.contiguous()
        parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, values)
        ctx.num_rows = len(values)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.narrow(0, dist.get_rank() * ctx.num_rows, ctx.num_rows)
