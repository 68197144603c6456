"""How TCA tells an anchor's one positive from many negatives, on raw cosines: InfoNCE, circle loss, memory bank (TCA 3.3, 3.4).

similarity: [N, 1 + K] in [-1, 1], a row per anchor, its positive in column 0. usable: bool [N, K], negatives that count;
None: all. A row without negatives has a loss of 0. All return [], the mean over rows.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def contrast_infonce(similarity: Tensor, usable: Tensor | None = None, *, temperature: float) -> Tensor:
    """-log of the softmax of s / tau at the positive (TCA Eq. 3, whose denominator lacks one 1 / tau)."""
    return _first_of(similarity / temperature, usable)


def contrast_circle(
    similarity: Tensor,
    usable: Tensor | None = None,
    *,
    margin: float = 0.25,
    scale: float = 256.0,
    form: Literal["paper", "released"] = "paper",
) -> Tensor:
    """Circle loss (TCA Eq. 4): each similarity is weighed by how far it is from its optimum, as a constant.

    Logits are scale [1 + m - s]+ (s - 1 + m) of a positive and scale [s + m]+ (s - m) of a negative. form: `released` takes
    all columns of row 0 for positives and all columns of the other rows for negatives, as the authors' code does.
    """
    rows, constant = similarity, similarity.detach()
    as_positive = scale * (1 + margin - constant).clamp(min=0) * (rows - (1 - margin))
    as_negative = scale * (constant + margin).clamp(min=0) * (rows - margin)
    positive = torch.zeros_like(rows, dtype=torch.bool)
    if form == "paper":
        positive[:, 0] = True
    else:
        positive[:1] = True
    return _first_of(torch.where(positive, as_positive, as_negative), usable)


def _first_of(logits: Tensor, usable: Tensor | None) -> Tensor:
    """Mean cross-entropy of class 0."""
    if usable is not None:
        left_out = F.pad(~usable, (1, 0), value=False)
        logits = logits.masked_fill(left_out, torch.finfo(logits.dtype).min / 4)
    return -logits.log_softmax(dim=1)[:, 0].mean()


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
