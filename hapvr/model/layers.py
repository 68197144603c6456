"""The trained layers: attention over regions or their binarisation, and the comparator on frame similarities."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.model.clips import MapMask, apply_map_mask, halve_map_mask, replicate_edges
from hapvr.model.settings import NetworkSettings


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

    normalize: divide u by its norm, so that the weights of unit features stay in [0, 1] however training changes u. The
    ViSiL release scores without this.
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

    settings: `comparator_init` "random", or "identity" for weights that first pass on the largest similarity of each 4 x 4
    block; `padding_mode`: what the convolutions see beyond the edges of a pair.
    """

    def __init__(self, settings: NetworkSettings, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.pads_zeros = settings.padding_mode == "zeros"
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1, padding_mode=settings.padding_mode)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1, padding_mode=settings.padding_mode)
        self.conv3 = nn.Conv2d(64, 128, 3, padding=1, padding_mode=settings.padding_mode)
        self.output = nn.Conv2d(128, 1, 1)
        for name, parameter in self.named_parameters():
            if name.endswith("weight"):
                nn.init.xavier_uniform_(parameter, generator=generator)
            else:
                nn.init.zeros_(parameter)
        if settings.comparator_init == "identity":
            self._start_as_identity()
        self.to(memory_format=torch.channels_last)  # two to five times faster on a CPU

    def forward(self, similarity: Tensor, row_mask: Tensor | None = None, column_mask: Tensor | None = None) -> Tensor:
        """similarity: [P, T, T'], both >= 4; masks: bool [P, T] and [P, T']. Returns raw output [P, T//4, T'//4]."""
        mask = None if row_mask is None or column_mask is None else (row_mask, column_mask)
        # Padding must hold what a convolution sees beyond the edge of an unpadded pair. A pooled entry that mixes a real
        # frame with padding does not exist without padding, so it is masked as well.
        maps = self._fill_padding(similarity.unsqueeze(1), mask)
        half = halve_map_mask(mask)
        quarter = halve_map_mask(half)
        hidden = self._fill_padding(_pool(self.conv1(maps)), half)
        hidden = self._fill_padding(_pool(self.conv2(hidden)), quarter)
        output: Tensor = self.output(self.conv3(hidden).to(self.output.weight.dtype).relu_())
        return apply_map_mask(output, quarter).squeeze(1)

    def _fill_padding(self, maps: Tensor, mask: MapMask | None) -> Tensor:
        return apply_map_mask(maps, mask) if self.pads_zeros else replicate_edges(maps, mask)

    @torch.no_grad()
    def _start_as_identity(self) -> None:
        # The first channel of every layer carries the similarity plus 1, so that no ReLU cuts it. The other channels keep
        # their random weights; the output gives them weight 0 at first.
        for convolution, shift in ((self.conv1, 1), (self.conv2, 0), (self.conv3, 0), (self.output, -1)):
            centre = convolution.kernel_size[0] // 2
            convolution.weight[0].zero_()
            convolution.weight[0, 0, centre, centre] = 1
            assert convolution.bias is not None
            convolution.bias[0] = shift


def _pool(maps: Tensor) -> Tensor:
    """ReLU and max-pooling by two; pooling first gives the same values from a quarter of the work."""
    return F.max_pool2d(maps, 2).relu_()
