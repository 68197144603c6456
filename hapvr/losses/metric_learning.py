"""Losses of metric learning that HAP-VR Table 2 compares with QuadLinear-AP: MAE, MSE, contrastive, triplet, circle.

Similarities are [..., N] in [0, 1], a row per query, labels ternary of the same shape; ignored entries do not count. All return [].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.errors import ArgumentError
from hapvr.losses.rows import (
    check_similarities,
    differences,
    mean_over_positives,
    mean_over_rows,
    mean_where,
)


def mean_absolute_error(similarity: Tensor, labels: Tensor) -> Tensor:
    """MAE: mean of |s - y| over labelled pairs, y = 1 for positives and 0 for negatives."""
    rows = check_similarities(similarity, labels)
    return mean_where((rows - (labels > 0).to(rows.dtype)).abs(), labels != 0)


def mean_squared_error(similarity: Tensor, labels: Tensor) -> Tensor:
    """MSE: mean of (s - y)^2 over labelled pairs, y = 1 for positives and 0 for negatives."""
    rows = check_similarities(similarity, labels)
    return mean_where((rows - (labels > 0).to(rows.dtype)).square(), labels != 0)


def contrastive(similarity: Tensor, labels: Tensor, *, margin: float = 0.5) -> Tensor:
    """Contrastive loss (Hadsell et al., CVPR 2006, Eq. 4) with distance 1 - s.

    Half the sum of two means: of (1 - s)^2 over positives, and of max(0, margin - (1 - s))^2 over negatives.
    With separate means, the many negatives do not outweigh the positives.
    """
    distance = 1 - check_similarities(similarity, labels)
    attract = mean_where(distance.square(), labels > 0)
    repel = mean_where((margin - distance).clamp(min=0).square(), labels < 0)
    return (attract + repel) / 2


def triplet(similarity: Tensor, labels: Tensor, *, margin: float = 0.2, negatives: str = "hardest") -> Tensor:
    """Triplet loss (Schroff et al., CVPR 2015, Eq. 2) on similarities: max(0, s_kj - s_ki + margin).

    negatives: which of them a positive i meets: "hardest" is the most similar one, "semi_hard" the most similar one below
    the positive (or the hardest, if none is below), "all" takes the mean over all. A row's loss is the mean over its
    positives. Rows without a positive are left out; rows without a negative have a loss of 0.
    """
    if negatives not in ("hardest", "semi_hard", "all"):
        raise ArgumentError(f"negatives: got {negatives!r}, wanted 'hardest', 'semi_hard' or 'all'")

    def row_loss(rows: Tensor, row_labels: Tensor) -> Tensor:
        negative = row_labels < 0
        difference = differences(rows)
        usable = negative.unsqueeze(-2).expand(difference.shape)
        if negatives == "all":
            hinge = (difference + margin).clamp(min=0).masked_fill(~usable, 0)
            per_positive = hinge.sum(-1) / negative.sum(-1, keepdim=True).clamp(min=1)
        else:
            if negatives == "semi_hard":
                below = usable & (difference < 0)
                usable = torch.where(below.any(-1, keepdim=True), below, usable)
            chosen = difference.masked_fill(~usable, -math.inf).amax(-1)
            per_positive = (chosen.masked_fill(~usable.any(-1), -margin) + margin).clamp(min=0)
        return mean_over_positives(per_positive, row_labels)

    return mean_over_rows(row_loss, similarity, labels)


def circle(similarity: Tensor, labels: Tensor, *, margin: float = 0.25, scale: float = 80.0) -> Tensor:
    """Circle loss (Sun et al., CVPR 2020): each pair is weighed by how far it is from its optimum.

    Per row log(1 + sum_j exp(scale a_j (s_j - margin)) sum_i exp(-scale a_i (s_i - 1 + margin))) over negatives j and
    positives i, with a_j = max(0, s_j + margin) and a_i = max(0, 1 + margin - s_i) taken as constants. The mean over
    rows with a positive and a negative.
    """
    rows = check_similarities(similarity, labels)
    positive, negative = labels > 0, labels < 0
    constant = rows.detach()
    pull = -scale * (1 + margin - constant).clamp(min=0) * (rows - (1 - margin))
    push = scale * (constant + margin).clamp(min=0) * (rows - margin)
    # The floor is finite, because logsumexp over -inf alone has no gradient. Rows that it fills are left out below.
    floor = torch.finfo(rows.dtype).min / 4
    logits = pull.masked_fill(~positive, floor).logsumexp(-1) + push.masked_fill(~negative, floor).logsumexp(-1)
    return mean_where(F.softplus(logits), positive.any(-1) & negative.any(-1))
