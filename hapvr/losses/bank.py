"""A memory bank: the video vectors of the last steps, as negatives of the next ones (TCA 3.3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NO_VIDEO = -1
"""Stands for a video's number where there is none."""


class MemoryBank(nn.Module):
    """K unit vectors, of which each step replaces the oldest; it starts as normalised Gaussian noise.

    vectors: [K, D]; source_ids: int64 [K, 2], the videos that each vector's clip shows; pointer: the place of the oldest. All are
    buffers, so they are part of a checkpoint.
    """

    vectors: Tensor
    source_ids: Tensor
    pointer: Tensor

    def __init__(self, size: int, *, dims: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.register_buffer("vectors", F.normalize(torch.randn(size, dims, generator=generator), dim=-1))
        self.register_buffer("source_ids", torch.full((size, 2), NO_VIDEO))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.vectors)

    def negatives(self) -> Tensor:
        """[K, D] as they are now; what is added later does not change them."""
        return self.vectors.clone()

    def usable(self, source_ids: Tensor) -> Tensor:
        """bool [N, K]: whether an anchor and a vector of the bank show no video in common. source_ids: int64 [N, 2]."""
        return ~share_a_video(source_ids, self.source_ids)

    @torch.no_grad()
    def add(self, vectors: Tensor, source_ids: Tensor) -> None:
        """Put unit vectors [n, D] of clips that show these videos, int64 [n, 2], in place of the n oldest, n at most K."""
        places = (self.pointer + torch.arange(len(vectors), device=vectors.device)) % len(self)
        self.vectors[places] = vectors.to(self.vectors.dtype)
        self.source_ids[places] = source_ids
        self.pointer.copy_((self.pointer + len(vectors)) % len(self))


def share_a_video(first: Tensor, second: Tensor) -> Tensor:
    """bool [N, M] for clips that show these videos, int64 [N, 2] and [M, 2]."""
    same = first[:, None, :, None] == second[None, :, None, :]
    return (same & (first != NO_VIDEO)[:, None, :, None]).any(-1).any(-1)
