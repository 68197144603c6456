"""Frame similarities of a batch of clips with itself, forward and backward in blocks that stay in a processor's cache.

The plain torch path in `hapvr.model.similarity` gives the same values and gradients; it runs on other devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK_REGIONS = 2**10
"""Regions on each side of a block of products."""

ALIGNMENT = 16
"""The number of frames of a block is a multiple of this, so that reductions along frames fill vector registers."""


def self_frame_similarity(clips: Tensor) -> Tensor:
    """Spatial Chamfer similarity (HAP-VR Eq. 3, K = 1) of all pairs of clips of one batch.

    One product of regions serves both pairs (a, b) and (b, a), so only half of the products are computed. For the
    backward pass we keep one byte per frame pair, region and direction: the index of the largest product.

    clips: [N, T, R, D] on a processor, R at most 256. Returns [N, N, T, T], first index the query, in float32 or wider.
    """
    if torch.is_autocast_enabled("cpu"):
        clips = clips.to(torch.get_autocast_dtype("cpu"))
    similarity: Tensor = _SelfSimilarity.apply(clips)
    return similarity


class _SelfSimilarity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, clips: Tensor) -> Tensor:
        num_clips, num_frames, regions, _ = clips.shape
        sizes, rows = _blocks(clips)
        dtype = torch.promote_types(clips.dtype, torch.float32)
        similarity = clips.new_empty((num_clips * num_frames, num_clips * num_frames), dtype=dtype)
        forth, back = _views(similarity, sizes), _views(similarity.T, sizes)
        indices: list[Tensor] = []
        for i, j in _upper(sizes):
            if i == 0:  # a new j: its packed regions serve all i up to j
                multiply = packed_matmul(rows[j], num_rows=len(rows[0]))
            products = multiply(rows[i]).view(regions, sizes[i], regions, sizes[j])
            best, index = max_with_argmax(products.unbind(2))
            forth[i][j].copy_(best.mean(0, dtype=dtype))
            indices.append(index)
            if j > i:
                best, index = max_with_argmax(products.unbind(0))
                back[i][j].copy_(best.mean(1, dtype=dtype))
                indices.append(index)
        ctx.save_for_backward(clips, *indices)
        return similarity.view(num_clips, num_frames, num_clips, num_frames).transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        clips, saved = ctx.saved_tensors[0], iter(ctx.saved_tensors[1:])
        num_clips, num_frames, regions, dims = clips.shape
        sizes, rows = _blocks(clips)
        gradient = (gradients[0] / regions).to(clips.dtype).transpose(1, 2).reshape(num_clips * num_frames, -1)
        forth, back = _views(gradient, sizes), _views(gradient.T, sizes)
        buffer = gradient.new_empty(len(rows[0]) ** 2)
        totals = [torch.zeros_like(block) for block in rows]
        for i, j in _upper(sizes):
            products = buffer[: len(rows[i]) * len(rows[j])].view(len(rows[i]), len(rows[j]))
            spread = products.view(regions, sizes[i], regions, sizes[j])
            scatter_grad(forth[i][j], next(saved), spread.unbind(2))
            if j > i:
                scatter_add_grad(back[i][j].unsqueeze(1), next(saved), spread.unbind(0))
                totals[j].addmm_(products.T, rows[i])
            else:
                products = products + products.T
            totals[i].addmm_(products, rows[j])
        # A training step needs the most memory here, so these go before the result is allocated.
        del rows, buffer, products, spread
        out: Tensor = gradient.new_empty((num_clips * num_frames, regions, dims))
        for part in torch.split(out, sizes):
            part.copy_(totals.pop(0).view(regions, -1, dims).transpose(0, 1))
        return out.view(num_clips, num_frames, regions, dims)


def _blocks(clips: Tensor) -> tuple[list[int], list[Tensor]]:
    """Frames of each block and its regions [R * frames, D], regions before frames: reductions then run along frames."""
    frames = clips.flatten(0, 1)
    step = max(BLOCK_REGIONS // clips.shape[2], 1)
    step = step // ALIGNMENT * ALIGNMENT or step
    blocks = torch.split(frames, step)
    return [len(block) for block in blocks], [block.transpose(0, 1).flatten(0, 1) for block in blocks]


def _views(frames: Tensor, sizes: list[int]) -> list[tuple[Tensor, ...]]:
    return [torch.split(row, sizes, 1) for row in torch.split(frames, sizes)]


def _upper(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Pairs i <= j of blocks, j by j: the order in which indices are saved and read again."""
    for j in range(len(sizes)):
        for i in range(j + 1):
            yield i, j


# On a processor torch vectorises comparisons that write floating-point numbers, but not those that write booleans. The
# three functions below therefore write numbers, which is up to forty times faster.


def max_with_argmax(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The elementwise maximum of 1 to 256 tensors of one shape, and its index as uint8; of equal values the first."""
    best, *others = parts
    best = best.clone()
    argmax, larger = torch.zeros_like(best), torch.empty_like(best)
    for index, part in enumerate(others, 1):
        torch.gt(part, best, out=larger)
        torch.maximum(argmax, larger.mul_(index), out=argmax)  # later indices are larger numbers
        torch.maximum(best, part, out=best)
    return best, argmax.to(torch.uint8)


def scatter_grad(gradient: Tensor, argmax: Tensor, parts: Sequence[Tensor], *, first: int = 0) -> None:
    """Write the gradient into each part where that part was the maximum, and 0 elsewhere.

    argmax: uint8, from `max_with_argmax`. first: the index of the first of these parts.
    """
    chosen = argmax.to(gradient.dtype)
    for index, part in enumerate(parts, first):
        torch.eq(chosen, index, out=part)
        part.mul_(gradient)


def scatter_add_grad(gradient: Tensor, argmax: Tensor, parts: Sequence[Tensor]) -> None:
    """`scatter_grad` that adds to the parts. gradient: broadcastable to argmax."""
    chosen = argmax.to(gradient.dtype)
    here = torch.empty_like(chosen)
    for index, part in enumerate(parts):
        torch.eq(chosen, index, out=here)
        part.addcmul_(here, gradient)


def packed_matmul(columns: Tensor, *, num_rows: int) -> Callable[[Tensor], Tensor]:
    """The function rows [n, D] -> rows @ columns.T [n, C], n up to num_rows; each call may overwrite the last result.

    columns: [C, D]. In float32 on a processor, oneDNN's product with a packed right side is up to a fifth faster than
    `torch.mm`. We call it by the two operator names that `torch.compile` uses. A build of torch may lack them, and
    `torch.compile` cannot trace such calls: both cases take `torch.mm`.
    """
    if columns.device.type == "cpu" and columns.dtype == torch.float32 and not torch.compiler.is_compiling():
        try:
            packed = torch.ops.mkldnn._reorder_linear_weight(columns, num_rows)
            return lambda rows: torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], "")
        except (AttributeError, RuntimeError):
            pass
    columns = columns.T
    buffer = columns.new_empty(num_rows, columns.shape[1])
    return lambda rows: torch.mm(rows, columns, out=buffer[: len(rows)])
