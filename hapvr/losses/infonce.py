"""The base loss of S2VS on video similarities: InfoNCE, self-similarity, hard negatives (S2VS section 3.4, Eq. 1-2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.losses.labels import check_positive, check_similarities, mean_where
from hapvr.losses.rows import mean_over_positives


def infonce(similarity: Tensor, labels: Tensor, *, temperature: float) -> Tensor:
    """InfoNCE (S2VS Eq. 1): each positive against the query's negatives.

    similarity: [..., N] in [0, 1], a row per query; labels: same shape, ternary; ignore a square matrix's diagonal with
    `without_self`. The mean over a row's positives i of -log(e_i / (e_i + sum_{j negative} e_j)), e = exp(s /
    temperature), then over rows with a positive. Returns [].
    """
    check_positive("temperature", temperature)
    logits = check_similarities(similarity, labels) / temperature
    positive, negative = labels > 0, labels < 0
    # A row without negatives has nothing to be told from: the finite floor keeps its loss and gradient at 0, not NaN.
    floor = torch.finfo(logits.dtype).min
    negatives = logits.masked_fill(~negative, floor).logsumexp(-1, keepdim=True)
    per_positive = F.softplus(negatives - logits)
    return mean_where(mean_over_positives(per_positive, labels), positive.any(-1))


def self_similarity(similarity: Tensor, labels: Tensor, *, floor: float = 1e-3) -> Tensor:
    """First half of SSHN (S2VS Eq. 2): mean of -log(s_kk), a clip should match itself.

    similarity: [B, B] in [0, 1], clamped below at `floor`; labels: [B, B], read for its shape only. Returns [].
    """
    check_positive("floor", floor)
    return -check_similarities(similarity, labels, square=True).diagonal().clamp(min=floor).log().mean()


def hard_negative(similarity: Tensor, labels: Tensor, *, floor: float = 1e-3) -> Tensor:
    """Second half of SSHN (S2VS Eq. 2): mean of -log(1 - max over negatives), the worst confusion should go.

    similarity: [..., N] in [0, 1], 1 - s clamped below at `floor`; labels: same shape, ternary. Rows without a
    negative are left out. Returns [].
    """
    check_positive("floor", floor)
    rows = check_similarities(similarity, labels)
    negative = labels < 0
    valid = negative.any(-1)
    hardest = rows.masked_fill(~negative, -math.inf).amax(-1).masked_fill(~valid, 0)
    return mean_where(-(1 - hardest).clamp(min=floor).log(), valid)
