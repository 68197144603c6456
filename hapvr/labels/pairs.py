"""Which clips of a training batch belong together, from the videos they were cut from."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from hapvr.errors import ArgumentError

VideoPairs = Collection[tuple[str, str]]
"""Pairs of different videos, by id; the order of the two says nothing."""


def video_pair_labels(sources: Sequence[Collection[str]], mined: VideoPairs = ()) -> Tensor:
    """Labels of all pairs of clips: 1 if they share a source video, -1 if not (S2VS section 3.3).

    sources: for each of B clips the ids of the videos it shows, two for video-in-video. mined: pairs of videos that show
    the same footage or incident. Clips of such a pair are labelled 1 too; clips that only a chain of pairs joins are
    labelled 0, which the losses ignore. Returns int8 [B, B], symmetric, 1 on the diagonal.
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
    labels = torch.where(shows @ shows.T > 0, 1, -1).to(torch.int8)
    inside = [(known[one], known[other]) for one, other in mined if one in known and other in known]
    if not inside:
        return labels
    joined = torch.eye(len(known), dtype=torch.int32)
    for one, other in inside:
        joined[one, other] = joined[other, one] = 1
    direct = shows @ joined @ shows.T > 0
    for _ in range(len(known).bit_length()):  # each round doubles the length of the chains
        joined = (joined @ joined).clamp(max=1)
    chained = shows @ joined @ shows.T > 0
    labels[chained] = 0
    labels[direct] = 1
    return labels


def positive_pairs(labels: Tensor, *, include_self: bool = False) -> Tensor:
    """Row and column of each positive pair, row by row. labels: int8 [B, B] ternary. Returns int64 [P, 2].

    include_self: whether a clip paired with itself counts, as it does in the HAP-VR release.
    """
    if labels.ndim != 2 or labels.shape[0] != labels.shape[1]:
        raise ArgumentError(f"labels: got shape {tuple(labels.shape)}, wanted a square matrix [clips, clips]")
    pairs = (labels > 0).nonzero()
    return pairs if include_self else pairs[pairs[:, 0] != pairs[:, 1]]
