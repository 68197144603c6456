"""Distractor discrimination: a confidence per frame that it shows content, from its pooled vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hapvr.model.settings import COMPARATOR_STEP
from hapvr.model.vvs.settings import DistractorSettings

KEPT_CONFIDENCE = 0.5
"""Frames of a confidence above it are embedded."""


class DistractorNetwork(nn.Module):
    """Three linear layers. pooled_dims: C, values of a pooled vector before whitening."""

    def __init__(self, settings: DistractorSettings, *, pooled_dims: int) -> None:
        super().__init__()
        first, second = settings.hidden
        self.temperature = settings.temperature
        self.layer1 = nn.Linear(pooled_dims, first)
        self.layer2 = nn.Linear(first, second)
        self.layer3 = nn.Linear(second, 1)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, pooled: Tensor) -> Tensor:
        """pooled: [..., C] unit vectors. Returns logits [...] over the temperature; their sigmoid is the confidence."""
        hidden = self.dropout(torch.relu(self.layer1(pooled)))
        hidden = self.dropout(torch.relu(self.layer2(hidden)))
        logits: Tensor = self.layer3(hidden).squeeze(-1)
        return logits / self.temperature


def doubled(frames: Tensor) -> Tensor:
    """The frames, repeated as a whole while they are fewer than four. frames: [T, ...], T >= 1."""
    while len(frames) < COMPARATOR_STEP:
        frames = torch.cat([frames, frames])
    return frames
