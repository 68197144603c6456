"""Shared by the losses: how values of entries become one number, and ranks that have a gradient.

Shapes and labels are those of `hapvr.losses.objective`.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def widened(similarity: Tensor) -> Tensor:
    """The similarities in float32 or wider, because half precision overflows in sums of
    exponentials."""
    return similarity.to(torch.promote_types(similarity.dtype, torch.float32))


def mean_where(values: Tensor, valid: Tensor) -> Tensor:
    """Mean over the valid entries, [..] -> []. Without a valid entry it is 0, with a gradient
    of 0."""
    return values.masked_fill(~valid, 0).sum() / valid.sum().clamp(min=1).to(values.dtype)


def mean_over_positives(values: Tensor, labels: Tensor) -> Tensor:
    """The mean over the positives of a row, then over rows that have one; 0 if none has. Both [...,
    N]; returns []."""
    counts = (labels > 0).sum(-1, keepdim=True)
    means = values.masked_fill(labels <= 0, 0) / counts.clamp(min=1)
    num_rows = (counts > 0).sum()
    return means.sum() / num_rows.clamp(min=1)


def mean_of_compared(
    loss: Callable[[Tensor, Tensor], Tensor], similarity: Tensor, labels: Tensor
) -> Tensor:
    """`mean_over_positives` of a loss that compares each positive with the other entries of its
    row. similarity, labels: [..., N], P positives in all. loss: called with d [P, N], d[i, j] = s_j
    - s_i, above 0 where j ranks before i, and labels [P, N], in which i itself is ignored; returns
    [P]. Returns []."""
    rows = widened(similarity).flatten(0, -2)
    row_labels = labels.flatten(0, -2)
    row, place = (row_labels > 0).nonzero(as_tuple=True)

    others = row_labels.index_select(0, row).scatter(1, place[:, None], 0)
    differences = rows.index_select(0, row) - rows[row, place][:, None]
    losses = loss(differences, others)

    counts = (row_labels > 0).sum(-1)
    return (losses / counts[row]).sum() / (counts > 0).sum().clamp(min=1)


class BlackboxRanks(torch.autograd.Function):
    """Ranks, from 1, of the entries that take part. The gradient compares them with the ranks of
    moved scores."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, taking_part: Tensor, strength: float) -> Tensor:
        ranks = _ranks(scores, taking_part)
        ctx.save_for_backward(scores, taking_part, ranks)
        ctx.strength = strength
        return ranks

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        scores, taking_part, ranks = ctx.saved_tensors
        moved = _ranks(scores + ctx.strength * gradients[0], taking_part)
        return ((moved - ranks) / ctx.strength).masked_fill(~taking_part, 0), None, None


def _ranks(scores: Tensor, taking_part: Tensor) -> Tensor:
    order = scores.masked_fill(~taking_part, -math.inf).argsort(
        dim=-1, descending=True, stable=True
    )
    return order.argsort(dim=-1).to(scores.dtype) + 1
