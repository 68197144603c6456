"""QuadLinear-AP, the ranking loss of HAP-VR (section 3.3.2, Eq. 10 and 11)."""

from __future__ import annotations

import torch
from torch import Tensor

from hapvr.losses.rows import check_similarities, differences, mean_over_positives, mean_over_rows


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
    if similarity.shape[:-1].numel() == 1:
        return _of_one_row(check_similarities(similarity, labels).flatten(), labels.flatten(), delta=delta, rho=rho)

    def row_loss(rows: Tensor, row_labels: Tensor) -> Tensor:
        difference = differences(rows)
        # Entry (i, i) has difference 0 and so never counts as a positive above itself.
        above = ((difference > 0) & (row_labels > 0).unsqueeze(-2)).sum(-1)
        reach = quadlinear(difference, delta=delta).masked_fill((row_labels >= 0).unsqueeze(-2), 0).sum(-1)
        ratio = reach / (1 + rho * above)
        return mean_over_positives(ratio / (1 + ratio), row_labels)

    return mean_over_rows(row_loss, similarity, labels)


def _of_one_row(similarity: Tensor, labels: Tensor, *, delta: float, rho: float) -> Tensor:
    """The same of one row [N] with P positives, in memory of P N instead of N N: a whole batch can be one row."""
    positives, negatives = similarity[labels > 0], similarity[labels < 0]
    reach = quadlinear(negatives - positives[:, None], delta=delta).sum(-1)
    above = (positives > positives[:, None]).sum(-1)
    ratio = reach / (1 + rho * above)
    return (ratio / (1 + ratio)).sum() / max(len(positives), 1)
