"""Tensors of all processes in each of them, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch import distributed as dist

Gather = Callable[[Tensor], Tensor]
"""[n, ...] of this process to [processes * n, ...] of all, in the order of ranks; gradients flow back and are summed."""


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
