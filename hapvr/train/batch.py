"""A training batch, and the labels between its clips."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

STRENGTHS: tuple[Literal["weak", "strong"], ...] = ("weak", "strong")
"""The views of a video in a batch: the weak one is its anchor, the strong one its positive."""


@dataclass  # not frozen, as Fabric refuses to move those
class Batch:
    """B clips in items of `clips_per_item`: an anchor, its positive, and its negatives, if any."""

    regions: Tensor
    """[b, T, R, D], of the clips of this process, with the frame extras that the family reads"""
    labels: Tensor
    """int8 [B, B], 1 where two clips show one video or a labelled pair, -1 elsewhere"""
    frame_labels: Tensor | None
    """int8 [P, T, T], pseudo labels of the pairs in `pair_index`; None: there are none"""
    pair_index: Tensor
    """int64 [P, 2], the positive pairs whose rows belong to this process, self pairs included"""
    first_row: int
    """the first of the b clips that this process embeds"""
    video_ids: tuple[str, ...]
    """of all B clips"""
    source_ids: Tensor
    """int64 [B, 2], the videos that each clip shows, its own and its host (-1: none), numbered
    alike in all batches"""
    num_frames: Tensor | None = None
    """int64 [B], the number of frames of each clip before it repeats itself or is padded; None: all
    count"""
    clips_per_item: int = len(STRENGTHS)
    easy_frames: Tensor | None = None
    """[A, E, R + k, D], frames without content that may be inserted into each of A anchors; E = 0:
    none are inserted; None: the training takes those of this batch"""

    @property
    def anchor_rows(self) -> Tensor:
        """int64 [A], the anchors among the clips of this process; its positive follows each."""
        return torch.arange(0, len(self.regions), self.clips_per_item, device=self.regions.device)

    @property
    def negative_rows(self) -> Tensor:
        """int64 [A * n], the negatives of these anchors among the clips of this process."""
        rows = torch.arange(len(self.regions), device=self.regions.device)
        return rows[rows % self.clips_per_item >= len(STRENGTHS)]

    @property
    def frame_mask(self) -> Tensor | None:
        """bool [B, T], the frames that count; None: all do."""
        if self.num_frames is None:
            return None
        frames = torch.arange(self.regions.shape[1], device=self.regions.device)
        return frames < self.num_frames[:, None]


def video_pair_labels(sources: Sequence[Collection[str]]) -> Tensor:
    """Labels of all pairs of clips: 1 if they share a source video, -1 if not (S2VS section 3.3).

    sources: for each of B clips the ids of the videos it shows, two for video-in-video. Returns
    int8 [B, B], symmetric, 1 on the diagonal."""
    videos = sorted({video for ids in sources for video in ids})
    shows = torch.tensor([[video in ids for video in videos] for ids in sources]).int()
    return (shows @ shows.T > 0).to(torch.int8) * 2 - 1
