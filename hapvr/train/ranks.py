"""The processes that share a batch, and what they exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed as dist

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Ranks:
    """The place of this process among those of a training.

    rank: its number
    world_size: the number of processes
    device: of this process"""

    rank: int = 0
    world_size: int = 1
    device: torch.device = CPU


def gather(values: Tensor) -> Tensor:
    """[n, ...] of this process to [processes * n, ...] of all, in the order of ranks; gradients
    flow back and are summed."""
    gathered: Tensor = _GatherRanks.apply(values) if dist.is_initialized() else values
    return gathered


class _GatherRanks(torch.autograd.Function):
    """An all-gather of our own: on gloo, torch.distributed.nn.functional.all_gather mixes up
    gradients that are not contiguous."""

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
