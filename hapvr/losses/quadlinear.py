"""QuadLinear-AP, the ranking loss of HAP-VR (section 3.3.2, Eq. 10 and 11)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hapvr.errors import ArgumentError
from hapvr.losses.labels import check_positive, check_similarities, mean_where

MAX_CHUNK_ELEMENTS = 2**24
"""Differences [rows, N, N] held at once: 64 MiB in float32, several of which are alive together."""


def quadlinear(difference: Tensor, *, delta: float) -> Tensor:
    """A convex, continuous, non-decreasing upper bound of the step function (HAP-VR Eq. 10). Any shape.

    Linear, 2 x / delta + 1, where x >= 0; quadratic, (x / delta + 1)^2, down to -delta; 0 below.
    """
    check_positive("delta", delta)
    scaled = difference / delta
    return torch.where(scaled >= 0, 2 * scaled + 1, (scaled.clamp(-1, 0) + 1).square())


def quadlinear_ap(similarity: Tensor, labels: Tensor, *, delta: float = 0.05, rho: float = 0.10) -> Tensor:
    """QuadLinear-AP (HAP-VR Eq. 11): how far negatives reach above positives, as a loss in [0, 1].

    similarity: [..., N], a row per query; labels: same shape, ternary. For positive i of a row, with d_j = s_j - s_i,
    x_i = sum_{j negative} quadlinear(d_j) / (1 + rho * sum_{j positive, j != i} [d_j > 0]) and the row's loss is the
    mean over i of x_i / (1 + x_i). Rows without a positive are left out of the mean; returns [].

    delta > 0 is the width of the quadratic part, rho >= 0 the weight of positives ranked above. At frame level the
    paper sets rho to 5.
    """
    check_positive("delta", delta)
    if not rho >= 0:
        raise ArgumentError(f"rho: got {rho}, wanted a number of at least 0")
    rows = check_similarities(similarity, labels).flatten(0, -2)
    row_labels = labels.flatten(0, -2)
    size = rows.shape[-1]
    step = max(MAX_CHUNK_ELEMENTS // max(size * size, 1), 1)
    chunks = list(zip(torch.split(rows, step), torch.split(row_labels, step), strict=True))
    if len(chunks) == 1 or not torch.is_grad_enabled():
        losses = [_row_losses(r, y, delta, rho) for r, y in chunks]
    else:
        losses = [
            checkpoint(_row_losses, r, y, delta, rho, use_reentrant=False, preserve_rng_state=False) for r, y in chunks
        ]
    return mean_where(torch.cat(losses), (row_labels > 0).any(-1))


def _row_losses(similarity: Tensor, labels: Tensor, delta: float, rho: float) -> Tensor:
    # [rows, N] -> [rows]; difference[r, i, j] = s_j - s_i. The pair (i, i) has difference 0 and so never counts as a
    # positive above itself.
    difference = similarity.unsqueeze(-2) - similarity.unsqueeze(-1)
    positive, negative = labels > 0, labels < 0
    above = ((difference > 0) & positive.unsqueeze(-2)).sum(-1)
    reach = (quadlinear(difference, delta=delta) * negative.unsqueeze(-2)).sum(-1)
    ratio = reach / (1 + rho * above)
    per_positive = (ratio / (1 + ratio)).masked_fill(~positive, 0)
    return per_positive.sum(-1) / positive.sum(-1).clamp(min=1)
