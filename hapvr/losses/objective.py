"""The training objective: weighted terms over one batch (HAP-VR Eq. 15), the base loss of S2VS
(InfoNCE, self-similarity, hard negatives; S2VS 3.3, Eq. 1 to 4) and a ranking loss: QuadLinear-AP
(HAP-VR 3.3.2, Eq. 10 and 11), or one of those that it is compared with.

Similarities are [..., N] in [0, 1], a row per query, and labels are ternary and of the same shape;
ignored entries do not count. All return []. Surrogates of average precision are 1 - AP in [0, 1],
averaged over the queries that have a positive.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.errors import ConfigError
from hapvr.losses.reductions import (
    BlackboxRanks,
    mean_of_compared,
    mean_over_positives,
    mean_where,
    widened,
)
from hapvr.losses.settings import LossName, ObjectiveSettings, Option
from hapvr.model.family import Similarities

FRAME_OPTIONS: Mapping[str, Option] = {"rho": 5.0}
"""HAP-VR's options of quadlinear_ap at frame level, where they differ from the function's own."""


class Objective:
    """The loss of a batch, its terms in the order of Eq. 15. Raises ConfigError for an option that
    a loss does not have."""

    def __init__(self, settings: ObjectiveSettings) -> None:
        self.settings = settings
        self._video_loss = ranking_loss(settings.video_ap_loss, settings.video_ap_options)
        self._frame_loss = ranking_loss(
            "quadlinear_ap", {**FRAME_OPTIONS, **settings.frame_ap_options}
        )

    def __call__(
        self,
        similarities: Similarities,
        labels: Tensor,
        frame_labels: Tensor,
        pair_index: Tensor,
        *,
        first_row: int = 0,
        add_up: Callable[[Tensor], Tensor] = lambda value: value,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Total [], to be minimised, and unweighted terms [] by name, for all pairs of B clips.
        labels: int8 [B, B] ternary, 1 on the diagonal. pair_index: int64 [P, 2], row and column of
        the positive video pairs. frame_labels: int8 [P, T, T'], their ternary pseudo labels. Only
        the frame similarities of these pairs are gathered and ranked. The video similarities are
        always of all rows; where several processes share a batch, the frame similarities [b, B, T,
        T'] and the pairs are of b rows, from first_row on. add_up: [] -> [], the sum over all
        processes, which passes gradients on.
        """
        video = similarities.video / 2 + 0.5
        others = without_self(labels)
        lists = (1, -1) if self.settings.across_queries else labels.shape
        ranked = (video.reshape(lists), others.reshape(lists))

        def rank_frames() -> Tensor:
            different = pair_index[:, 0] != pair_index[:, 1]
            pairs = pair_index[different]
            row_labels = frame_labels[different]
            rows = similarities.frame[pairs[:, 0] - first_row, pairs[:, 1]]
            ranked_rows = (row_labels > 0).any(-1).sum().float()
            part = ranked_rows / add_up(ranked_rows).clamp(min=1)

            return add_up(self._frame_loss(rows, row_labels) * part)

        settings = self.settings
        weighted: tuple[tuple[str, float, Callable[[], Tensor]], ...] = (
            ("frame_ap", settings.frame_ap_weight, rank_frames),
            ("video_ap", settings.video_ap_weight, lambda: self._video_loss(*ranked)),
            (
                "infonce",
                settings.infonce_weight,
                lambda: infonce(
                    *ranked, temperature=settings.temperature, mean=settings.infonce_mean
                ),
            ),
            ("hard_negative", settings.hard_negative_weight, lambda: hard_negative(video, others)),
            (
                "self_similarity",
                settings.self_similarity_weight,
                lambda: self_similarity(video, labels),
            ),
            (
                "regularization",
                settings.regularization_weight,
                lambda: add_up(similarities.regularization),
            ),
        )

        terms = {name: loss() for name, weight, loss in weighted if weight > 0}
        total = sum(
            (weight * terms[name] for name, weight, _ in weighted if weight > 0),
            start=video.new_zeros(()),
        )
        return total, terms


def without_self(labels: Tensor) -> Tensor:
    """The labels with 0 (ignored) on the diagonal, where a clip meets itself. labels: [N, N]
    ternary."""
    return labels * (1 - torch.eye(len(labels), dtype=labels.dtype, device=labels.device))


def infonce(
    similarity: Tensor,
    labels: Tensor,
    *,
    temperature: float,
    mean: Literal["queries", "pairs"] = "queries",
) -> Tensor:
    """InfoNCE (S2VS Eq. 1): each positive against the query's negatives. For a square matrix,
    `without_self` removes the self pairs. With e = exp(s / temperature), the loss of a positive i
    is -log(e_i / (e_i + sum_{j negative} e_j)).

    mean: `queries` averages a row's positives, then the rows that have one (HAP-VR A.3); `pairs`
    averages all positives (S2VS Eq. 2). They differ where rows have different numbers of positives.
    """
    logits = widened(similarity) / temperature
    # The finite floor gives a row without negatives a loss and a gradient of 0 instead of NaN.
    floor = torch.finfo(logits.dtype).min
    negatives = logits.masked_fill(labels >= 0, floor).logsumexp(-1, keepdim=True)
    losses = F.softplus(negatives - logits)
    if mean == "pairs":
        return mean_where(losses, labels > 0)
    return mean_over_positives(losses, labels)


