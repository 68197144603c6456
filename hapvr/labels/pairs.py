"""Which clips of a training batch belong together, from the videos they were cut from."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from hapvr.errors import ArgumentError


def video_pair_labels(sources: Sequence[Collection[str]]) -> Tensor:
    """Labels of all pairs of clips: 1 if they share a source video, -1 if not (S2VS section 3.3).

    sources: for each of B clips the ids of the videos it shows, two for video-in-video. Returns int8 [B, B], symmetric,
    1 on the diagonal.
    """
    for position, ids in enumerate(sources):
        if isinstance(ids, str) or not ids:
            raise ArgumentError(
                f"sources: clip {position} has {ids!r}, wanted a non-empty collection of video ids such as ('v1',)"
            )
    known = {video: column for column, video in enumerate(sorted({video for ids in sources for video in ids}))}
    shows = torch.zeros(len(sources), len(known), dtype=torch.int32)
    for position, ids in enumerate(sources):
        shows[position, [known[video] for video in ids]] = 1
    return torch.where(shows @ shows.T > 0, 1, -1).to(torch.int8)


def positive_pairs(labels: Tensor, *, include_self: bool = False) -> Tensor:
    """Row and column of each positive pair, row by row. labels: int8 [B, B] ternary. Returns int64 [P, 2].

    include_self: whether a clip paired with itself counts, as it does in the HAP-VR release.
    """
    if labels.ndim != 2 or labels.shape[0] != labels.shape[1]:
        raise ArgumentError(f"labels: got shape {tuple(labels.shape)}, wanted a square matrix [clips, clips]")
    pairs = (labels > 0).nonzero()
    return pairs if include_self else pairs[pairs[:, 0] != pairs[:, 1]]
