"""The similarity network: attention over regions, TopK-Chamfer, and the comparator on frame
similarities.

One class scores as HAP-VR, S2VS, DnS and ViSiL do; `NetworkSettings` says which.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hapvr.model.family import Mask, Similarities, VideoNetwork
from hapvr.model.settings import NetworkSettings, strips
from hapvr.model.similarity import chamfer, frame_similarity

MAX_COMPARATOR_ELEMENTS = {"cpu": 2**16, "cuda": 2**22}
"""How many frame similarities the comparator sees at once, by device; on a CPU its widest layer
then fits the cache."""

MAX_STRIP_ELEMENTS = 2**21
"""How many frame similarities of one pair the comparator sees at once; a larger pair is refined in
strips that overlap by what the convolutions see, except in training."""

MAX_KEPT_ELEMENTS = {"cpu": 2**22, "cuda": 2**24}
"""Up to how many frame similarities training keeps activations of the comparator, about 350 bytes
for each. Above that the backward pass computes them again."""


class SimilarityNetwork(VideoNetwork):
    """Scores pairs of videos from their region features (HAP-VR section 3.3.1). dims: D, values per
    region. generator: draws the weights, as `hapvr.model.checkpoint.build_network` says."""

    settings: NetworkSettings

    def __init__(
        self, settings: NetworkSettings, *, dims: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.settings = settings
        self.dims = dims
        self.embedding_dims = settings.binary_bits or dims
        self.attention: nn.Module = nn.Identity()
        self.binarization: nn.Module = nn.Identity()
        self.comparator: Comparator | None = None
        form = settings.attention_form
        generator = generator or torch.Generator()
        # torch's layers draw from the global generator before ours set their weights, so its state
        # is restored.
        with torch.random.fork_rng(devices=[]):
            if settings.attention and form == "gated":
                self.attention = GatedAttention(dims=dims, generator=generator)
            elif settings.attention:
                self.attention = LinearAttention(
                    dims=dims, normalize=form == "cosine", generator=generator
                )
            elif settings.binary_bits:
                self.binarization = Binarization(
                    dims=dims, bits=settings.binary_bits, generator=generator
                )

            if settings.comparator:
                self.comparator = Comparator(settings, generator=generator)

    def embed(self, features: Tensor, *, mask: Mask = None) -> Tensor:
        """Attention-weighted regions, or their codes: the input of `compare`. features: [..., T, R,
        D]. mask: not read, because each region is weighed by itself. Returns [..., T, R, D], or
        [..., T, R, bits] from a network with binary_bits."""
        # Features come from disk in half precision and are computed in the precision of the
        # weights. A network without weights computes in float32, where sums of 512 products cannot
        # overflow.
        features = features.to(next((weight.dtype for weight in self.parameters()), torch.float32))
        embedding: Tensor = self.binarization(self.attention(features))
        return embedding.to(features.dtype)

    def _compare(
        self, query: Tensor, reference: Tensor, query_mask: Mask, reference_mask: Mask
    ) -> Similarities:
        # Means over frames and losses are computed in float32 or wider, also under autocast.
        frame = frame_similarity(query, reference, **self.settings.spatial)
        refined = frame
        overshoot = frame.new_zeros(())
        if self.comparator is not None:
            least = self.settings.min_frames
            longer, query_mask = pad_to_min_frames(frame, query_mask, dim=2, min_frames=least)
            longer, reference_mask = pad_to_min_frames(
                longer, reference_mask, dim=3, min_frames=least
            )
            raw = refine_pairs(self.comparator, longer, query_mask, reference_mask).to(frame.dtype)
            refined = F.hardtanh(raw)
            overshoot = (raw - refined).abs().sum()
            query_mask = halve_mask(halve_mask(query_mask))
            reference_mask = halve_mask(halve_mask(reference_mask))

        video = chamfer(
            refined,
            row_mask=None if query_mask is None else query_mask[:, None],
            column_mask=None if reference_mask is None else reference_mask[None, :],
            **self.settings.temporal,
        )
        return Similarities(frame=frame, refined=refined, video=video, regularization=overshoot)

    @torch.inference_mode()
    def frame_similarity(self, query: Tensor, reference: Tensor) -> Tensor:
        """[T, T'] before the comparator, as `compare` gives it. query: [T, R, D], reference: [T',
        R', D], embedded."""
        return frame_similarity(query[None], reference[None], **self.settings.spatial)[0, 0].float()

    @torch.inference_mode()
    def self_similarity(self, video: Tensor) -> Tensor:
        """[T]: similarity of each frame with itself, the square of what attention weighs it with.
        video: [T, R, D]."""
        return chamfer(video @ video.transpose(1, 2), **self.settings.spatial)


def refine_pairs(
    comparator: Comparator, frame: Tensor, query_mask: Mask, reference_mask: Mask
) -> Tensor:
    """Raw output [Q, N, T // 4, T' // 4] of the comparator for all pairs [Q, N, T, T'], some of
    them at a time."""
    num_queries, num_references, num_rows, num_columns = frame.shape
    frame = frame.to(comparator.conv1.weight.dtype)
    step = max(MAX_COMPARATOR_ELEMENTS.get(frame.device.type, 2**22) // (num_rows * num_columns), 1)
    pairs = torch.split(frame.flatten(0, 1), step)
    rows: tuple[Mask, ...] = (None,) * len(pairs)
    columns = rows
    if query_mask is not None:
        rows = torch.split(query_mask.repeat_interleave(num_references, 0), step)
    if reference_mask is not None:
        columns = torch.split(reference_mask.repeat(num_queries, 1), step)
    refine: Any = comparator
    if frame.numel() > MAX_KEPT_ELEMENTS.get(frame.device.type, 2**24) and torch.is_grad_enabled():
        refine = partial(checkpoint, comparator, use_reentrant=False, preserve_rng_state=False)
    elif num_rows * num_columns > MAX_STRIP_ELEMENTS and not torch.is_grad_enabled():
        refine = partial(refine_in_strips, comparator)

    refined = torch.cat([refine(*inputs) for inputs in zip(pairs, rows, columns, strict=True)])
    return refined.view(num_queries, num_references, *refined.shape[1:])


def refine_in_strips(
    comparator: Comparator, frame: Tensor, row_mask: Mask = None, column_mask: Mask = None
) -> Tensor:
    """The comparator's output for frame similarities [P, T, T'] that are too large to refine at
    once; same arguments as the comparator."""
    height = MAX_STRIP_ELEMENTS // (len(frame) * frame.shape[2])
    parts = []
    for rows, kept in strips(frame.shape[1], height=height):
        parts.append(
            comparator(
                frame[:, rows], None if row_mask is None else row_mask[:, rows], column_mask
            )[:, kept]
        )

    return torch.cat(parts, dim=1)


def pad_to_min_frames(
    similarity: Tensor, mask: Mask, *, dim: int, min_frames: int
) -> tuple[Tensor, Mask]:
    """Double clips of fewer real frames until they have `min_frames`; with 4, clips of 1, 2, 3
    frames get 4, 4, 6. similarity: frame similarities [Q, N, T, T']; dim: 2 for queries with mask
    [Q, T], 3 for references with mask [N, T']. Returns the longer similarity and mask. Whole
    repetitions, as in the releases, keep all frames equally frequent, and a clip's score does not
    depend on how far it was padded."""
    size = similarity.shape[dim]
    all_real = torch.full((similarity.shape[dim - 2],), size, device=similarity.device)
    targets = lengths = all_real if mask is None else mask.sum(1)
    while bool((targets < min_frames).any()):
        targets = torch.where(targets < min_frames, 2 * targets, targets)
    if targets is lengths:
        return similarity, mask
    position = torch.arange(max(size, int(targets.max())), device=similarity.device)
    source = torch.where(targets[:, None] > lengths[:, None], position % lengths[:, None], position)
    shape = list(similarity.shape)
    shape[dim] = len(position)
    index = source.clamp(max=size - 1)
    index = index[:, None, :, None] if dim == 2 else index[None, :, None, :]
    return similarity.gather(
        dim, index.expand(shape)
    ), None if mask is None else position < targets[:, None]


def halve_mask(mask: Mask) -> Mask:
    """The mask after pooling of frames in pairs: real if both are. [N, T] -> [N, T // 2]; an odd
    last frame is dropped."""
    return None if mask is None else mask[:, :-1:2] & mask[:, 1::2]


class GatedAttention(nn.Module):
    """A weight per region, x <- sigmoid(u . tanh(W x + b)) x (S2VS section 3.1). [..., D] -> [...,
    D], norms shrink."""

    def __init__(self, *, dims: int, generator: torch.Generator) -> None:
        super().__init__()
        self.transform = nn.Linear(dims, dims)
        self.context_vector = nn.Linear(dims, 1, bias=False)
        nn.init.xavier_uniform_(self.transform.weight, generator=generator)
        nn.init.zeros_(self.transform.bias)
        nn.init.xavier_uniform_(self.context_vector.weight, generator=generator)

    def forward(self, features: Tensor) -> Tensor:
        return features * torch.sigmoid(self.context_vector(torch.tanh(self.transform(features))))


class LinearAttention(nn.Module):
    """A weight per region, x <- (u . x / 2 + 1/2) x for unit x (ViSiL section 3.2). [..., D] ->
    [..., D]. normalize: divide u by its norm, so that the weights of unit features stay in [0, 1]
    however training changes u. The ViSiL release scores without this."""

    def __init__(self, *, dims: int, normalize: bool, generator: torch.Generator) -> None:
        super().__init__()
        self.normalize = normalize
        self.context_vector = nn.Linear(dims, 1, bias=False)
        nn.init.normal_(self.context_vector.weight, generator=generator)
        with torch.no_grad():
            self.context_vector.weight.copy_(F.normalize(self.context_vector.weight))

    def forward(self, features: Tensor) -> Tensor:
        weight = (
            F.normalize(self.context_vector.weight)
            if self.normalize
            else self.context_vector.weight
        )
        return features * (F.linear(features, weight) / 2 + 0.5)


class Binarization(nn.Module):
    """Signs of projected regions (DnS section 3.2), scaled so that a dot product is the Hamming
    similarity.

    [..., D] -> [..., bits], each value +-1 / sqrt(bits): the dot product of two codes is 1 - 2
    (differing bits) / bits. In training the sign is erf(x / sqrt(2 variance)), which has a
    gradient."""

    variance = 1e-6

    def __init__(self, *, dims: int, bits: int, generator: torch.Generator) -> None:
        super().__init__()
        self.projection = nn.Parameter(torch.empty(dims, bits))
        # Orthogonal directions halve the space independently, as the rotation that DnS starts from
        # does.
        nn.init.orthogonal_(self.projection, generator=generator)

    def forward(self, features: Tensor) -> Tensor:
        projected = F.normalize(features, dim=-1) @ self.projection
        signs = (
            torch.erf(projected / math.sqrt(2 * self.variance))
            if self.training
            else torch.sign(projected)
        )
        return signs / math.sqrt(self.projection.shape[1])


class Comparator(nn.Module):
    """Four convolutions that turn frame similarities into refined ones at a quarter of the rate
    (ViSiL section 3.3).

    settings: `comparator_init` "random", or "identity" for weights that first pass on the largest
    similarity of each 4 x 4 block; `padding_mode`: what the convolutions see beyond the edges of a
    pair."""

    def __init__(
        self, settings: NetworkSettings, *, generator: torch.Generator | None = None
    ) -> None:
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
            # The first channel of every layer carries the similarity plus 1, so that no ReLU cuts
            # it. The other channels keep their random weights; the output gives them weight 0 at
            # first.
            with torch.no_grad():
                for convolution, shift in (
                    (self.conv1, 1),
                    (self.conv2, 0),
                    (self.conv3, 0),
                    (self.output, -1),
                ):
                    centre = convolution.kernel_size[0] // 2
                    convolution.weight[0].zero_()
                    convolution.weight[0, 0, centre, centre] = 1
                    assert convolution.bias is not None
                    convolution.bias[0] = shift

        self.to(memory_format=torch.channels_last)  # two to five times faster on a CPU

    def forward(
        self, similarity: Tensor, row_mask: Mask = None, column_mask: Mask = None
    ) -> Tensor:
        """similarity: [P, T, T'], both >= 4; masks: bool [P, T] and [P, T']. Returns raw output [P,
        T//4, T'//4]."""
        # Padding must hold what a convolution sees beyond the edge of an unpadded pair. A pooled
        # entry that mixes a real frame with padding does not exist without padding, so it is masked
        # as well.
        masks = (row_mask, column_mask)
        half = [halve_mask(mask) for mask in masks]
        quarter = [halve_mask(mask) for mask in half]
        fill = fill_zeros if self.pads_zeros else replicate_edges
        # Pooling before the ReLU gives the same values from a quarter of the work.
        hidden = F.max_pool2d(self.conv1(fill(similarity.unsqueeze(1), masks)), 2).relu_()
        hidden = F.max_pool2d(self.conv2(fill(hidden, half)), 2).relu_()
        output: Tensor = self.output(
            self.conv3(fill(hidden, quarter)).to(self.output.weight.dtype).relu_()
        )
        return fill_zeros(output, quarter).squeeze(1)


def fill_zeros(maps: Tensor, masks: Sequence[Mask]) -> Tensor:
    """Maps [P, C, t, t'] with zeros as padding. masks: the real rows, bool [P, t], and the real
    columns, bool [P, t']."""
    for real, shape in zip(masks, ((-1, 1), (1, -1)), strict=True):
        if real is not None:
            maps = maps * real.view(len(real), 1, *shape)
    return maps


def replicate_edges(maps: Tensor, masks: Sequence[Mask]) -> Tensor:
    """Maps [P, C, t, t'] with their last real row and column repeated over the padding; masks as
    for `fill_zeros`."""
    for real, dim in zip(masks, (2, 3), strict=True):
        if real is not None:
            position = torch.arange(maps.shape[dim], device=maps.device)
            index = position.minimum(real.sum(1, keepdim=True) - 1).clamp(
                min=0
            )  # a strip may hold padding alone
            index = index[:, None, :, None] if dim == 2 else index[:, None, None, :]
            maps = maps.gather(dim, index.expand(maps.shape))

    return maps
