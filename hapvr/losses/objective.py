"""The training objective: named, weighted terms over one batch (HAP-VR Eq. 15), among them the base loss of S2VS: InfoNCE,
self-similarity, hard negatives (S2VS 3.4, Eq. 1 to 3).

Similarities are [..., N] in [0, 1], a row per query, labels ternary of the same shape. Losses return [].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.losses.ranking import mean_over_positives, mean_where, ranking_loss, widened
from hapvr.losses.settings import ObjectiveSettings, Option
from hapvr.model.family import Similarities

FRAME_OPTIONS: Mapping[str, Option] = {"rho": 5.0}
"""HAP-VR's options of quadlinear_ap at frame level, where they differ from the function's own."""


class Objective:
    """The loss of a batch, its terms in the order of Eq. 15; both halves of SSHN share a weight.

    Raises ConfigError for an option that a loss does not have.
    """

    def __init__(self, settings: ObjectiveSettings) -> None:
        self.settings = settings
        self._video_loss = ranking_loss(settings.video_ap_loss, settings.video_ap_options)
        self._frame_loss = ranking_loss("quadlinear_ap", {**FRAME_OPTIONS, **settings.frame_ap_options})

    def __call__(
        self,
        similarities: Similarities,
        labels: Tensor,
        frame_labels: Tensor | None = None,
        pair_index: Tensor | None = None,
        *,
        first_row: int = 0,
        add_up: Callable[[Tensor], Tensor] = lambda value: value,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Total [], to be minimised, and unweighted terms [] by name, for all pairs of B clips.

        labels: int8 [B, B] ternary, 1 on the diagonal. pair_index: int64 [P, 2], row and column of the positive video
        pairs. frame_labels: int8 [P, T, T'], their ternary pseudo labels. Only the frame similarities of these pairs are
        gathered and ranked. Both may be None if frame_ap_weight is 0. The video similarities are always of all
        rows; where several processes share a batch, the frame similarities [b, B, T, T'] and the pairs are of b rows, from
        first_row on. add_up: [] -> [], the sum over all processes, which passes gradients on.
        """
        video = similarities.video / 2 + 0.5
        others = without_self(labels)
        lists = (1, -1) if self.settings.across_queries else labels.shape
        ranked = video.reshape(lists), others.reshape(lists)

        def rank_frames() -> Tensor:
            assert frame_labels is not None  # of weight 0 without them
            assert pair_index is not None
            different = pair_index[:, 0] != pair_index[:, 1]
            pairs, row_labels = pair_index[different], frame_labels[different]
            rows = similarities.frame[pairs[:, 0] - first_row, pairs[:, 1]]
            ranked_rows = (row_labels > 0).any(-1).sum().float()
            part = ranked_rows / add_up(ranked_rows).clamp(min=1)
            return add_up(self._frame_loss(rows, row_labels) * part)

        settings = self.settings
        weighted: tuple[tuple[str, float, Callable[[], Tensor]], ...] = (
            ("frame_ap", settings.frame_ap_weight, rank_frames),
            ("video_ap", settings.video_ap_weight, lambda: self._video_loss(*ranked)),
            ("infonce", settings.infonce_weight, lambda: infonce(*ranked, temperature=settings.temperature)),
            ("hard_negative", settings.hard_negative_weight, lambda: hard_negative(video, others)),
            ("self_similarity", settings.hard_negative_weight, lambda: self_similarity(video, labels)),
            ("regularization", settings.regularization_weight, lambda: add_up(similarities.regularization)),
        )
        terms = {name: loss() for name, weight, loss in weighted if weight > 0}
        total = sum((weight * terms[name] for name, weight, _ in weighted if weight > 0), start=video.new_zeros(()))
        return total, terms


def without_self(labels: Tensor) -> Tensor:
    """The labels with 0 (ignored) on the diagonal, where a clip meets itself. labels: [N, N] ternary."""
    return labels * (1 - torch.eye(len(labels), dtype=labels.dtype, device=labels.device))


def infonce(similarity: Tensor, labels: Tensor, *, temperature: float) -> Tensor:
    """InfoNCE (S2VS Eq. 1): each positive against the query's negatives.

    For a square matrix, `without_self` removes the self pairs. With e = exp(s / temperature), the loss of a row is the mean
    over its positives i of -log(e_i / (e_i + sum_{j negative} e_j)). The mean over rows with a positive, as in the release;
    Eq. 2 is the mean over all positive pairs, which differs if rows have different numbers of positives.
    """
    logits = widened(similarity) / temperature
    # The finite floor gives a row without negatives a loss and a gradient of 0 instead of NaN.
    floor = torch.finfo(logits.dtype).min
    negatives = logits.masked_fill(labels >= 0, floor).logsumexp(-1, keepdim=True)
    return mean_over_positives(F.softplus(negatives - logits), labels)


def self_similarity(similarity: Tensor, labels: Tensor, *, floor: float = 1e-3) -> Tensor:
    """First half of SSHN (S2VS Eq. 3): mean of -log(s_kk), because a clip should match itself.

    similarity: [B, B], clamped below at `floor`; labels: [B, B], read for its shape only.
    """
    return -widened(similarity).diagonal().clamp(min=floor).log().mean()


def hard_negative(similarity: Tensor, labels: Tensor, *, floor: float = 1e-3) -> Tensor:
    """Second half of SSHN (S2VS Eq. 3): mean of -log(1 - s_kj) for the most similar negative j of each row k.

    1 - s is clamped below at `floor`. Rows without a negative are left out.
    """
    rows = widened(similarity)
    negative = labels < 0
    valid = negative.any(-1)
    hardest = rows.masked_fill(~negative, -math.inf).amax(-1).masked_fill(~valid, 0)
    return mean_where(-(1 - hardest).clamp(min=floor).log(), valid)
