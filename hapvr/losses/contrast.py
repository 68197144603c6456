"""Losses of an anchor's one positive against many negatives, on raw cosines: InfoNCE and circle loss (TCA 3.4).

similarity: [N, 1 + K] in [-1, 1], a row per anchor, its positive in column 0. usable: bool [N, K], negatives that count;
None: all. A row without negatives has a loss of 0. All return [], the mean over rows.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

CircleForm = Literal["paper", "released"]


def contrast_infonce(similarity: Tensor, usable: Tensor | None = None, *, temperature: float) -> Tensor:
    """-log of the softmax of s / tau at the positive (TCA Eq. 3, whose denominator lacks one 1 / tau)."""
    return _first_of(similarity / temperature, usable)


def contrast_circle(
    similarity: Tensor,
    usable: Tensor | None = None,
    *,
    margin: float = 0.25,
    scale: float = 256.0,
    form: CircleForm = "paper",
) -> Tensor:
    """Circle loss (TCA Eq. 4): each similarity is weighed by how far it is from its optimum, as a constant.

    Logits are scale [1 + m - s]+ (s - 1 + m) of a positive and scale [s + m]+ (s - m) of a negative. form: `released` takes
    all columns of row 0 for positives and all columns of the other rows for negatives, as the authors' code does.
    """
    rows, constant = similarity, similarity.detach()
    as_positive = scale * (1 + margin - constant).clamp(min=0) * (rows - (1 - margin))
    as_negative = scale * (constant + margin).clamp(min=0) * (rows - margin)
    positive = torch.zeros_like(rows, dtype=torch.bool)
    if form == "paper":
        positive[:, 0] = True
    else:
        positive[:1] = True
    return _first_of(torch.where(positive, as_positive, as_negative), usable)


def _first_of(logits: Tensor, usable: Tensor | None) -> Tensor:
    """Mean cross-entropy of class 0."""
    if usable is not None:
        left_out = F.pad(~usable, (1, 0), value=False)
        logits = logits.masked_fill(left_out, torch.finfo(logits.dtype).min / 4)
    return -logits.log_softmax(dim=1)[:, 0].mean()
