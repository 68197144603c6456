"""From regions to one number per pair of videos: TopK-Chamfer similarity (HAP-VR section 3.3.1).

Similarities lie in [-1, 1], and higher is closer. Masks are bool, True = real. Of n real entries TopK-Chamfer takes the
mean of the K = max(round(rate * n), 1) largest: rate 0 is Chamfer (the maximum), rate 1 is average pooling. With clips of
28 frames the default rates give K = 1 at both levels, so training sees plain Chamfer; top-k acts on long videos only.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hapvr.errors import ArgumentError
from hapvr.model.kernels.frame_similarity import self_frame_similarity
from hapvr.model.settings import Pooling

MAX_CHUNK_ELEMENTS = 2**25
"""Region similarities held at once: 128 MiB in float32."""


def to_unit_interval(similarity: Tensor) -> Tensor:
    """Rescale similarities from [-1, 1] to [0, 1], the range in which the losses are defined. Any shape."""
    return similarity / 2 + 0.5


def check_rate(name: str, rate: float) -> None:
    """Raise ArgumentError unless the rate is a number in [0, 1]."""
    if not 0 <= rate <= 1:
        raise ArgumentError(
            f"{name}: got {rate}, wanted a number in [0, 1]; 0 keeps the largest entry, 1 averages all of them"
        )


def topk_count(rate: float, size: int) -> int:
    """K of TopK-Chamfer: max(round(rate * size), 1). Halves round to even, as in the release. Returns >= 1."""
    return max(round(rate * size), 1)


def topk_mean(values: Tensor, *, rate: float, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Mean of the K largest real entries along `dim`, K = topk_count(rate, number of real entries).

    values: any shape; mask: bool, broadcastable to values. Returns values without `dim`; -inf if no entry is real.
    """
    check_rate("rate", rate)
    size = values.shape[dim]
    if size == 0:
        raise ArgumentError(
            f"values: shape {tuple(values.shape)} is empty along dimension {dim}; wanted an entry or more"
        )
    if mask is not None:
        if topk_count(rate, size) > 1:
            return _masked_topk_mean(values, mask.expand(values.shape), rate=rate, dim=dim)
        return _largest(values.masked_fill(~mask, -math.inf), dim)
    count = topk_count(rate, size)
    if count == 1:
        return _largest(values, dim)
    if count == size:
        return values.mean(dim)
    return values.topk(count, dim, sorted=False).values.mean(dim)


def _largest(values: Tensor, dim: int) -> Tensor:
    # amax is several times faster, but keeps its whole input for the backward pass. max keeps an index of 8 bytes per
    # result; if one byte is enough for it, _Largest keeps that.
    if not (torch.is_grad_enabled() and values.requires_grad):
        return _amax(values, dim)
    if values.shape[dim] > 256:
        return values.max(dim).values
    largest: Tensor = _Largest.apply(values, dim)
    return largest


def _amax(values: Tensor, dim: int) -> Tensor:
    if values.device.type != "cpu" or values.dtype not in (torch.bfloat16, torch.float16):
        return values.amax(dim)
    # torch does not vectorise this reduction in a short dtype on a processor, but it vectorises `maximum`.
    while (size := values.shape[dim]) > 1:
        half = size // 2
        best = torch.maximum(values.narrow(dim, 0, half), values.narrow(dim, half, half))
        if size % 2:
            first = best.select(dim, 0)
            torch.maximum(first, values.select(dim, size - 1), out=first)
        values = best
    return values.squeeze(dim)


