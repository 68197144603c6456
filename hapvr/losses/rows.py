"""What all losses share: checks of similarities and labels, means, and the comparison of all entries of a row."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hapvr.errors import ArgumentError

MAX_CHUNK_ELEMENTS = 2**24
"""Differences [rows, N, N] held at once: 64 MiB in float32, several of which are alive together."""

RowLoss = Callable[[Tensor, Tensor], Tensor]
"""Similarities and ternary labels [rows, N] to a loss per row, [rows]; any finite value without a positive."""


def check_similarities(similarity: Tensor, labels: Tensor) -> Tensor:
    """The checked similarities in float32 or wider, because half precision overflows in sums of exponentials.

    similarity: [..., N], finite; labels: same shape, ternary (1 positive, -1 negative, 0 ignored). Raises ArgumentError that
    names the argument.
    """
    ternary = labels.dtype != torch.bool and bool(((labels == 1) | (labels == 0) | (labels == -1)).all())
    if similarity.shape != labels.shape or not ternary:
        raise ArgumentError(
            f"labels: got {labels.dtype} of shape {tuple(labels.shape)} with {torch.unique(labels)[:5].tolist()}, wanted 1 "
            f"(positive), -1 (negative) and 0 (ignored) in the shape of similarity, {tuple(similarity.shape)}"
        )
    if not bool(torch.isfinite(similarity).all()):
        raise ArgumentError(
            f"similarity: NaN or infinite values in {similarity.dtype}; wanted finite ones, as of float32"
        )
    return similarity.to(torch.promote_types(similarity.dtype, torch.float32))


def without_self(labels: Tensor) -> Tensor:
    """The labels with 0 (ignored) on the diagonal, where a clip meets itself. labels: [N, N] ternary."""
    return labels * (1 - torch.eye(len(labels), dtype=labels.dtype, device=labels.device))


def count_rows_without_positives(labels: Tensor) -> int:
    """The number of queries without a positive, which means leave out. labels: [..., N] ternary."""
    return int((~(labels > 0).any(-1)).sum())


def mean_where(values: Tensor, valid: Tensor) -> Tensor:
    """Mean over the valid entries, [..] -> []. Without a valid entry it is 0, with a gradient of 0."""
    return values.masked_fill(~valid, 0).sum() / valid.sum().clamp(min=1).to(values.dtype)


def mean_over_rows(row_loss: RowLoss, similarity: Tensor, labels: Tensor) -> Tensor:
    """The mean of row_loss over rows that have a positive; 0 if none has.

    similarity: [..., N]; labels: same shape, ternary. Many rows are computed in chunks. The backward pass computes
    their differences again, so that they need not be kept. Returns [].
    """
    rows = check_similarities(similarity, labels).flatten(0, -2)
    row_labels = labels.flatten(0, -2)
    step = max(MAX_CHUNK_ELEMENTS // max(rows.shape[-1] ** 2, 1), 1)
    chunks = list(zip(torch.split(rows, step), torch.split(row_labels, step), strict=True))
    if len(chunks) > 1 and torch.is_grad_enabled():
        losses = [checkpoint(row_loss, r, y, use_reentrant=False, preserve_rng_state=False) for r, y in chunks]
    else:
        losses = [row_loss(r, y) for r, y in chunks]
    return mean_where(torch.cat(losses), (row_labels > 0).any(-1))


def mean_over_positives(values: Tensor, labels: Tensor) -> Tensor:
    """Per row the mean over positives, 0 without one. values: [..., N]; labels: same shape, ternary. Returns [...]."""
    positive = labels > 0
    return values.masked_fill(~positive, 0).sum(-1) / positive.sum(-1).clamp(min=1)


def differences(similarity: Tensor) -> Tensor:
    """d[..., i, j] = s_j - s_i, above 0 where j ranks before i. similarity: [..., N]. Returns [..., N, N]."""
    return similarity.unsqueeze(-2) - similarity.unsqueeze(-1)
