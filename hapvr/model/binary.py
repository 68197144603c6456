"""Binary codes of vectors: one bit per value, compared by counting the bits that differ."""

from __future__ import annotations

import torch
from torch import Tensor

BITS = 8
_ONES = torch.tensor([number.bit_count() for number in range(2**BITS)], dtype=torch.int32)


def binary_codes(vectors: Tensor, centre: Tensor) -> Tensor:
    """The signs of vectors [N, D] less their centre [D], as packed bits: uint8 [N, ceil(D / 8)]."""
    bits = (vectors > centre).to(torch.uint8)
    padded = torch.nn.functional.pad(bits, (0, -vectors.shape[1] % BITS))
    return (padded.view(len(vectors), -1, BITS) << torch.arange(BITS, dtype=torch.uint8)).sum(-1).to(torch.uint8)


def hamming_similarity(query: Tensor, reference: Tensor, *, dims: int) -> Tensor:
    """float32 [Q, N] in [-1, 1]: 1 - 2 h / D, h the bits in which codes [Q, b] and [N, b] of D values differ."""
    ones = _ONES.to(query.device)
    distances = torch.stack([ones[(row ^ reference).int()].sum(-1) for row in query])
    return 1 - 2 * distances.float() / dims
