"""The similarity network: attention over regions, TopK-Chamfer, and the comparator on frame similarities.

One class scores as HAP-VR, S2VS, DnS and ViSiL do; `NetworkSettings` says which.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hapvr.model.clips import Mask, halve_mask, pad_to_min_frames
from hapvr.model.family import Similarities, VideoNetwork
from hapvr.model.layers import Binarization, Comparator, GatedAttention, LinearAttention
from hapvr.model.settings import NetworkSettings, strips
from hapvr.model.similarity import chamfer, frame_similarity

MAX_COMPARATOR_ELEMENTS = {"cpu": 2**16, "cuda": 2**22}
"""Frame similarities that the comparator sees at once, by device; on a processor its widest layer then fits the cache."""

MAX_STRIP_ELEMENTS = 2**21
"""Frame similarities of one pair that the comparator sees at once; a larger pair is refined in strips that overlap by what
the convolutions see, except in training."""

MAX_KEPT_ELEMENTS = {"cpu": 2**22, "cuda": 2**24}
"""Frame similarities up to which training keeps activations of the comparator, about 350 bytes for each. Above that the
backward pass computes them again."""


class SimilarityNetwork(VideoNetwork):
    """Scores pairs of videos from their region features (HAP-VR section 3.3.1).

    dims: D, values per region. generator: draws the weights and leaves torch's global generator alone; None draws from
    the global one.
    """

    settings: NetworkSettings

    def __init__(self, settings: NetworkSettings, *, dims: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.settings, self.dims = settings, dims
        self.attention: nn.Module = nn.Identity()
        self.binarization: nn.Module = nn.Identity()
        self.comparator: Comparator | None = None
        form = settings.attention_form
        # torch's layers draw from the global generator before ours set their weights, so its state is restored.
        with torch.random.fork_rng(devices=[], enabled=generator is not None):
            if settings.attention and form == "gated":
                self.attention = GatedAttention(dims=dims, generator=generator)
            elif settings.attention:
                self.attention = LinearAttention(dims=dims, normalize=form == "cosine", generator=generator)
            elif settings.binary_bits:
                self.binarization = Binarization(dims=dims, bits=settings.binary_bits, generator=generator)
            if settings.comparator:
                self.comparator = Comparator(settings, generator=generator)

    @property
    def embedding_dims(self) -> int:
        """D, or the bits of a code."""
        return self.settings.binary_bits or self.dims

    def embed(self, features: Tensor, *, mask: Mask = None) -> Tensor:
        """Attention-weighted regions, or their codes: the input of `compare`.

        features: [..., T, R, D]. mask: not read, because each region is weighed by itself. Returns [..., T, R, D], or
        [..., T, R, bits] from a network with binary_bits.
        """
        features = features.to(self._dtype)
        embedding: Tensor = self.binarization(self.attention(features))
        return embedding.to(features.dtype)

    def _compare(self, query: Tensor, reference: Tensor, query_mask: Mask, reference_mask: Mask) -> Similarities:
        if query_mask is not None or reference_mask is not None:
            query_mask, reference_mask = _or_all_real(query_mask, query), _or_all_real(reference_mask, reference)
        # Means over frames and losses are computed in float32 or wider, also under autocast.
        frame = frame_similarity(query, reference, **self.settings.spatial)
        refined, overshoot = frame, frame.new_zeros(())
        if self.comparator is not None:
            least = self.settings.min_frames
            longer, query_mask = pad_to_min_frames(frame, query_mask, dim=2, min_frames=least)
            longer, reference_mask = pad_to_min_frames(longer, reference_mask, dim=3, min_frames=least)
            raw = self._refine(self.comparator, longer, query_mask, reference_mask).to(frame.dtype)
            refined = F.hardtanh(raw)
            overshoot = (raw - refined).abs().sum()
            if query_mask is not None and reference_mask is not None:
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
        """[T, T'] before the comparator, as `compare` gives it. query: [T, R, D], reference: [T', R', D], embedded."""
        return frame_similarity(query[None], reference[None], **self.settings.spatial)[0, 0].float()

    @torch.inference_mode()
    def self_similarity(self, video: Tensor) -> Tensor:
        """[T]: similarity of each frame with itself, the square of what attention weighs it with. video: [T, R, D]."""
        return chamfer(video @ video.transpose(1, 2), **self.settings.spatial)

    @property
    def _dtype(self) -> torch.dtype:
        # Features come from disk in half precision and are computed in the precision of the weights. A network without
        # weights computes in float32, where sums of 512 products cannot overflow.
        return next((p.dtype for p in self.parameters()), torch.float32)

    @staticmethod
    def _refine(comparator: Comparator, frame: Tensor, query_mask: Mask, reference_mask: Mask) -> Tensor:
        num_queries, num_references = frame.shape[:2]
        frame = frame.to(comparator.conv1.weight.dtype)
        step = max(MAX_COMPARATOR_ELEMENTS.get(frame.device.type, 2**22) // (frame.shape[2] * frame.shape[3]), 1)
        pairs = torch.split(frame.flatten(0, 1), step)
        if query_mask is None or reference_mask is None:
            rows: tuple[Mask, ...] = (None,) * len(pairs)
            columns = rows
        else:
            rows = torch.split(query_mask.repeat_interleave(num_references, 0), step)
            columns = torch.split(reference_mask.repeat(num_queries, 1), step)
        refine: Any = comparator
        if frame.numel() > MAX_KEPT_ELEMENTS.get(frame.device.type, 2**24) and torch.is_grad_enabled():
            refine = partial(checkpoint, comparator, use_reentrant=False, preserve_rng_state=False)
        elif frame.shape[2] * frame.shape[3] > MAX_STRIP_ELEMENTS and not torch.is_grad_enabled():
            refine = partial(refine_in_strips, comparator)
        refined = torch.cat([refine(*inputs) for inputs in zip(pairs, rows, columns, strict=True)])
        return refined.view(num_queries, num_references, *refined.shape[1:])


def refine_in_strips(comparator: Comparator, frame: Tensor, row_mask: Mask = None, column_mask: Mask = None) -> Tensor:
    """What the comparator gives for frame similarities [P, T, T'] that are too large to refine at once; its arguments."""
    height = MAX_STRIP_ELEMENTS // (len(frame) * frame.shape[2])
    parts = []
    for rows, kept in strips(frame.shape[1], height=height):
        part = comparator(frame[:, rows], None if row_mask is None else row_mask[:, rows], column_mask)
        parts.append(part[:, kept])
    return torch.cat(parts, dim=1)


def _or_all_real(mask: Mask, clips: Tensor) -> Tensor:
    return clips.new_ones(clips.shape[:2], dtype=torch.bool) if mask is None else mask
