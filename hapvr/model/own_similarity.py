"""Frame similarities of a batch of clips with themselves, forward and backward in blocks that stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hapvr.model.places import add_back, largest, send_back
from hapvr.model.products import multiplier

BLOCK_REGIONS = {"cpu": 2**10, "cuda": 2**12}
"""Regions on each side of a block of products, by device."""

ALIGNMENT = 16
"""Frames of a block are a multiple of this, so that reductions along them fill vector registers."""


def own_frame_similarity(clips: Tensor) -> Tensor:
    """Spatial Chamfer similarity (HAP-VR Eq. 3, K = 1) of all pairs of clips of one batch.

    A product of regions serves both of its pairs of clips, so half of them are made. What is kept for the backward pass is a byte
    per frame pair, region and direction: the place of the largest product.

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
        for i, j in _upper(sizes):
            if i == 0:  # a new j: its regions serve all i up to it
                multiply = multiplier(rows[j], num_rows=len(rows[0]))
            products = multiply(rows[i]).view(regions, sizes[i], regions, sizes[j])
            best, place = largest(products.unbind(2))
            forth[i][j].copy_(best.mean(0, dtype=dtype))
            places.append(place)
            if j > i:
                best, place = largest(products.unbind(0))
                back[i][j].copy_(best.mean(1, dtype=dtype))
                places.append(place)
        ctx.save_for_backward(clips, *places)
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
            send_back(forth[i][j], next(saved), spread.unbind(2))
            if j > i:
                add_back(back[i][j].unsqueeze(1), next(saved), spread.unbind(0))
                totals[j].addmm_(products.T, rows[i])
            else:
                products = products + products.T
            totals[i].addmm_(products, rows[j])
        del rows, buffer, products, spread  # the peak of a step is here; the result takes their place
        out: Tensor = gradient.new_empty((num_clips * num_frames, regions, dims))
        for part in torch.split(out, sizes):
            part.copy_(totals.pop(0).view(regions, -1, dims).transpose(0, 1))
        return out.view(num_clips, num_frames, regions, dims)


def _blocks(clips: Tensor) -> tuple[list[int], list[Tensor]]:
    """Frames of each block and its regions [R * frames, D], regions before frames: reductions then run along frames."""
    frames = clips.flatten(0, 1)
    step = max(BLOCK_REGIONS.get(clips.device.type, 2**12) // clips.shape[2], 1)
    step = step // ALIGNMENT * ALIGNMENT or step
    blocks = torch.split(frames, step)
    return [len(block) for block in blocks], [block.transpose(0, 1).flatten(0, 1) for block in blocks]


def _views(frames: Tensor, sizes: list[int]) -> list[tuple[Tensor, ...]]:
    return [torch.split(row, sizes, 1) for row in torch.split(frames, sizes)]


def _upper(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Pairs i <= j of blocks, j by j: the order in which places are kept and taken again."""
    for j in range(len(sizes)):
        for i in range(j + 1):
            yield i, j
