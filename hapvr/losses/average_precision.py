"""QuadLinear-AP (HAP-VR 3.3.2, Eq. 10 and 11), and the surrogates of average precision that Table 2 compares with it.

All are 1 - AP in [0, 1], a scalar [] averaged over the queries that have a positive, on similarities [..., N] with a row per
query and ternary labels of the same shape. Ignored entries take part in no ranking.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hapvr.losses.rows import mean_of_compared, mean_over_positives, mean_where, widened


def quadlinear(difference: Tensor, *, delta: float) -> Tensor:
    """A convex, continuous, non-decreasing upper bound of the step function (HAP-VR Eq. 10). Any shape.

    Linear, 2 x / delta + 1, where x >= 0; quadratic, (x / delta + 1)^2, down to -delta; 0 below.
    """
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

    def compare(difference: Tensor, others: Tensor) -> Tensor:
        above = ((difference > 0) & (others > 0)).sum(-1)
        reach = quadlinear(difference, delta=delta).masked_fill(others >= 0, 0).sum(-1)
        ratio = reach / (1 + rho * above)
        return ratio / (1 + ratio)

    return mean_of_compared(compare, similarity, labels)


def smooth_ap(similarity: Tensor, labels: Tensor, *, temperature: float = 0.01) -> Tensor:
    """Smooth-AP (Brown et al., ECCV 2020): ranks by sigmoids of differences instead of steps."""

    def compare(difference: Tensor, others: Tensor) -> Tensor:
        above = torch.sigmoid(difference / temperature)
        positives, negatives = (above.masked_fill(others != kind, 0).sum(-1) for kind in (1, -1))
        return negatives / (1 + positives + negatives)

    return mean_of_compared(compare, similarity, labels)


def quantized_ap(similarity: Tensor, labels: Tensor, *, num_bins: int = 20) -> Tensor:
    """Quantised AP of DIR (Revaud et al., ICCV 2019): precision and recall over soft histogram bins.

    num_bins centres are evenly spaced from 1 to 0, both included. An entry is shared between its two nearest centres; an
    entry beyond the ends belongs to the end.
    """
    rows, width = widened(similarity), 1 / (num_bins - 1)
    centres = torch.linspace(1, 0, num_bins, dtype=rows.dtype, device=rows.device)
    distance = (rows.clamp(0, 1).unsqueeze(-1) - centres).abs()
    shares = (1 - distance / width).clamp(min=0).masked_fill((labels == 0).unsqueeze(-1), 0)
    positives = shares.masked_fill((labels <= 0).unsqueeze(-1), 0).sum(-2)
    ranked = shares.sum(-2).cumsum(-1)
    # Empty leading bins have neither entries nor recall; 1 keeps their division defined.
    precision = positives.cumsum(-1) / torch.where(ranked > 0, ranked, 1)
    found = (labels > 0).sum(-1)
    average_precision = (precision * positives).sum(-1) / found.clamp(min=1)
    return mean_where(1 - average_precision, found > 0)


def fast_ap(similarity: Tensor, labels: Tensor, *, num_bins: int = 10) -> Tensor:
    """FastAP (Cakir et al., CVPR 2019): AP by soft histograms of distances, num_bins intervals.

    On similarities, which are affine in the squared distances of the paper, sum_l H+_l h+_l / (N+ H_l) is
    `quantized_ap` with a centre more than intervals; only the customary resolution differs.
    """
    return quantized_ap(similarity, labels, num_bins=num_bins + 1)


def blackbox_ap(similarity: Tensor, labels: Tensor, *, strength: float = 4.0, margin: float = 0.02) -> Tensor:
    """BlackBox-AP (Rolinek et al., CVPR 2020): exact ranks, differentiated through an interpolation.

    Half the margin is subtracted from positives, and half is added to negatives. strength is the paper's lambda, the size of
    the interpolation step. Ties rank in row order.
    """
    rows = widened(similarity)
    shifted = rows - labels.to(rows.dtype) * (margin / 2)
    ranks: Tensor = _BlackboxRanks.apply(shifted, labels != 0, strength)
    ranks_among_positives: Tensor = _BlackboxRanks.apply(shifted, labels > 0, strength)
    return mean_over_positives(1 - ranks_among_positives / ranks.clamp(min=1), labels)


class _BlackboxRanks(torch.autograd.Function):
    """Ranks, from 1, of the entries that take part. The gradient compares them with the ranks of moved scores."""

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
    order = scores.masked_fill(~taking_part, -math.inf).argsort(dim=-1, descending=True, stable=True)
    return order.argsort(dim=-1).to(scores.dtype) + 1
