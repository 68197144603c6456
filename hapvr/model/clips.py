"""Batches of clips: masks, clips too short for the comparator, videos of any lengths packed one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from hapvr.model.settings import doubled_length

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
    if mask is None:
        length = doubled_length(size, min_frames)
        repeated = torch.arange(length, device=similarity.device) % size
        return similarity if length == size else similarity.index_select(dim, repeated), None
    targets = lengths = mask.sum(1)
    while bool((targets < min_frames).any()):
        targets = torch.where(targets < min_frames, 2 * targets, targets)
    if targets is lengths:
        return similarity, mask
    position = torch.arange(max(size, int(targets.max())), device=mask.device)
    source = torch.where(targets[:, None] > lengths[:, None], position % lengths[:, None], position)
    shape = list(similarity.shape)
    shape[dim] = len(position)
    index = source.clamp(max=size - 1)
    index = index[:, None, :, None] if dim == 2 else index[None, :, None, :]
    return similarity.gather(dim, index.expand(shape)), position < targets[:, None]


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
        index = position.minimum(real.sum(1, keepdim=True) - 1)
        index = index[:, None, :, None] if dim == 2 else index[:, None, None, :]
        maps = maps.gather(dim, index.expand(maps.shape))
    return maps


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much is computed at once. No score depends on it.

    query_frames, reference_frames: frames of the videos that are scored together; a longer video is scored alone.
    product_bytes: region similarities before they are reduced. batch_elements: frame similarities in a comparator batch of
    several pairs. strip_elements: frame similarities in a strip of one large pair. workers: threads that compute pairs
    independently, with one core each; 0: one thread, and torch spreads each operation over the cores.
    """

    query_frames: int = 1024
    reference_frames: int = 256
    product_bytes: int = 2**20
    batch_elements: int = 2**16
    strip_elements: int = 2**21
    workers: int = 0

    @classmethod
    def for_device(cls, device: torch.device) -> Limits:
        """Limits for the cores of a processor and their caches, or for the memory of an accelerator."""
        if device.type == "cpu":
            num_threads = torch.get_num_threads()
            return cls(workers=num_threads if num_threads > 1 else 0)
        return cls(
            query_frames=2**13, reference_frames=2**13, product_bytes=2**30, batch_elements=2**23, strip_elements=2**24
        )


@dataclass(frozen=True)
class PackedVideos:
    """Embeddings of videos one after the other. frames: [sum of lengths, R, D]; lengths: frames of each video, >= 1."""

    frames: Tensor
    lengths: tuple[int, ...]

    @classmethod
    def from_videos(cls, videos: Sequence[Tensor]) -> PackedVideos:
        """Pack embeddings [T, R, D] of any lengths T."""
        return cls(torch.cat(list(videos)), tuple(len(video) for video in videos))

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First row of each video."""
        return tuple(accumulate(self.lengths[:-1], initial=0))

    def part(self, first: int, last: int) -> PackedVideos:
        """The videos from `first` to `last` - 1."""
        end = self.starts[last - 1] + self.lengths[last - 1]
        return PackedVideos(self.frames[self.starts[first] : end], self.lengths[first:last])
