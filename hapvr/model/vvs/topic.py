"""Topic guidance: a weight per frame from how near it is to the whole video, refined along time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.model.vvs.settings import TopicSettings

WIDTHS = (32, 64, 128)
INITIAL_CONSTANT = 0.5
RANDOM_SEED = 0
"""Seed of the random initial state: a function of the number of frames alone, so that embedding a video twice is equal."""


class TopicGuidance(nn.Module):
    """Convolutions along time over the initial state."""

    def __init__(self, settings: TopicSettings) -> None:
        super().__init__()
        self.settings = settings
        if settings.refine:
            self.conv1 = nn.Conv1d(1, WIDTHS[0], 3, padding=1)
            self.conv2 = nn.Conv1d(WIDTHS[0], WIDTHS[1], 3, padding=1)
            self.conv3 = nn.Conv1d(WIDTHS[1], WIDTHS[2], 3, padding=1)
            self.last = nn.Conv1d(WIDTHS[2], 1, 1)
            if settings.hierarchy:
                self.join = nn.Conv1d(sum(WIDTHS) + 1, 1, 1)

    def initial_state(self, means: Tensor) -> Tensor:
        """[N, T, D] means over the regions of each frame -> [N, T], by default cosines with the video's mean frame."""
        if self.settings.initial == "constant":
            return means.new_full(means.shape[:2], INITIAL_CONSTANT)
        if self.settings.initial == "random":
            generator = torch.Generator().manual_seed(RANDOM_SEED)
            return torch.rand(means.shape[1], generator=generator).to(means).expand(means.shape[:2])
        topic = F.normalize(means.mean(1), dim=-1)
        return (F.normalize(means, dim=-1) @ topic.unsqueeze(-1)).squeeze(-1)

    def forward(self, means: Tensor) -> Tensor:
        """means: [N, T, D], of unit regions, not normalised. Returns weights [N, T]."""
        initial = self.initial_state(means)
        return torch.sigmoid(self.logits(initial) / self.settings.temperature) if self.settings.refine else initial

    def logits(self, initial: Tensor) -> Tensor:
        """The refined state before temperature and sigmoid. initial: [N, T]. Returns [N, T]."""
        first = self.conv1(initial.unsqueeze(1))
        second = self.conv2(torch.relu(first))
        third = self.conv3(torch.relu(second))
        refined: Tensor = self.last(torch.relu(third))
        if self.settings.hierarchy:
            refined = self.join(torch.cat([first, second, third, refined], dim=1))
        return refined.squeeze(1)
