"""What all losses share: means, and the comparison of each positive with all entries of its row."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def widened(similarity: Tensor) -> Tensor:
    """In float32 or wider, because half precision overflows in sums of exponentials."""
    return similarity.to(torch.promote_types(similarity.dtype, torch.float32))


def without_self(labels: Tensor) -> Tensor:
    """The labels with 0 (ignored) on the diagonal, where a clip meets itself. labels: [N, N] ternary."""
    return labels * (1 - torch.eye(len(labels), dtype=labels.dtype, device=labels.device))


def mean_where(values: Tensor, valid: Tensor) -> Tensor:
    """Mean over the valid entries, [..] -> []. Without a valid entry it is 0, with a gradient of 0."""
    return values.masked_fill(~valid, 0).sum() / valid.sum().clamp(min=1).to(values.dtype)


def mean_over_positives(values: Tensor, labels: Tensor) -> Tensor:
    """The mean over the positives of a row, then over rows that have one; 0 if none has. Both [..., N]; returns []."""
    counts = (labels > 0).sum(-1, keepdim=True)
    return (values.masked_fill(labels <= 0, 0) / counts.clamp(min=1)).sum() / (counts > 0).sum().clamp(min=1)


def mean_of_compared(loss: Callable[[Tensor, Tensor], Tensor], similarity: Tensor, labels: Tensor) -> Tensor:
    """`mean_over_positives` of a loss that compares each positive with the other entries of its row.

    similarity, labels: [..., N], P positives in all. loss: called with d [P, N], d[i, j] = s_j - s_i, above 0 where j ranks
    before i, and labels [P, N], in which i itself is ignored; returns [P]. Returns [].
    """
    rows, row_labels = widened(similarity).flatten(0, -2), labels.flatten(0, -2)
    row, place = (row_labels > 0).nonzero(as_tuple=True)
    others = row_labels.index_select(0, row).scatter(1, place[:, None], 0)
    losses = loss(rows.index_select(0, row) - rows[row, place][:, None], others)
    counts = (row_labels > 0).sum(-1)
    return (losses / counts[row]).sum() / (counts > 0).sum().clamp(min=1)
