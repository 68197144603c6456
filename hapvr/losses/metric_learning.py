"""Losses of metric learning that HAP-VR Table 2 compares with QuadLinear-AP: MAE, MSE, contrastive, triplet, circle.

Similarities are [..., N] in [0, 1], a row per query, labels ternary of the same shape; ignored entries do not count. All return [].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.losses.rows import mean_of_compared, mean_where, widened


def mean_absolute_error(similarity: Tensor, labels: Tensor) -> Tensor:
    """MAE: mean of |s - y| over labelled pairs, y = 1 for positives and 0 for negatives."""
    rows = widened(similarity)
    return mean_where((rows - (labels > 0).to(rows.dtype)).abs(), labels != 0)


def mean_squared_error(similarity: Tensor, labels: Tensor) -> Tensor:
    """MSE: mean of (s - y)^2 over labelled pairs, y = 1 for positives and 0 for negatives."""
    rows = widened(similarity)
    return mean_where((rows - (labels > 0).to(rows.dtype)).square(), labels != 0)


def contrastive(similarity: Tensor, labels: Tensor, *, margin: float = 0.5) -> Tensor:
    """Contrastive loss (Hadsell et al., CVPR 2006, Eq. 4) with distance 1 - s.

    Half the sum of two means: of (1 - s)^2 over positives, and of max(0, margin - (1 - s))^2 over negatives.
    With separate means, the many negatives do not outweigh the positives.
    """
    distance = 1 - widened(similarity)
    attract = mean_where(distance.square(), labels > 0)
    repel = mean_where((margin - distance).clamp(min=0).square(), labels < 0)
    return (attract + repel) / 2


def triplet(similarity: Tensor, labels: Tensor, *, margin: float = 0.2) -> Tensor:
    """Triplet loss (Schroff et al., CVPR 2015, Eq. 2) on similarities: max(0, s_kj - s_ki + margin).

    j is the most similar negative. A row's loss is the mean over its positives i. Rows without a positive are left out;
    rows without a negative have a loss of 0.
    """

    def compare(difference: Tensor, others: Tensor) -> Tensor:
        hardest = difference.masked_fill(others >= 0, -math.inf).amax(-1)
        return (hardest.clamp(min=-margin) + margin).clamp(min=0)

    return mean_of_compared(compare, similarity, labels)


def circle(similarity: Tensor, labels: Tensor, *, margin: float = 0.25, scale: float = 80.0) -> Tensor:
    """Circle loss (Sun et al., CVPR 2020): each pair is weighed by how far it is from its optimum.

    Per row log(1 + sum_j exp(scale a_j (s_j - margin)) sum_i exp(-scale a_i (s_i - 1 + margin))) over negatives j and
    positives i, with a_j = max(0, s_j + margin) and a_i = max(0, 1 + margin - s_i) taken as constants. The mean over
    rows with a positive and a negative.
    """
    rows = widened(similarity)
    positive, negative = labels > 0, labels < 0
    constant = rows.detach()
    pull = -scale * (1 + margin - constant).clamp(min=0) * (rows - (1 - margin))
    push = scale * (constant + margin).clamp(min=0) * (rows - margin)
    # The floor is finite, because logsumexp over -inf alone has no gradient. Rows that it fills are left out below.
    floor = torch.finfo(rows.dtype).min / 4
    logits = pull.masked_fill(~positive, floor).logsumexp(-1) + push.masked_fill(~negative, floor).logsumexp(-1)
    return mean_where(F.softplus(logits), positive.any(-1) & negative.any(-1))
