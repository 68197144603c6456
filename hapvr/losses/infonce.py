"""The base loss of S2VS on video similarities: InfoNCE, self-similarity, hard negatives (S2VS section 3.4, Eq. 1 to 3).

Similarities are [..., N] in [0, 1], a row per query, labels ternary of the same shape. All return [].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.losses.rows import check_similarities, mean_over_positives, mean_where


def infonce(similarity: Tensor, labels: Tensor, *, temperature: float) -> Tensor:
    """InfoNCE (S2VS Eq. 1): each positive against the query's negatives.

    For a square matrix, `without_self` removes the self pairs. With e = exp(s / temperature), the loss of a row is the mean
    over its positives i of -log(e_i / (e_i + sum_{j negative} e_j)). The mean over rows with a positive, as in the release;
    Eq. 2 is the mean over all positive pairs, which differs if rows have different numbers of positives.
    """
    logits = check_similarities(similarity, labels) / temperature
    positive, negative = labels > 0, labels < 0
    # The finite floor gives a row without negatives a loss and a gradient of 0 instead of NaN.
    floor = torch.finfo(logits.dtype).min
    negatives = logits.masked_fill(~negative, floor).logsumexp(-1, keepdim=True)
    per_positive = F.softplus(negatives - logits)
    return mean_where(mean_over_positives(per_positive, labels), positive.any(-1))


def self_similarity(similarity: Tensor, labels: Tensor, *, floor: float = 1e-3) -> Tensor:
    """First half of SSHN (S2VS Eq. 3): mean of -log(s_kk), because a clip should match itself.

    similarity: [B, B], clamped below at `floor`; labels: [B, B], read for its shape only.
    """
    return -check_similarities(similarity, labels).diagonal().clamp(min=floor).log().mean()


def hard_negative(similarity: Tensor, labels: Tensor, *, floor: float = 1e-3) -> Tensor:
    """Second half of SSHN (S2VS Eq. 3): mean of -log(1 - s_kj) for the most similar negative j of each row k.

    1 - s is clamped below at `floor`. Rows without a negative are left out.
    """
    rows = check_similarities(similarity, labels)
    negative = labels < 0
    valid = negative.any(-1)
    hardest = rows.masked_fill(~negative, -math.inf).amax(-1).masked_fill(~valid, 0)
    return mean_where(-(1 - hardest).clamp(min=floor).log(), valid)
