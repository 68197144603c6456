"""The comparator's last two layers in training: their backward pass is made only where a gradient arrives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def convolve_and_weigh(maps: Tensor, third: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> Tensor:
    """Convolution and ReLU, then a weighted sum of channels; of the two layers nothing is kept for the backward pass.

    maps: [P, C, t, t']; third, output: weights [K, C, 3, 3] and [1, K, 1, 1] with their biases. Returns [P, 1, t, t']. Chamfer
    similarity sends a gradient to one cell of each row only: for those cells the convolution is made again, and for
    no others.
    """
    refined: Tensor = _ConvolveAndWeigh.apply(maps, *third, *output)
    return refined


class _ConvolveAndWeigh(torch.autograd.Function):
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
        cells = gradient.nonzero().squeeze(1)
        gradient = gradient[cells].unsqueeze(1)
        num_channels = maps.shape[1]
        padded = F.pad(maps, (1, 1, 1, 1)).permute(0, 2, 3, 1)
        rows = _neighbours(cells, maps)
        windows = padded.reshape(-1, num_channels).index_select(0, rows).view(len(cells), 9 * num_channels)
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


def _neighbours(cells: Tensor, maps: Tensor) -> Tensor:
    """Rows of the padded maps [P * (t + 2) * (t' + 2)] that the 3 x 3 windows of cells [n] cover, [n * 9]."""
    height, width = maps.shape[2:]
    corners = (cells // (height * width) * (height + 2) + cells // width % height) * (width + 2) + cells % width
    steps = torch.arange(3, device=cells.device)
    return (corners[:, None] + (steps[:, None] * (width + 2) + steps).flatten()).flatten()