def self_similarity(similarity: Tensor, labels: Tensor, *, floor: float = 1e-3) -> Tensor:
    """First half of SSHN (S2VS Eq. 3): mean of -log(s_kk), because a clip should match itself.
    similarity: [B, B], clamped below at `floor`; labels: [B, B], read for its shape only."""
    return -widened(similarity).diagonal().clamp(min=floor).log().mean()


def hard_negative(similarity: Tensor, labels: Tensor, *, floor: float = 1e-3) -> Tensor:
    """Second half of SSHN (S2VS Eq. 3): mean of -log(1 - s_kj) for the most similar negative j of
    each row k. 1 - s is clamped below at `floor`. Rows without a negative are skipped."""
    rows = widened(similarity)
    negative = labels < 0
    valid = negative.any(-1)
    hardest = rows.masked_fill(~negative, -math.inf).amax(-1).masked_fill(~valid, 0)
    return mean_where(-(1 - hardest).clamp(min=floor).log(), valid)


def mean_absolute_error(similarity: Tensor, labels: Tensor) -> Tensor:
    """MAE: mean of |s - y| over labelled pairs, y = 1 for positives and 0 for negatives."""
    rows = widened(similarity)
    return mean_where((rows - (labels > 0).to(rows.dtype)).abs(), labels != 0)


def mean_squared_error(similarity: Tensor, labels: Tensor) -> Tensor:
    """MSE: mean of (s - y)^2 over labelled pairs, y = 1 for positives and 0 for negatives."""
    rows = widened(similarity)
    return mean_where((rows - (labels > 0).to(rows.dtype)).square(), labels != 0)


def contrastive(similarity: Tensor, labels: Tensor, *, margin: float = 0.5) -> Tensor:
    """Contrastive loss (Hadsell et al., CVPR 2006, Eq. 4) with distance 1 - s. Half the sum of two
    means: of (1 - s)^2 over positives, and of max(0, margin - (1 - s))^2 over negatives. With
    separate means, the many negatives do not outweigh the positives."""
    distance = 1 - widened(similarity)
    attract = mean_where(distance.square(), labels > 0)
    repel = mean_where((margin - distance).clamp(min=0).square(), labels < 0)
    return (attract + repel) / 2


def triplet(similarity: Tensor, labels: Tensor, *, margin: float = 0.2) -> Tensor:
    """Triplet loss (Schroff et al., CVPR 2015, Eq. 2) on similarities: max(0, s_kj - s_ki +
    margin). j is the most similar negative. A row's loss is the mean over its positives i. Rows
    without a positive are skipped; rows without a negative have a loss of 0."""

    def compare(difference: Tensor, others: Tensor) -> Tensor:
        hardest = difference.masked_fill(others >= 0, -math.inf).amax(-1)
        return (hardest.clamp(min=-margin) + margin).clamp(min=0)

    return mean_of_compared(compare, similarity, labels)


def circle(
    similarity: Tensor, labels: Tensor, *, margin: float = 0.25, scale: float = 80.0
) -> Tensor:
    """Circle loss (Sun et al., CVPR 2020): each pair is weighed by how far it is from its optimum.
    Per row log(1 + sum_j exp(scale a_j (s_j - margin)) sum_i exp(-scale a_i (s_i - 1 + margin)))
    over negatives j and positives i, with a_j = max(0, s_j + margin) and a_i = max(0, 1 + margin -
    s_i) taken as constants. The mean over rows with a positive and a negative.
    """
    rows = widened(similarity)
    positive = labels > 0
    negative = labels < 0

    constant = rows.detach()
    pull = -scale * (1 + margin - constant).clamp(min=0) * (rows - (1 - margin))
    push = scale * (constant + margin).clamp(min=0) * (rows - margin)

    # The floor is finite, because logsumexp over -inf alone has no gradient. Rows that it fills are
    # skipped below.
    floor = torch.finfo(rows.dtype).min / 4
    pulls = pull.masked_fill(~positive, floor).logsumexp(-1)
    pushes = push.masked_fill(~negative, floor).logsumexp(-1)
    return mean_where(F.softplus(pulls + pushes), positive.any(-1) & negative.any(-1))


def quadlinear(difference: Tensor, *, delta: float) -> Tensor:
    """A convex, continuous, non-decreasing upper bound of the step function (HAP-VR Eq. 10). Any
    shape. Linear, 2 x / delta + 1, where x >= 0; quadratic, (x / delta + 1)^2, down to -delta; 0
    below."""
    scaled = difference / delta
    return torch.where(scaled >= 0, 2 * scaled + 1, (scaled.clamp(-1, 0) + 1).square())


