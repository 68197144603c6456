"""Losses that compare all entries of a row with each other: a few rows at a time, so that N x N differences fit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hapvr.losses.labels import check_similarities, mean_where

MAX_CHUNK_ELEMENTS = 2**24
"""Differences [rows, N, N] held at once: 64 MiB in float32, several of which are alive together."""

RowLoss = Callable[[Tensor, Tensor], Tensor]
"""Similarities and ternary labels [rows, N] to a loss per row, [rows]; any finite value without a positive."""


def mean_over_rows(row_loss: RowLoss, similarity: Tensor, labels: Tensor) -> Tensor:
    """The mean of row_loss over rows that have a positive; 0 if none has.

    similarity: [..., N]; labels: same shape, ternary. Many rows are done in chunks, whose differences are made again in
    the backward pass instead of being kept. Returns [].
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
