"""Distractor frames inserted into clips, with the label of every frame."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Injection:
    """Where the frames of a longer clip come from, equal for all clips of a batch.

    source: int64 [T + n], the frame of the clip, or -1 for an inserted one.
    """

    source: Tensor

    @property
    def inserted(self) -> Tensor:
        """bool [T + n]: the frames that do not belong to the clip."""
        return self.source < 0

    def apply(self, clips: Tensor, distractors: Tensor) -> Tensor:
        """Insert frames into clips. clips: [N, T, ...]; distractors: [N, n, ...]. Returns [N, T + n, ...]."""
        source = self.source.to(clips.device)
        longer = clips[:, source.clamp(min=0)]
        longer[:, source < 0] = distractors.to(longer.dtype)
        return longer

    def labels(self, own: Tensor) -> Tensor:
        """Labels of all frames. own: int8 [N, T], of the clips' frames. Returns int8 [N, T + n], 0 for inserted ones."""
        source = self.source.to(own.device)
        return own[:, source.clamp(min=0)].masked_fill(source < 0, 0)


def block_injection(num_frames: int, count: int, position: int) -> Injection:
    """`count` frames in one piece before frame `position`; position num_frames puts them behind the last."""
    frames = torch.arange(num_frames)
    inserted = torch.full((count,), -1)
    return Injection(torch.cat([frames[:position], inserted, frames[position:]]))


def draw_injection(num_frames: int, rates: tuple[float, float], rng: np.random.Generator) -> Injection:
    """Draw how many frames are inserted and where.

    Their number n is uniform between the two rates of T = num_frames, rounded down, both included; their block stands before
    frame p, uniform in 0 to T - n.
    """
    fewest, most = (int(rate * num_frames) for rate in sorted(rates))
    count = int(rng.integers(fewest, most + 1))
    return block_injection(num_frames, count, int(rng.integers(num_frames - count + 1)))