def quadlinear_ap(
    similarity: Tensor, labels: Tensor, *, delta: float = 0.05, rho: float = 0.10
) -> Tensor:
    """QuadLinear-AP (HAP-VR Eq. 11): how far negatives reach above positives, as a loss in [0, 1].

    similarity: [..., N], a row per query; labels: same shape, ternary. For positive i of a row,
    with d_j = s_j - s_i, x_i = sum_{j negative} quadlinear(d_j) / (1 + rho * sum_{j positive, j !=
    i} [d_j > 0]) and the row's loss is the mean over i of x_i / (1 + x_i). Rows without a positive
    are skipped in the mean; returns [].

    delta > 0 is the width of the quadratic part, rho >= 0 the weight of positives ranked above. At
    frame level the paper sets rho to 5.
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
        positives = above.masked_fill(others != 1, 0).sum(-1)
        negatives = above.masked_fill(others != -1, 0).sum(-1)
        return negatives / (1 + positives + negatives)

    return mean_of_compared(compare, similarity, labels)


def quantized_ap(similarity: Tensor, labels: Tensor, *, num_bins: int = 20) -> Tensor:
    """Quantised AP of DIR (Revaud et al., ICCV 2019): precision and recall over soft histogram
    bins. num_bins centres are evenly spaced from 1 to 0, both included. An entry is shared between
    its two nearest centres; an entry beyond the ends belongs to the end."""
    rows = widened(similarity)
    width = 1 / (num_bins - 1)
    centres = torch.linspace(1, 0, num_bins, dtype=rows.dtype, device=rows.device)
    distance = (rows.clamp(0, 1).unsqueeze(-1) - centres).abs()
    shares = (1 - distance / width).clamp(min=0).masked_fill((labels == 0).unsqueeze(-1), 0)

    positives = shares.masked_fill((labels <= 0).unsqueeze(-1), 0).sum(-2)
    ranked = shares.sum(-2).cumsum(-1)
    # Empty leading bins have neither entries nor recall; 1 keeps their division defined.
    precision = positives.cumsum(-1) / torch.where(ranked > 0, ranked, 1)
    num_positives = (labels > 0).sum(-1)
    average_precision = (precision * positives).sum(-1) / num_positives.clamp(min=1)
    return mean_where(1 - average_precision, num_positives > 0)


def fast_ap(similarity: Tensor, labels: Tensor, *, num_bins: int = 10) -> Tensor:
    """FastAP (Cakir et al., CVPR 2019): AP by soft histograms of distances, num_bins intervals. On
    similarities, which are affine in the squared distances of the paper, sum_l H+_l h+_l / (N+ H_l)
    is `quantized_ap` with a centre more than intervals; only the customary resolution differs."""
    return quantized_ap(similarity, labels, num_bins=num_bins + 1)


def blackbox_ap(
    similarity: Tensor, labels: Tensor, *, strength: float = 4.0, margin: float = 0.02
) -> Tensor:
    """BlackBox-AP (Rolinek et al., CVPR 2020): exact ranks, differentiated through an
    interpolation. Half the margin is subtracted from positives, and half is added to negatives.
    strength is the paper's lambda, the size of the interpolation step. Ties rank in row order."""
    rows = widened(similarity)
    shifted = rows - labels.to(rows.dtype) * (margin / 2)
    ranks: Tensor = BlackboxRanks.apply(shifted, labels != 0, strength)
    ranks_among_positives: Tensor = BlackboxRanks.apply(shifted, labels > 0, strength)
    return mean_over_positives(1 - ranks_among_positives / ranks.clamp(min=1), labels)


RANKING_LOSSES: Mapping[LossName, Callable[..., Tensor]] = {
    "mae": mean_absolute_error,
    "mse": mean_squared_error,
    "contrastive": contrastive,
    "triplet": triplet,
    "circle": circle,
    "fast_ap": fast_ap,
    "dir": quantized_ap,
    "blackbox_ap": blackbox_ap,
    "smooth_ap": smooth_ap,
    "quadlinear_ap": quadlinear_ap,
}
"""The rows of HAP-VR Table 2."""


def ranking_loss(
    name: LossName, options: Mapping[str, Option]
) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of that name with its options set. Raises ConfigError for an option that it does not
    have."""
    allowed = loss_options(name)
    if unknown := sorted(options.keys() - allowed.keys()):
        raise ConfigError(
            f"{name}: unknown option {', '.join(unknown)}; allowed are "
            f"{', '.join(allowed) or 'none'}"
        )

    return partial(RANKING_LOSSES[name], **options)


def loss_options(name: LossName) -> dict[str, object]:
    """The options of a registered loss and their defaults."""
    parameters = inspect.signature(RANKING_LOSSES[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
