"""The comparator's layers on a processor: fused forward passes, and backward passes that keep little memory.

`Comparator` in `hapvr.model.layers` also has the plain torch path, which gives the same values and gradients; it runs on
other devices.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.grad import conv2d_input, conv2d_weight

from hapvr.model.clips import MapMask, apply_map_mask
from hapvr.model.kernels.frame_similarity import max_with_argmax, scatter_grad

WINDOW = 4
"""Rows and columns that the four 3 x 3 windows behind one pooled value cover together."""


def pool_and_rectify(maps: Tensor) -> Tensor:
    """`relu(max_pool2d(maps, 2))` without a gradient. [P, C, T, T'] -> [P, C, T // 2, T' // 2].

    torch's own pooling is slower, because it writes indices even where nothing is to be differentiated.
    """
    first, second, third, fourth = pool_windows(maps)
    return torch.maximum(torch.maximum(first, second), torch.maximum(third, fourth)).clamp_min_(0)


def pool_windows(maps: Tensor) -> list[Tensor]:
    """Four views [P, C, T // 2, T' // 2]: the values of each 2 x 2 window. An odd last row or column is in none."""
    height, width = (size // 2 * 2 for size in maps.shape[2:])
    return [maps[..., row:height:2, column:width:2] for row in (0, 1) for column in (0, 1)]


def first_layers(
    maps: Tensor, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], mask: MapMask | None
) -> Tensor:
    """Convolution, max-pooling by two and ReLU, twice. [P, 1, T, T'] -> [P, K, T // 4, T' // 4], channels last.

    first, second: weights [C, 1, 3, 3] and [K, C, 3, 3] with their biases. mask: bool [P, T // 2] and [P, T' // 2];
    outside of it the first layer's output counts as 0. The first layer's output is by far the largest tensor; the
    backward pass computes it again. Of the second layer we keep one byte per value.
    """
    pooled: Tensor = _FirstLayers.apply(maps, *first, *second, *(mask or (None, None)))
    return pooled


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
        ctx.mask = None if rows is None or columns is None else (rows, columns)
        windows = _windows(maps)
        hidden, *others = (torch.addmm(bias, windows, kernel.T) for kernel in _spread_kernels(weight))
        for other in others:
            torch.maximum(hidden, other, out=hidden)
        hidden = apply_map_mask(_as_maps(hidden.clamp_min_(0), maps), ctx.mask)
        convolved = F.conv2d(hidden, second_weight, second_bias, padding=1)
        parts = pool_windows(convolved)
        best, index = max_with_argmax([torch.zeros_like(parts[0]), *parts])  # index 0: ReLU cut the value
        ctx.save_for_backward(maps, weight, bias, second_weight, index)
        ctx.shape = convolved.shape
        return best

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        maps, weight, bias, second_weight, second_index = ctx.saved_tensors
        of_convolved = _empty_maps(gradients[0], ctx.shape)
        scatter_grad(gradients[0], second_index, pool_windows(of_convolved), first=1)
        windows, kernels = _windows(maps), _spread_kernels(weight)
        dots = [torch.addmm(bias, windows, kernel.T) for kernel in kernels]
        hidden, index = max_with_argmax([torch.zeros_like(dots[0]), *dots])
        hidden = apply_map_mask(_as_maps(hidden, maps), ctx.mask)
        of_second_weight: Tensor = conv2d_weight(hidden, second_weight.shape, of_convolved, padding=1)  # type: ignore[no-untyped-call]
        of_hidden: Tensor = conv2d_input(hidden.shape, second_weight, of_convolved, padding=1)  # type: ignore[no-untyped-call]
        of_hidden = apply_map_mask(of_hidden, ctx.mask).permute(0, 2, 3, 1).reshape(index.shape)
        of_windows, of_weight, of_bias = torch.zeros_like(windows), torch.zeros_like(weight), torch.zeros_like(bias)
        of_dots = dots[0]
        for place, kernel in enumerate(kernels):
            scatter_grad(of_hidden, index, [of_dots], first=place + 1)
            of_windows.addmm_(of_dots, kernel)
            row, column = divmod(place, 2)
            of_kernel = (of_dots.T @ windows).view(-1, 1, WINDOW, WINDOW)
            of_weight += of_kernel[..., row : row + 3, column : column + 3]
            of_bias += of_dots.sum(0)
        of_maps = _join_windows(of_windows, maps)
        return of_maps, of_weight, of_bias, of_second_weight, of_convolved.sum((0, 2, 3)), None, None


def _empty_maps(like: Tensor, shape: torch.Size) -> Tensor:
    """Maps whose pool windows are still to be written, channels last; 0 in an odd last row or column."""
    maps = torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)
    return maps.zero_() if shape[2] % 2 or shape[3] % 2 else maps


def _windows(maps: Tensor) -> Tensor:
    """What each pooled value of the first layer depends on, [P * (T // 2) * (T' // 2), 16], zeros beyond the edges.

    With one input channel a pooled value is the largest of four short dot products with its window. torch's
    convolution writes four times as much, and its gradient with respect to the maps is several times slower.
    """
    padded = F.pad(maps.squeeze(1), (1, 1, 1, 1))
    return padded.unfold(1, WINDOW, 2).unfold(2, WINDOW, 2).reshape(-1, WINDOW**2)


def _join_windows(windows: Tensor, maps: Tensor) -> Tensor:
    """The transpose of `_windows`: overlapping windows are summed in the shape of the maps."""
    num_pairs, _, height, width = maps.shape
    rows, columns = height // 2, width // 2
    windows = windows.view(num_pairs, rows, columns, WINDOW, WINDOW)
    padded = windows.new_zeros(num_pairs, height + 2, width + 2)
    for row in range(WINDOW):
        for column in range(WINDOW):
            padded[:, row : row + 2 * rows : 2, column : column + 2 * columns : 2] += windows[..., row, column]
    return padded[:, None, 1:-1, 1:-1]


def _spread_kernels(weight: Tensor) -> Tensor:
    """The 3 x 3 kernels at each of their four places in a window, zeros around them, [4, C, 16]."""
    kernels = weight.new_zeros(4, len(weight), WINDOW, WINDOW)
    for place in range(4):
        row, column = divmod(place, 2)
        kernels[place, :, row : row + 3, column : column + 3] = weight.squeeze(1)
    return kernels.flatten(2)


def _as_maps(values: Tensor, maps: Tensor) -> Tensor:
    """Values [P * (T // 2) * (T' // 2), C] as [P, C, T // 2, T' // 2]."""
    return values.view(len(maps), maps.shape[2] // 2, maps.shape[3] // 2, -1).permute(0, 3, 1, 2)


def last_layers(maps: Tensor, third: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> Tensor:
    """Convolution and ReLU, then a weighted sum of channels. Nothing of the two layers is kept for the backward pass.

    maps: [P, C, t, t']; third, output: weights [K, C, 3, 3] and [1, K, 1, 1] with their biases. Returns [P, 1, t, t'].
    Chamfer similarity sends a gradient to one entry of each row only. The backward pass computes the convolution again
    for those entries, and for no others.
    """
    refined: Tensor = _LastLayers.apply(maps, *third, *output)
    return refined


class _LastLayers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, bias: Tensor, output: Tensor, output_bias: Tensor) -> Tensor:
        ctx.save_for_backward(maps, weight, bias, output)
        hidden = F.conv2d(maps, weight, bias, padding=1).clamp_min_(0)
        return F.conv2d(hidden, output, output_bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        maps, weight, bias, output = ctx.saved_tensors
        gradient = gradients[0].flatten()
        entries = gradient.nonzero().squeeze(1)
        gradient = gradient[entries].unsqueeze(1)
        num_channels = maps.shape[1]
        padded = F.pad(maps, (1, 1, 1, 1)).permute(0, 2, 3, 1)
        rows = _neighbours(entries, maps)
        windows = padded.reshape(-1, num_channels).index_select(0, rows).view(len(entries), 9 * num_channels)
        kernel = weight.permute(0, 2, 3, 1).reshape(len(weight), -1)
        hidden = torch.addmm(bias, windows, kernel.T).clamp_min_(0)
        of_output = hidden.T @ gradient
        of_hidden = torch.where(hidden > 0, gradient * output.flatten(), 0)
        of_windows = (of_hidden @ kernel).view(-1, num_channels)
        of_padded = windows.new_zeros(padded.shape)
        of_padded.view(-1, num_channels).index_add_(0, rows, of_windows)
        of_weight = (of_hidden.T @ windows).view(len(weight), 3, 3, num_channels).permute(0, 3, 1, 2)
        return (
            of_padded[:, 1:-1, 1:-1].permute(0, 3, 1, 2),
            of_weight,
            of_hidden.sum(0),
            of_output.view(output.shape),
            gradient.sum(0),
        )


def _neighbours(entries: Tensor, maps: Tensor) -> Tensor:
    """Rows of the padded maps [P * (t + 2) * (t' + 2)] that the 3 x 3 windows of entries [n] cover, [n * 9]."""
    height, width = maps.shape[2:]
    corners = (entries // (height * width) * (height + 2) + entries // width % height) * (width + 2) + entries % width
    steps = torch.arange(3, device=entries.device)
    return (corners[:, None] + (steps[:, None] * (width + 2) + steps).flatten()).flatten()
