"""The training objective: named, weighted terms over one batch (HAP-VR Eq. 15)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from hapvr.errors import ArgumentError
from hapvr.losses.infonce import hard_negative, infonce, self_similarity
from hapvr.losses.labels import count_rows_without_positives, without_self
from hapvr.losses.registry import ranking_loss
from hapvr.losses.settings import ObjectiveSettings, Option
from hapvr.model.network import Similarities
from hapvr.model.similarity import to_unit_interval

FRAME_OPTIONS: Mapping[str, Mapping[str, Option]] = MappingProxyType(
    {"quadlinear_ap": {"rho": 5.0}, "fast_ap": {"lowest": -1.0}, "dir": {"lowest": -1.0}}
)
"""Where a default at frame level is not the loss function's own: HAP-VR's rho, the range of frame similarities."""


@dataclass(frozen=True)
class Share:
    """Which rows of a batch this process compared, where several share one: from `first_row` on.

    add_up: [] -> [], the sum over all processes, through which gradients flow; alone, a process has all rows.
    """

    first_row: int = 0
    add_up: Callable[[Tensor], Tensor] = lambda value: value


@dataclass(frozen=True)
class ObjectiveOutput:
    """total: [], what to minimise; terms: unweighted values [] by name; counts: rows each term ranked and left out."""

    total: Tensor
    terms: dict[str, Tensor]
    counts: dict[str, int]


ALL = Share()
"""The share of a process that compares the whole batch."""


class Objective:
    """Computes `ObjectiveOutput` of a batch; it has settings only, no parameters.

    Raises ConfigError for a loss or an option that does not exist.
    """

    def __init__(self, settings: ObjectiveSettings) -> None:
        self.settings = settings
        self._video_loss = ranking_loss(self.settings.video_ap_loss, self.settings.video_ap_options)
        frame_loss = self.settings.frame_ap_loss
        frame_options = {**FRAME_OPTIONS.get(frame_loss, {}), **self.settings.frame_ap_options}
        self._frame_loss = ranking_loss(frame_loss, frame_options)

    def weights(self) -> dict[str, float]:
        """The weight of each term, in the order of Eq. 15; both halves of SSHN share one."""
        settings = self.settings
        return {
            "frame_ap": settings.frame_ap_weight,
            "video_ap": settings.video_ap_weight,
            "infonce": settings.infonce_weight,
            "hard_negative": settings.hard_negative_weight,
            "self_similarity": settings.hard_negative_weight,
            "regularization": settings.regularization_weight,
        }

    def __call__(
        self,
        similarities: Similarities,
        labels: Tensor,
        frame_labels: Tensor | None = None,
        pair_index: Tensor | None = None,
        share: Share = ALL,
    ) -> ObjectiveOutput:
        """Total and terms for all pairs of B clips.

        labels: int8 [B, B] ternary, 1 on the diagonal; frame_labels: int8 [P, T, T'] ternary pseudo labels of the
        positive video pairs that pair_index, int64 [P, 2], names by (row, column). Only the frame similarities of those
        pairs are gathered and ranked. Both may be None if frame_ap_weight is 0. share: where frame similarities are of
        some rows only, [b, B, T, T'], as are the pairs; video similarities are of all. Raises ArgumentError for
        shapes that disagree.
        """
        video = to_unit_interval(similarities.video)
        if video.shape != labels.shape or labels.ndim != 2 or labels.shape[0] != labels.shape[1]:
            raise ArgumentError(
                f"labels: got shape {tuple(labels.shape)} for video similarities {tuple(video.shape)}, "
                "wanted one square matrix [clips, clips] for both"
            )
        others = without_self(labels)
        ranked = labels if self.settings.include_self else others
        compute: dict[str, Callable[[], Tensor]] = {
            "video_ap": lambda: self._video_loss(video, ranked),
            "infonce": lambda: infonce(video, others, temperature=self.settings.temperature),
            "hard_negative": lambda: hard_negative(video, others),
            "self_similarity": lambda: self_similarity(video, labels),
            "regularization": lambda: share.add_up(similarities.regularization),
        }
        counts = {"queries": len(labels), "queries_without_positives": count_rows_without_positives(ranked)}
        if self.settings.frame_ap_weight > 0:
            rows, row_labels = self._frame_rows(similarities.frame, frame_labels, pair_index, share.first_row)
            num_rows, without = row_labels[..., 0].numel(), count_rows_without_positives(row_labels)
            ranked_rows = torch.tensor(float(num_rows - without), device=video.device)
            part = ranked_rows / share.add_up(ranked_rows).clamp(min=1)
            compute["frame_ap"] = lambda: share.add_up(self._frame_loss(rows, row_labels) * part)
            counts |= {"frame_rows": num_rows, "frame_rows_without_positives": without}
        terms = {name: compute[name]() for name, weight in self.weights().items() if weight > 0}
        total = sum((self.weights()[name] * term for name, term in terms.items()), start=video.new_zeros(()))
        return ObjectiveOutput(total=total, terms=terms, counts=counts)

    def _frame_rows(
        self, frame: Tensor, frame_labels: Tensor | None, pair_index: Tensor | None, first_row: int
    ) -> tuple[Tensor, Tensor]:
        if frame_labels is None or pair_index is None:
            raise ArgumentError(
                f"frame_labels, pair_index: wanted both, as frame_ap_weight is {self.settings.frame_ap_weight}; "
                "make them with hapvr.labels, or set the weight to 0"
            )
        wanted = (len(pair_index), *frame.shape[2:])
        if pair_index.ndim != 2 or pair_index.shape[1] != 2 or tuple(frame_labels.shape) != wanted:
            raise ArgumentError(
                f"frame_labels: got {tuple(frame_labels.shape)} with pair_index {tuple(pair_index.shape)}, "
                f"wanted {wanted} with (pairs, 2)"
            )
        if not self.settings.include_self:
            different = pair_index[:, 0] != pair_index[:, 1]
            pair_index, frame_labels = pair_index[different], frame_labels[different]
        return frame[pair_index[:, 0] - first_row, pair_index[:, 1]], frame_labels
