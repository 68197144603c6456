"""Frame similarities of a batch of clips with themselves, forward and backward in blocks that stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK_REGIONS = {"cpu": 2**10, "cuda": 2**12}
"""Regions on each side of a block of products, by device."""


def own_frame_similarity(clips: Tensor) -> Tensor:
    """Spatial Chamfer similarity (HAP-VR Eq. 3, K = 1) of all pairs of clips of one batch.

    A product of regions serves both of its pairs of clips, so half of them are made. What is kept for the backward pass is a copy
    of the clips and a byte per frame pair, region and direction: the place of the largest product.

    clips: [N, T, R, D], R at most 256. Returns [N, N, T, T], first index the query, in float32 or wider.
    """
    device = clips.device.type
    if torch.is_autocast_enabled(device):
        clips = clips.to(torch.get_autocast_dtype(device))
    similarity: Tensor = _OwnSimilarity.apply(clips)
    return similarity


class _OwnSimilarity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, clips: Tensor) -> Tensor:
        num_clips, num_frames, regions, _ = clips.shape
        sizes, rows = _blocks(clips)
        dtype = torch.promote_types(clips.dtype, torch.float32)
        similarity = clips.new_empty((num_clips * num_frames, num_clips * num_frames), dtype=dtype)
        forth, back = _views(similarity, sizes), _views(similarity.T, sizes)
        places: list[Tensor] = []
        buffer = clips.new_empty(len(rows[0]) ** 2)
        for i, j in _upper(sizes):
            products = torch.mm(rows[i], rows[j].T, out=_part(buffer, len(rows[i]), len(rows[j])))
            products = products.view(regions, sizes[i], regions, sizes[j])
            best, place = _largest(products, 2)
            forth[i][j].copy_(best.mean(0, dtype=dtype))
            places.append(place)
            if j > i:
                best, place = _largest(products, 0)
                back[i][j].copy_(best.mean(1, dtype=dtype))
                places.append(place)
        ctx.save_for_backward(*rows, *places)
        ctx.shape, ctx.sizes = clips.shape, sizes
        return similarity.view(num_clips, num_frames, num_clips, num_frames).transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        sizes = ctx.sizes
        rows, saved = ctx.saved_tensors[: len(sizes)], iter(ctx.saved_tensors[len(sizes) :])
        num_clips, num_frames, regions, dims = ctx.shape
        gradient = (gradients[0] / regions).to(rows[0].dtype).transpose(1, 2).reshape(num_clips * num_frames, -1)
        forth, back = _views(gradient, sizes), _views(gradient.T, sizes)
        buffer = gradient.new_empty(len(rows[0]) ** 2)
        totals = [torch.zeros_like(block) for block in rows]
        for i, j in _upper(sizes):
            products = _part(buffer, len(rows[i]), len(rows[j]))
            spread = products.view(regions, sizes[i], regions, sizes[j])
            place = next(saved)
            for region in range(regions):
                torch.mul(place.eq(region), forth[i][j], out=spread[:, :, region])
            if j > i:
                place = next(saved)
                ours = back[i][j].unsqueeze(1)
                for region in range(regions):
                    spread[region] += place.eq(region) * ours
                totals[j].addmm_(products.T, rows[i])
            else:
                products = products + products.T
            totals[i].addmm_(products, rows[j])
        out: Tensor = gradient.new_empty((num_clips * num_frames, regions, dims))
        for part, total in zip(torch.split(out, sizes), totals, strict=True):
            part.copy_(total.view(regions, -1, dims).transpose(0, 1))
        return out.view(num_clips, num_frames, regions, dims)


def _blocks(clips: Tensor) -> tuple[list[int], list[Tensor]]:
    """Frames of each block and its regions [R * frames, D], regions before frames: reductions then run along frames."""
    frames = clips.flatten(0, 1)
    step = max(BLOCK_REGIONS.get(clips.device.type, 2**12) // clips.shape[2], 1)
    blocks = torch.split(frames, step)
    return [len(block) for block in blocks], [block.transpose(0, 1).flatten(0, 1) for block in blocks]


def _views(frames: Tensor, sizes: list[int]) -> list[tuple[Tensor, ...]]:
    return [torch.split(row, sizes, 1) for row in torch.split(frames, sizes)]


def _part(buffer: Tensor, height: int, width: int) -> Tensor:
    return buffer[: height * width].view(height, width)


def _upper(sizes: list[int]) -> Iterator[tuple[int, int]]:
    for i in range(len(sizes)):
        for j in range(i, len(sizes)):
            yield i, j


def _largest(values: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Largest entries along a dimension and their places as bytes."""
    if values.device.type != "cpu":
        best, place = values.max(dim)
        return best, place.to(torch.uint8)
    # several times faster than max with indices, which torch does not vectorise on a processor
    best = values.select(dim, 0).clone()
    place = torch.zeros_like(best, dtype=torch.uint8)
    for index in range(1, values.shape[dim]):
        candidate = values.select(dim, index)
        larger = (candidate > best).view(torch.uint8).mul_(index)  # later places are larger numbers
        torch.maximum(place, larger, out=place)
        torch.maximum(best, candidate, out=best)
    return best, place
