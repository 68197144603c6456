"""The comparator's first two layers in training: what they make is kept as a byte per value, and made again when needed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.grad import conv2d_input, conv2d_weight

from hapvr.model.clips import Cells, clear_cells
from hapvr.model.halving import quarters
from hapvr.model.places import largest, send_back

WINDOW = 4
"""Rows and columns that the four 3 x 3 windows behind one pooled value cover together."""


def convolve_and_halve_twice(
    maps: Tensor, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], cells: Cells | None
) -> Tensor:
    """Convolution, max-pooling by two and ReLU, twice. [P, 1, T, T'] -> [P, K, T // 4, T' // 4], channels last.

    first, second: weights [C, 1, 3, 3] and [K, C, 3, 3] with their biases. cells: bool [P, T // 2] and [P, T' // 2], outside of
    which the first layer's output counts as 0. The first layer's output, by far the largest, is made again for the
    backward pass.
    """
    halved: Tensor = _FirstLayers.apply(maps, *first, *second, *(cells or (None, None)))
    return halved


class _FirstLayers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        maps: Tensor,
        weight: Tensor,
        bias: Tensor,
        second_weight: Tensor,
        second_bias: Tensor,
        rows: Tensor | None,
        columns: Tensor | None,
    ) -> Tensor:
        ctx.cells = None if rows is None or columns is None else (rows, columns)
        windows = _windows(maps)
        hidden, *others = (torch.addmm(bias, windows, kernel.T) for kernel in _spread_kernels(weight))
        for other in others:
            torch.maximum(hidden, other, out=hidden)
        hidden = clear_cells(_as_maps(hidden.clamp_min_(0), maps), ctx.cells)
        convolved = F.conv2d(hidden, second_weight, second_bias, padding=1)
        parts = quarters(convolved)
        best, place = largest([torch.zeros_like(parts[0]), *parts])  # place 0 is that of values cut by ReLU
        ctx.save_for_backward(maps, weight, bias, second_weight, place)
        ctx.shape = convolved.shape
        return best

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        maps, weight, bias, second_weight, second_place = ctx.saved_tensors
        of_convolved = _empty_maps(gradients[0], ctx.shape)
        send_back(gradients[0], second_place, quarters(of_convolved), first=1)
        windows, kernels = _windows(maps), _spread_kernels(weight)
        dots = [torch.addmm(bias, windows, kernel.T) for kernel in kernels]
        hidden, place = largest([torch.zeros_like(dots[0]), *dots])
        hidden = clear_cells(_as_maps(hidden, maps), ctx.cells)
        of_second_weight: Tensor = conv2d_weight(hidden, second_weight.shape, of_convolved, padding=1)  # type: ignore[no-untyped-call]
        of_hidden: Tensor = conv2d_input(hidden.shape, second_weight, of_convolved, padding=1)  # type: ignore[no-untyped-call]
        of_hidden = clear_cells(of_hidden, ctx.cells).permute(0, 2, 3, 1).reshape(place.shape)
        of_windows, of_weight, of_bias = torch.zeros_like(windows), torch.zeros_like(weight), torch.zeros_like(bias)
        of_dots = dots[0]
        for quarter, kernel in enumerate(kernels):
            send_back(of_hidden, place, [of_dots], first=quarter + 1)
            of_windows.addmm_(of_dots, kernel)
            row, column = divmod(quarter, 2)
            of_kernel = (of_dots.T @ windows).view(-1, 1, WINDOW, WINDOW)
            of_weight += of_kernel[..., row : row + 3, column : column + 3]
            of_bias += of_dots.sum(0)
        of_maps = _join_windows(of_windows, maps)
        return of_maps, of_weight, of_bias, of_second_weight, of_convolved.sum((0, 2, 3)), None, None


def _empty_maps(like: Tensor, shape: torch.Size) -> Tensor:
    """Maps whose quarters are still to be written, channels last; 0 in an odd last row or column, which is in none."""
    maps = torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)
    return maps.zero_() if shape[2] % 2 or shape[3] % 2 else maps


def _windows(maps: Tensor) -> Tensor:
    """What each value of the first layer depends on, [P * (T // 2) * (T' // 2), 16], zeros beyond the edges.

    With one input channel that value is the largest of four short dot products with a window: what torch's convolution
    writes in between is four times as much, and its gradient with respect to the maps several times slower.
    """
    padded = F.pad(maps.squeeze(1), (1, 1, 1, 1))
    return padded.unfold(1, WINDOW, 2).unfold(2, WINDOW, 2).reshape(-1, WINDOW**2)


def _join_windows(windows: Tensor, maps: Tensor) -> Tensor:
    """The sum of windows where they lie, in the shape of the maps: the transpose of `_windows`."""
    num_pairs, _, height, width = maps.shape
    rows, columns = height // 2, width // 2
    windows = windows.view(num_pairs, rows, columns, WINDOW, WINDOW)
    padded = windows.new_zeros(num_pairs, height + 2, width + 2)
    for row in range(WINDOW):
        for column in range(WINDOW):
            padded[:, row : row + 2 * rows : 2, column : column + 2 * columns : 2] += windows[..., row, column]
    return padded[:, None, 1:-1, 1:-1]


def _spread_kernels(weight: Tensor) -> Tensor:
    """The 3 x 3 kernels as they lie in a window for each of its four places, [4, C, 16]."""
    kernels = weight.new_zeros(4, len(weight), WINDOW, WINDOW)
    for quarter in range(4):
        row, column = divmod(quarter, 2)
        kernels[quarter, :, row : row + 3, column : column + 3] = weight.squeeze(1)
    return kernels.flatten(2)


def _as_maps(values: Tensor, maps: Tensor) -> Tensor:
    """Values [P * (T // 2) * (T' // 2), C] as [P, C, T // 2, T' // 2]."""
    return values.view(len(maps), maps.shape[2] // 2, maps.shape[3] // 2, -1).permute(0, 3, 1, 2)
