"""Batches of clips: masks, clips too short for the comparator, groups of videos of similar lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

Mask = Tensor | None
"""Which frames of clips are real: bool [N, T], True first and at least once per clip; None: all are."""

MapMask = tuple[Tensor, Tensor]
"""The real rows, bool [P, t], and the real columns, bool [P, t'], of P maps."""


def zero_padding(clips: Tensor, mask: Mask) -> Tensor:
    """Clips [N, T, R, D] with zeros as padding, which may hold anything before."""
    return clips if mask is None else clips.masked_fill(~mask[:, :, None, None], 0)


def pad_to_min_frames(similarity: Tensor, mask: Mask, *, dim: int, min_frames: int) -> tuple[Tensor, Mask]:
    """Double clips of fewer real frames until they have `min_frames`; with 4, clips of 1, 2, 3 frames get 4, 4, 6.

    similarity: frame similarities [Q, N, T, T']; dim: 2 for queries with mask [Q, T], 3 for references with mask
    [N, T']. Returns the longer similarity and mask. Whole repetitions, as in the releases, keep all frames equally
    frequent, and a clip's score does not depend on how far it was padded.
    """
    size = similarity.shape[dim]
    all_real = torch.full((similarity.shape[dim - 2],), size, device=similarity.device)
    targets = lengths = all_real if mask is None else mask.sum(1)
    while bool((targets < min_frames).any()):
        targets = torch.where(targets < min_frames, 2 * targets, targets)
    if targets is lengths:
        return similarity, mask
    position = torch.arange(max(size, int(targets.max())), device=similarity.device)
    source = torch.where(targets[:, None] > lengths[:, None], position % lengths[:, None], position)
    shape = list(similarity.shape)
    shape[dim] = len(position)
    index = source.clamp(max=size - 1)
    index = index[:, None, :, None] if dim == 2 else index[None, :, None, :]
    return similarity.gather(dim, index.expand(shape)), None if mask is None else position < targets[:, None]


def halve_mask(mask: Tensor) -> Tensor:
    """The mask after pooling of frames in pairs: real if both are. [N, T] -> [N, T // 2]; an odd last frame is dropped."""
    even = mask.shape[1] // 2 * 2
    return mask[:, 0:even:2] & mask[:, 1:even:2]


def halve_map_mask(mask: MapMask | None) -> MapMask | None:
    """`halve_mask` of rows and columns."""
    return None if mask is None else (halve_mask(mask[0]), halve_mask(mask[1]))


def apply_map_mask(maps: Tensor, mask: MapMask | None) -> Tensor:
    """The maps with zeros where they are not real. maps: [P, C, t, t']."""
    if mask is None:
        return maps
    rows, columns = mask
    return maps * (rows[:, None, :, None] & columns[:, None, None, :])


def replicate_edges(maps: Tensor, mask: MapMask | None) -> Tensor:
    """The maps with their last real row and column repeated over the padding. maps: [P, C, t, t']."""
    if mask is None:
        return maps
    for dim, real in ((2, mask[0]), (3, mask[1])):
        position = torch.arange(maps.shape[dim], device=maps.device)
        index = position.minimum(real.sum(1, keepdim=True) - 1).clamp(min=0)  # a strip may hold padding alone
        index = index[:, None, :, None] if dim == 2 else index[:, None, None, :]
        maps = maps.gather(dim, index.expand(maps.shape))
    return maps


GROUP_FRAMES = {"cpu": 256, "cuda": 2**13}
"""Frames of videos that are scored together, with their padding; a longer video is scored alone."""


def padded_groups(videos: Sequence[Tensor]) -> Iterator[tuple[list[int], Tensor, Mask]]:
    """Videos [T, R, D] of similar lengths together: which they are, as clips [N, T, R, D] padded with 0, and their mask."""
    order = sorted(range(len(videos)), key=lambda index: len(videos[index]))
    while order:
        most = GROUP_FRAMES.get(videos[order[0]].device.type, 2**13)
        size = next((n for n, index in enumerate(order) if (n + 1) * len(videos[index]) > most), len(order))
        group, order = order[: max(size, 1)], order[max(size, 1) :]
        clips = pad_sequence([videos[index] for index in group], batch_first=True)
        lengths = torch.tensor([len(videos[index]) for index in group], device=clips.device)
        equal = len(videos[group[0]]) == clips.shape[1]
        yield group, clips, None if equal else torch.arange(clips.shape[1], device=clips.device) < lengths[:, None]