class _Largest(torch.autograd.Function):
    """The largest entries along a dimension of at most 256; their indices are kept as bytes."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, dim: int) -> Tensor:
        largest, argmax = values.max(dim, keepdim=True)
        ctx.save_for_backward(argmax.to(torch.uint8))
        ctx.shape, ctx.dim = values.shape, dim
        return largest.squeeze(dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (argmax,) = ctx.saved_tensors
        spread = gradients[0].new_zeros(ctx.shape)
        return spread.scatter_(ctx.dim, argmax.long(), gradients[0].unsqueeze(ctx.dim)), None


def _masked_topk_mean(values: Tensor, mask: Tensor, *, rate: float, dim: int) -> Tensor:
    # Rows have different numbers of real entries, so K differs: take the largest K, then drop what a row does not need.
    # In float64, rate * n rounds as it does in Python.
    counts = (mask.sum(dim, keepdim=True).double() * rate).round().clamp(min=1).long()
    most = int(counts.max())
    largest = values.masked_fill(~mask, -math.inf).topk(most, dim).values
    shape = [1] * values.ndim
    shape[dim] = most
    wanted = torch.arange(most, device=values.device).view(shape) < counts
    total = largest.masked_fill(~wanted, 0).sum(dim)
    return total / counts.squeeze(dim).to(values.dtype)


def chamfer(
    similarity: Tensor,
    *,
    rate: float = 0.0,
    pooling: Pooling = "chamfer",
    symmetric: bool = False,
    row_mask: Tensor | None = None,
    column_mask: Tensor | None = None,
) -> Tensor:
    """TopK-Chamfer (HAP-VR Eq. 3 and 5): per row the mean of the K largest columns, then the mean over rows.

    similarity: [..., n, m]; row_mask: bool [..., n]; column_mask: bool [..., m]. pooling: "max" takes the largest of all
    entries instead. symmetric: the mean of both directions, each with the same rate (ViSiL's symmetric Chamfer). Returns
    [...].
    """
    if symmetric and pooling == "chamfer":
        forth = chamfer(similarity, rate=rate, row_mask=row_mask, column_mask=column_mask)
        back = chamfer(similarity.transpose(-1, -2), rate=rate, row_mask=column_mask, column_mask=row_mask)
        return (forth + back) / 2
    columns = None if column_mask is None else column_mask.unsqueeze(-2)
    best = topk_mean(similarity, rate=0.0 if pooling == "max" else rate, mask=columns)
    if pooling == "max":
        return topk_mean(best, rate=0.0, mask=row_mask)
    return topk_mean(best, rate=1.0) if row_mask is None else _masked_mean(best, row_mask)


def _masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    mask = mask.expand(values.shape)
    return values.masked_fill(~mask, 0).sum(-1) / mask.sum(-1).clamp(min=1).to(values.dtype)


def frame_similarity(
    query: Tensor,
    reference: Tensor,
    *,
    rate: float,
    pooling: Pooling = "chamfer",
    symmetric: bool = False,
    max_chunk_elements: int = MAX_CHUNK_ELEMENTS,
) -> Tensor:
    """Frame similarities of all pairs of videos by spatial TopK-Chamfer over regions (HAP-VR Eq. 3).

    query: [Q, T, R, D]; reference: [N, T', R', D]. Returns [Q, N, T, T']. The products [Q, N, T, T', R, R'] are computed
    in chunks of at most max_chunk_elements and are not kept for the backward pass. If query and reference are the same
    tensor, as in training, a processor runs `self_frame_similarity`.
    """
    check_rate("spatial_rate", rate)
    count = topk_count(rate, reference.shape[2])
    plain_chamfer = pooling == "chamfer" and not symmetric and count == 1 and reference.shape[2] <= 256
    if query is reference and plain_chamfer and query.device.type == "cpu":
        return self_frame_similarity(query)
    keeps_many = pooling == "chamfer" and 1 < count < reference.shape[2]
    num_queries, query_frames, query_regions, dims = query.shape
    num_references, reference_frames, reference_regions, _ = reference.shape
    frames = query.reshape(num_queries * query_frames, query_regions, dims)
    # With regions before frames, reductions over a region axis run along contiguous frames.
    columns = reference.permute(3, 2, 0, 1).reshape(dims, -1)
    per_frame = query_regions * columns.shape[1]
    step = max(max_chunk_elements // max(per_frame, 1), 1)

    def similarity_of(chunk: Tensor, columns: Tensor) -> Tensor:
        products = chunk.reshape(-1, dims) @ columns
        products = products.view(len(chunk), query_regions, reference_regions, -1)
        return reduce_regions(products, rate=rate, pooling=pooling, symmetric=symmetric)

    chunks = torch.split(frames, step)
    if keeps_many and len(chunks) > 1 and torch.is_grad_enabled():
        # Top-k keeps K indices per row for the backward pass, as large as the products, so they are computed again.
        rows = [checkpoint(similarity_of, c, columns, use_reentrant=False, preserve_rng_state=False) for c in chunks]
    else:
        rows = [similarity_of(c, columns) for c in chunks]
    flat = torch.cat(rows) if len(rows) > 1 else rows[0]
    return flat.view(num_queries, query_frames, num_references, reference_frames).transpose(1, 2)


def reduce_regions(products: Tensor, *, rate: float, pooling: Pooling, symmetric: bool) -> Tensor:
    """`chamfer` over dimensions 1 and 2: [n, R, R', m] -> [n, m] in float32 or wider, as rounding means changes rankings."""
    dtype = torch.promote_types(products.dtype, torch.float32)
    if pooling == "max":
        return _largest(products.flatten(1, 2), 1).to(dtype)
    forth = topk_mean(products, rate=rate, dim=2).mean(1, dtype=dtype)
    if not symmetric:
        return forth
    return (forth + topk_mean(products, rate=rate, dim=1).mean(1, dtype=dtype)) / 2
