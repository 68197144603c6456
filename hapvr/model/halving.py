"""Max-pooling by two and ReLU in one, for the comparator."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def halve_and_rectify(maps: Tensor) -> Tensor:
    """`relu(max_pool2d(maps, 2))`. [P, C, T, T'] -> [P, C, T // 2, T' // 2].

    On a processor this is faster than torch's, whose pooling writes indices even where nothing is to be differentiated. For
    training see `convolve_and_halve_twice`.
    """
    if maps.device.type != "cpu":
        return F.relu(F.max_pool2d(maps, 2))
    first, second, third, fourth = quarters(maps)
    halved = torch.maximum(torch.maximum(first, second), torch.maximum(third, fourth))
    return halved.clamp_min_(0)


def quarters(maps: Tensor) -> list[Tensor]:
    """Views [P, C, T // 2, T' // 2] of the four values that each output is chosen from; an odd row or column has none."""
    height, width = (size // 2 * 2 for size in maps.shape[2:])
    return [maps[..., row:height:2, column:width:2] for row in (0, 1) for column in (0, 1)]
