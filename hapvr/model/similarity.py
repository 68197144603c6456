"""From regions to one number per pair of videos: TopK-Chamfer similarity (HAP-VR section 3.3.1).

Similarities lie in [-1, 1], and higher is closer. Masks are bool, True = real. Of n real entries
TopK-Chamfer takes the mean of the K = max(round(rate * n), 1) largest: rate 0 is Chamfer (the
maximum), rate 1 is average pooling. With clips of 28 frames the default rates give K = 1 at both
levels, so training sees plain Chamfer; top-k acts on long videos only.
"""

import math
from typing import Any

import torch
from torch import Tensor

MAX_BLOCK_FRAMES = {"cpu": 112, "cuda": 640}
"""Frames on each side of a block of region similarities that is in memory at once; on a CPU it
stays near the cache."""


def topk_mean(values: Tensor, *, rate: float, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Mean of the K largest real entries along `dim`, K = max(round(rate * number of real entries),
    1). Halves round to even, as in the release. values: any shape; mask: bool, broadcastable to
    values. Returns values without `dim`; -inf if no entry is real."""
    size = values.shape[dim]
    most = max(round(rate * size), 1)
    if mask is not None:
        values = values.masked_fill(~mask, -math.inf)
    if most == 1:
        # amax is several times as fast, but it shares the gradient among equal entries, and keeps
        # its whole input for that.
        if torch.is_grad_enabled() and values.requires_grad:
            return values.max(dim).values
        return values.amax(dim)
    if mask is None:
        if most == size:
            return values.mean(dim)
        return values.topk(most, dim, sorted=False).values.mean(dim)

    # Rows have different numbers of real entries, so K differs: take the largest K, then drop what
    # a row does not need. In float64, rate * n rounds as it does in Python.
    num_real = mask.expand(values.shape).sum(dim, keepdim=True)
    counts = (num_real.double() * rate).round().clamp(min=1).long()
    largest = values.topk(int(counts.max()), dim).values.movedim(dim, -1)
    unwanted = torch.arange(largest.shape[-1], device=values.device) >= counts.movedim(dim, -1)
    return largest.masked_fill(unwanted, 0).sum(-1) / counts.squeeze(dim).to(values.dtype)


def chamfer(
    similarity: Tensor,
    *,
    rate: float = 0.0,
    symmetric: bool = False,
    row_mask: Tensor | None = None,
    column_mask: Tensor | None = None,
) -> Tensor:
    """TopK-Chamfer (HAP-VR Eq. 3 and 5): per row the mean of the K largest columns, then the mean
    over rows. similarity: [..., n, m]; row_mask: bool [..., n]; column_mask: bool [..., m].
    symmetric: the mean of both directions, each with the same rate (ViSiL's symmetric Chamfer).
    Returns [...]."""
    if symmetric:
        forth = chamfer(similarity, rate=rate, row_mask=row_mask, column_mask=column_mask)
        back = chamfer(
            similarity.transpose(-1, -2), rate=rate, row_mask=column_mask, column_mask=row_mask
        )
        return (forth + back) / 2

    columns = None if column_mask is None else column_mask.unsqueeze(-2)
    best = topk_mean(similarity, rate=rate, mask=columns)
    if row_mask is None:
        return best.mean(-1)
    row_mask = row_mask.expand(best.shape)
    return best.masked_fill(~row_mask, 0).sum(-1) / row_mask.sum(-1).clamp(min=1).to(best.dtype)


def frame_similarity(
    query: Tensor, reference: Tensor, *, rate: float, symmetric: bool = False
) -> Tensor:
    """Frame similarities of all pairs of videos by spatial TopK-Chamfer over regions (HAP-VR Eq.
    3). query: [Q, T, R, D]; reference: [N, T', R', D]. Returns [Q, N, T, T'] in float32 or wider.
    The products [Q, N, T, T', R, R'] are computed in blocks of MAX_BLOCK_FRAMES and are not kept
    for the backward pass, which needs the places of the K largest alone. If query and reference are
    the same tensor, as in training, each product serves both (a, b) and (b, a)."""
    most = MAX_BLOCK_FRAMES.get(query.device.type, 640)
    rows = torch.split(query.flatten(0, 1), most)
    columns = torch.split(reference.flatten(0, 1), most)
    with_itself = query is reference
    blocks: list[list[Any]] = [[None] * len(columns) for _ in rows]
    for j, right in enumerate(columns):
        # regions come first, so that reductions over an axis of them run along contiguous frames
        of_right = right.transpose(0, 1).reshape(-1, right.shape[2]).T
        for i, left in enumerate(rows[: j + 1] if with_itself else rows):
            products = (left.flatten(0, 1) @ of_right).view(*left.shape[:2], right.shape[1], -1)
            blocks[i][j] = reduce_regions(products, rate=rate, symmetric=symmetric)
            if with_itself and i < j:
                back = blocks[i][j] if symmetric else _mean_of_best(products, rate=rate, dim=1)
                blocks[j][i] = back.T

    flat = torch.cat([torch.cat(row, dim=1) for row in blocks])
    return flat.view(*query.shape[:2], *reference.shape[:2]).transpose(1, 2)


def reduce_regions(products: Tensor, *, rate: float, symmetric: bool) -> Tensor:
    """`chamfer` over dimensions 1 and 2: [n, R, R', m] -> [n, m] in float32 or wider, as rounding
    means changes rankings."""
    forth = _mean_of_best(products, rate=rate, dim=2)
    return (forth + _mean_of_best(products, rate=rate, dim=1)) / 2 if symmetric else forth


def _mean_of_best(products: Tensor, *, rate: float, dim: int) -> Tensor:
    """Top-k over one axis of regions, and the mean over the other."""
    return topk_mean(products, rate=rate, dim=dim).mean(
        1, dtype=torch.promote_types(products.dtype, torch.float32)
    )
