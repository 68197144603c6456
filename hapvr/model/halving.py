"""Max-pooling by two and ReLU in one, for the comparator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

CUT = 4
"""The place of a cell whose four values are all cut by ReLU."""


def halve_and_rectify(maps: Tensor) -> Tensor:
    """`relu(max_pool2d(maps, 2))`. [P, C, T, T'] -> [P, C, T // 2, T' // 2].

    For the backward pass a byte per output is kept, instead of the whole input and indices of eight bytes. On a processor this is also
    faster, as pooling there writes indices even where nothing is to be differentiated.
    """
    if torch.is_grad_enabled() and maps.requires_grad:
        halved: Tensor = _HalveAndRectify.apply(maps)
        return halved
    if maps.device.type != "cpu":
        return F.relu(F.max_pool2d(maps, 2))
    first, second, third, fourth = _quarters(maps)
    halved = torch.maximum(torch.maximum(first, second), torch.maximum(third, fourth))
    return halved.clamp_min_(0)


class _HalveAndRectify(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor) -> Tensor:
        first, *others = _quarters(maps)
        best = first.clone()
        place = torch.zeros_like(best, dtype=torch.uint8)
        for index, quarter in enumerate(others, 1):
            torch.maximum(place, (quarter > best).view(torch.uint8).mul_(index), out=place)
            torch.maximum(best, quarter, out=best)
        torch.maximum(place, (best <= 0).view(torch.uint8).mul_(CUT), out=place)
        ctx.save_for_backward(place)
        ctx.shape = maps.shape
        return best.clamp_min_(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (place,) = ctx.saved_tensors
        gradient = gradients[0]
        spread = torch.empty(ctx.shape, dtype=gradient.dtype, device=gradient.device, memory_format=torch.channels_last)
        if ctx.shape[2] % 2 or ctx.shape[3] % 2:
            spread.zero_()
        for index, quarter in enumerate(_quarters(spread)):
            torch.mul(place.eq(index), gradient, out=quarter)
        return spread


def _quarters(maps: Tensor) -> list[Tensor]:
    """Views [P, C, T // 2, T' // 2] of the four values that each output is chosen from; an odd row or column has none."""
    height, width = (size // 2 * 2 for size in maps.shape[2:])
    return [maps[..., row:height:2, column:width:2] for row in (0, 1) for column in (0, 1)]
