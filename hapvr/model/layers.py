"""What is trained: attention over regions or their binarisation, and the comparator on frame similarities."""

from __future__ import annotations

import copy
import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.model.clips import Cells, clear_cells, halve_cells
from hapvr.model.first_layers import convolve_and_halve_twice
from hapvr.model.halving import halve_and_rectify
from hapvr.model.last_layers import convolve_and_weigh

ComparatorInit = Literal["random", "identity"]


class GatedAttention(nn.Module):
    """A weight per region, x <- sigmoid(u . tanh(W x + b)) x (S2VS section 3.1). [..., D] -> [..., D], norms shrink."""

    def __init__(self, *, dims: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.transform = nn.Linear(dims, dims)
        self.context_vector = nn.Linear(dims, 1, bias=False)
        nn.init.xavier_uniform_(self.transform.weight, generator=generator)
        nn.init.zeros_(self.transform.bias)
        nn.init.xavier_uniform_(self.context_vector.weight, generator=generator)

    def forward(self, features: Tensor) -> Tensor:
        """features: [..., D]. Returns the same shape."""
        return features * torch.sigmoid(self.context_vector(torch.tanh(self.transform(features))))


class LinearAttention(nn.Module):
    """A weight per region, x <- (u . x / 2 + 1/2) x (ViSiL section 3.2). [..., D] -> [..., D].

    normalize: divide u by its norm, so that weights of unit features stay in [0, 1] whatever training does to u; False
    takes u as it is, which is how the ViSiL release scores.
    """

    def __init__(self, *, dims: int, normalize: bool, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.normalize = normalize
        self.context_vector = nn.Linear(dims, 1, bias=False)
        nn.init.normal_(self.context_vector.weight, generator=generator)
        with torch.no_grad():
            self.context_vector.weight.copy_(F.normalize(self.context_vector.weight))

    def forward(self, features: Tensor) -> Tensor:
        """features: [..., D] of unit norm. Returns the same shape."""
        weight = F.normalize(self.context_vector.weight) if self.normalize else self.context_vector.weight
        return features * (F.linear(features, weight) / 2 + 0.5)


class Binarization(nn.Module):
    """Signs of projected regions (DnS section 3.2), scaled so that a dot product is the Hamming similarity.

    [..., D] -> [..., bits], each value +-1 / sqrt(bits): the dot product of two codes is 1 - 2 (differing bits) / bits.
    In training the sign is erf(x / sqrt(2 variance)), which has a gradient.
    """

    variance = 1e-6

    def __init__(self, *, dims: int, bits: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.projection = nn.Parameter(torch.empty(dims, bits))
        # Orthogonal directions halve the space independently, as the rotation that DnS starts from does.
        nn.init.orthogonal_(self.projection, generator=generator)

    def forward(self, features: Tensor) -> Tensor:
        """features: [..., D]. Returns [..., bits]."""
        projected = F.normalize(features, dim=-1) @ self.projection
        signs = torch.erf(projected / math.sqrt(2 * self.variance)) if self.training else torch.sign(projected)
        return signs / math.sqrt(self.projection.shape[1])


class Comparator(nn.Module):
    """Four convolutions that turn frame similarities into refined ones at a quarter of the rate (ViSiL section 3.3).

    init: "random", or "identity" for a comparator that begins by passing on the largest similarity of each 4 x 4 block.
    """

    def __init__(self, *, init: ComparatorInit = "random", generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.conv3 = nn.Conv2d(64, 128, 3, padding=1)
        self.output = nn.Conv2d(128, 1, 1)
        for name, parameter in self.named_parameters():
            if name.endswith("weight"):
                nn.init.xavier_uniform_(parameter, generator=generator)
            else:
                nn.init.zeros_(parameter)
        if init == "identity":
            self._start_as_identity()
        self.to(memory_format=torch.channels_last)  # two to five times faster on a CPU

    def forward(self, similarity: Tensor, row_mask: Tensor | None = None, column_mask: Tensor | None = None) -> Tensor:
        """similarity: [P, T, T'], both >= 4; masks: bool [P, T] and [P, T']. Returns raw output [P, T//4, T'//4]."""
        cells = None if row_mask is None or column_mask is None else (row_mask, column_mask)
        # Zeros at padding are what the convolutions see beyond the edge of an unpadded pair. A pooled cell that
        # mixes a real frame with padding does not exist there either, so the mask halves before it is applied.
        hidden = clear_cells(similarity.unsqueeze(1), cells)
        halved = halve_cells(cells)
        refine = self._refine_in_training if torch.is_grad_enabled() else self._refine
        cells = halve_cells(halved)
        return clear_cells(refine(hidden, halved, cells), cells).squeeze(1)

    def _refine(self, maps: Tensor, halved: Cells | None, cells: Cells | None) -> Tensor:
        # pooling before ReLU gives the same from a quarter of the work
        hidden = clear_cells(halve_and_rectify(self.conv1(maps)), halved)
        hidden = clear_cells(halve_and_rectify(self.conv2(hidden)), cells)
        output: Tensor = self.output(self.conv3(hidden).to(self.output.weight.dtype).clamp_min_(0))
        return output

    def _refine_in_training(self, maps: Tensor, halved: Cells | None, cells: Cells | None) -> Tensor:
        dtype = maps.dtype
        if torch.is_autocast_enabled(maps.device.type):
            dtype = torch.get_autocast_dtype(maps.device.type)
        first, second, third, output = (
            _parameters(layer, dtype) for layer in (self.conv1, self.conv2, self.conv3, self.output)
        )
        hidden = clear_cells(convolve_and_halve_twice(maps.to(dtype), first, second, halved), cells)
        return convolve_and_weigh(hidden, third, output)

    def in_dtype(self, dtype: torch.dtype) -> Comparator:
        """A copy that computes in `dtype`, but for its last sum, which stays in float32: rounding it would tie scores."""
        converted = copy.deepcopy(self).to(dtype)
        converted.output.float()
        return converted

    @torch.no_grad()
    def _start_as_identity(self) -> None:
        # The first channel of every layer carries the similarity, raised by 1 so that no ReLU cuts it; the others keep
        # their random weights, and the output does not listen to them yet.
        for convolution, shift in ((self.conv1, 1), (self.conv2, 0), (self.conv3, 0), (self.output, -1)):
            centre = convolution.kernel_size[0] // 2
            convolution.weight[0].zero_()
            convolution.weight[0, 0, centre, centre] = 1
            assert convolution.bias is not None
            convolution.bias[0] = shift


def _parameters(layer: nn.Conv2d, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    assert layer.bias is not None
    return layer.weight.to(dtype), layer.bias.to(dtype)
