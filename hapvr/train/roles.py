"""Which clips of a batch are anchors, which their positives, and which only negatives: clips of one item stand in a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hapvr.config import TrainConfig


@dataclass(frozen=True)
class ClipRoles:
    """An item is `anchors` clips, then `positives` of them, then `negatives` that show none of it.

    Of views these are the weak and the strong views of a video; of labelled pairs the one video, the other and distractors.
    """

    anchors: int
    positives: int
    negatives: int = 0

    @classmethod
    def of(cls, settings: TrainConfig) -> ClipRoles:
        """The items of a training."""
        pairs = settings.labelled_pairs
        if pairs is not None:
            return cls(1, 1, pairs.distractors_per_pair if pairs.distractors else 0)
        return cls(settings.weak_views, settings.strong_views)

    @property
    def num_clips(self) -> int:
        """Of an item."""
        return self.anchors + self.positives + self.negatives

    @property
    def num_keys(self) -> int:
        """Clips of an item that are no anchors."""
        return self.positives + self.negatives

    def is_anchor(self, num_clips: int, device: torch.device) -> Tensor:
        """bool [num_clips] of a batch."""
        return torch.arange(num_clips, device=device) % self.num_clips < self.anchors

    def pairs(self, num_clips: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Rows of anchor and positive of every pair of the two in one item; an item's anchors come first."""
        first = torch.arange(0, num_clips, self.num_clips, device=device)
        anchor = torch.arange(self.anchors, device=device).repeat_interleave(self.positives)
        positive = torch.arange(self.anchors, self.anchors + self.positives, device=device).repeat(self.anchors)
        return (first[:, None] + anchor).flatten(), (first[:, None] + positive).flatten()
