"""The largest of several tensors with the place it came from, kept as a byte, and gradients sent back there.

Comparisons are written as floating-point numbers, never as booleans: on a processor torch vectorises the former only, which
is up to forty times faster.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def largest(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The elementwise largest of tensors of one shape, and its index, uint8; at ties the first. Takes 1 to 256 parts."""
    best, *others = parts
    best = best.clone()
    place, larger = torch.zeros_like(best), torch.empty_like(best)
    for index, part in enumerate(others, 1):
        torch.gt(part, best, out=larger)
        torch.maximum(place, larger.mul_(index), out=place)  # later places are larger numbers
        torch.maximum(best, part, out=best)
    return best, place.to(torch.uint8)


def send_back(gradient: Tensor, place: Tensor, parts: Sequence[Tensor], *, first: int = 0) -> None:
    """Write into each of the parts the gradient where that part was the largest, 0 elsewhere.

    place: uint8, as `largest` gave it. first: the index of the first of these parts.
    """
    chosen = place.to(gradient.dtype)
    for index, part in enumerate(parts, first):
        torch.eq(chosen, index, out=part)
        part.mul_(gradient)


def add_back(gradient: Tensor, place: Tensor, parts: Sequence[Tensor]) -> None:
    """As `send_back`, added to what is there. gradient: broadcastable to place."""
    chosen = place.to(gradient.dtype)
    here = torch.empty_like(chosen)
    for index, part in enumerate(parts):
        torch.eq(chosen, index, out=here)
        part.addcmul_(here, gradient)
