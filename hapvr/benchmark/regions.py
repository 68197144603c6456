"""Frame similarities of stacked videos: one matrix product for all their regions, reduced while it is in the cache."""

from __future__ import annotations

import torch
from torch import Tensor

from hapvr.model.network import NetworkSettings
from hapvr.model.products import multiplier
from hapvr.model.similarity import topk_count, topk_mean


def stacked_frame_similarity(query: Tensor, reference: Tensor, *, settings: NetworkSettings, max_bytes: int) -> Tensor:
    """`frame_similarity` of two stacks (HAP-VR Eq. 3), in float32 whatever their dtype.

    query: [n, R, D]; reference: [m, R', D]. Returns [n, m]. At most `max_bytes` of similarities of regions are made at once, or
    those of one query frame; means over regions are taken in float32, since rounding them would change rankings.
    """
    num_regions, dims = query.shape[1:]
    bytes_per_frame = num_regions * reference.shape[0] * reference.shape[1] * query.element_size()
    step = max(max_bytes // bytes_per_frame, 1)
    multiply = multiplier(reference.permute(1, 0, 2).reshape(-1, dims), num_rows=min(step, len(query)) * num_regions)
    frame = query.new_empty((len(query), len(reference)), dtype=torch.float32)
    for start in range(0, len(query), step):
        chunk = query[start : start + step]
        products = multiply(chunk.reshape(-1, dims)).view(len(chunk), num_regions, reference.shape[1], -1)
        frame[start : start + step] = _reduce_regions(products, settings)
    return frame


def _reduce_regions(products: Tensor, settings: NetworkSettings) -> Tensor:
    """TopK-Chamfer over regions. products: [n, R, R', m]. Returns float32 [n, m]."""
    if settings.spatial_pooling == "max":
        return products.amax((1, 2)).float()
    forth = _best(products, rate=settings.spatial_rate, dim=2).mean(1, dtype=torch.float32)
    if not settings.symmetric_chamfer:
        return forth
    return (forth + _best(products, rate=settings.spatial_rate, dim=1).mean(1, dtype=torch.float32)) / 2


def _best(products: Tensor, *, rate: float, dim: int) -> Tensor:
    """`topk_mean`; a maximum in a short dtype is taken by halves, since torch does not vectorise its reduction."""
    count = topk_count(rate, products.shape[dim])
    if count > 1 or products.dtype == torch.float32 or products.device.type != "cpu":
        return topk_mean(products, rate=rate, dim=dim)
    while (size := products.shape[dim]) > 1:
        half = size // 2
        best = torch.maximum(products.narrow(dim, 0, half), products.narrow(dim, half, half))
        if size % 2:
            first = best.select(dim, 0)
            torch.maximum(first, products.select(dim, size - 1), out=first)
        products = best
    return products.squeeze(dim)
