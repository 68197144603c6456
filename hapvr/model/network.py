"""The similarity network: attention over regions, TopK-Chamfer, and the comparator on frame similarities.

One class covers HAP-VR, S2VS, DnS and ViSiL scoring; what differs is settings (see `NetworkSettings`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hapvr.errors import ArgumentError
from hapvr.model.clips import check_clips, clear_padding, halve_mask, repeat_short
from hapvr.model.similarity import Pooling, chamfer, check_rate, frame_similarity

MAX_CHUNK_CELLS = {"cpu": 2**18, "cuda": 2**22}
"""Frame similarities the comparator sees at once, by device: its widest layer then stays near a processor's cache."""

MAX_KEPT_CELLS = 2**22
"""Frame similarities up to which training keeps the comparator's activations, about 330 bytes for each."""


@dataclass(frozen=True)
class Similarities:
    """What the network says about all pairs of Q queries and N references.

    frame: [Q, N, T, T'] before the comparator, 0 at padding; refined: [Q, N, t, t'] after it and hard-tanh;
    video: [Q, N] in [-1, 1]; regularization: [], the sum of how far the comparator's raw output leaves [-1, 1].
    """

    frame: Tensor
    refined: Tensor
    video: Tensor
    regularization: Tensor


@dataclass(frozen=True)
class NetworkSettings:
    """Everything but the weights that decides a score; stored beside them."""

    dims: int = 512
    spatial_rate: float = 0.10
    temporal_rate: float = 0.03
    attention: bool = True
    attention_form: Literal["gated", "linear"] = "gated"
    comparator: bool = True
    pooling: Pooling = "chamfer"
    symmetric_chamfer: bool = False
    symmetric: bool = False

    def __post_init__(self) -> None:
        check_rate("spatial_rate", self.spatial_rate)
        check_rate("temporal_rate", self.temporal_rate)
        if self.dims < 1:
            raise ArgumentError(f"dims: got {self.dims}, wanted the number of values per region, 1 or more")
        for name, value, allowed in (
            ("attention_form", self.attention_form, ("gated", "linear")),
            ("pooling", self.pooling, ("chamfer", "max")),
        ):
            if value not in allowed:
                raise ArgumentError(f"{name}: got {value!r}, wanted one of {', '.join(allowed)}")


class GatedAttention(nn.Module):
    """A weight per region, x <- sigmoid(u . tanh(W x + b)) x (S2VS section 3.1). [..., D] -> [..., D], norms shrink."""

    def __init__(self, *, dims: int) -> None:
        super().__init__()
        self.transform = nn.Linear(dims, dims)
        self.context_vector = nn.Linear(dims, 1, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        """features: [..., D]. Returns the same shape."""
        return features * torch.sigmoid(self.context_vector(torch.tanh(self.transform(features))))


class LinearAttention(nn.Module):
    """A weight per region, x <- (u . x / 2 + 1/2) x with unit u (ViSiL section 3.2). [..., D] -> [..., D]."""

    def __init__(self, *, dims: int) -> None:
        super().__init__()
        self.context_vector = nn.Linear(dims, 1, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        """features: [..., D] of unit norm, so that the weights lie in [0, 1]. Returns the same shape."""
        return features * (F.linear(features, F.normalize(self.context_vector.weight)) / 2 + 0.5)


class Comparator(nn.Module):
    """Four convolutions that turn frame similarities into refined ones at a quarter of the rate (ViSiL section 3.3)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.conv3 = nn.Conv2d(64, 128, 3, padding=1)
        self.output = nn.Conv2d(128, 1, 1)
        self.to(memory_format=torch.channels_last)  # two to five times faster on a CPU

    def forward(self, similarity: Tensor, row_mask: Tensor | None = None, column_mask: Tensor | None = None) -> Tensor:
        """similarity: [P, T, T'], both >= 4; masks: bool [P, T] and [P, T']. Returns raw output [P, T//4, T'//4]."""
        cells = None if row_mask is None or column_mask is None else (row_mask, column_mask)
        hidden = _clear_cells(similarity.unsqueeze(1), cells)
        for convolution in (self.conv1, self.conv2):
            # Zeros at padding are what the convolutions see beyond the edge of an unpadded pair. A pooled cell that
            # mixes a real frame with padding does not exist there either, so the mask halves before it is applied.
            # Pooling before ReLU gives the same from a quarter of the work.
            hidden = F.relu(F.max_pool2d(convolution(hidden), 2))
            cells = None if cells is None else (halve_mask(cells[0]), halve_mask(cells[1]))
            hidden = _clear_cells(hidden, cells)
        hidden = _clear_cells(F.relu(self.conv3(hidden)), cells)
        return _clear_cells(self.output(hidden), cells).squeeze(1)


def _clear_cells(maps: Tensor, cells: tuple[Tensor, Tensor] | None) -> Tensor:
    if cells is None:
        return maps
    rows, columns = cells
    return maps * (rows[:, None, :, None] & columns[:, None, None, :])


class SimilarityNetwork(nn.Module):
    """Scores pairs of videos from their region features (HAP-VR section 3.3.1).

    dims: D, values per region; spatial_rate, temporal_rate: top-k rates in [0, 1] over regions and frames;
    attention: weigh regions, in the given form; comparator: refine frame similarities by the CNN; pooling: "chamfer" or
    "max"; symmetric_chamfer: both directions at each level (ViSiL_sym); symmetric: the mean of score(q, r) and
    score(r, q), which differ otherwise.
    """

    def __init__(
        self,
        *,
        dims: int = 512,
        spatial_rate: float = 0.10,
        temporal_rate: float = 0.03,
        attention: bool = True,
        attention_form: Literal["gated", "linear"] = "gated",
        comparator: bool = True,
        pooling: Pooling = "chamfer",
        symmetric_chamfer: bool = False,
        symmetric: bool = False,
    ) -> None:
        super().__init__()
        self.settings = NetworkSettings(
            dims=dims,
            spatial_rate=spatial_rate,
            temporal_rate=temporal_rate,
            attention=attention,
            attention_form=attention_form,
            comparator=comparator,
            pooling=pooling,
            symmetric_chamfer=symmetric_chamfer,
            symmetric=symmetric,
        )
        form: Callable[..., nn.Module] = GatedAttention if attention_form == "gated" else LinearAttention
        self.attention = form(dims=dims) if attention else nn.Identity()
        self.comparator = Comparator() if comparator else None

    @classmethod
    def from_settings(cls, settings: NetworkSettings) -> SimilarityNetwork:
        """A network with freshly initialised weights and these settings."""
        options: dict[str, Any] = asdict(settings)
        return cls(**options)

    def embed(self, features: Tensor) -> Tensor:
        """Attention-weighted regions, which are what `compare` takes. features: [..., T, R, D]. Same shape."""
        if features.ndim < 3 or features.shape[-1] != self.settings.dims:
            raise ArgumentError(
                f"features: got shape {tuple(features.shape)}, wanted [..., frames, regions, {self.settings.dims}]"
            )
        embedding: Tensor = self.attention(features.to(self._dtype))
        return embedding

    def compare(
        self,
        query: Tensor,
        reference: Tensor,
        *,
        query_mask: Tensor | None = None,
        reference_mask: Tensor | None = None,
    ) -> Similarities:
        """Similarities of all pairs of embedded clips.

        query: [Q, T, R, D]; reference: [N, T', R', D], both from `embed`; masks: bool [Q, T] and [N, T'], real frames
        first. Padding changes no score. Raises ArgumentError for shapes that disagree and values that are not finite.
        """
        check_clips("query", query, query_mask, dims=self.settings.dims)
        check_clips("reference", reference, reference_mask, dims=self.settings.dims)
        if query_mask is not None or reference_mask is not None:
            query_mask = _or_all_real(query_mask, query)
            reference_mask = _or_all_real(reference_mask, reference)
        query = clear_padding(query.to(self._dtype), query_mask)
        reference = clear_padding(reference.to(self._dtype), reference_mask)
        forth = self._compare_one_way(query, reference, query_mask, reference_mask)
        if not self.settings.symmetric:
            return forth
        back = self._compare_one_way(reference, query, reference_mask, query_mask)
        return Similarities(
            frame=forth.frame,
            refined=forth.refined,
            video=(forth.video + back.video.T) / 2,
            regularization=(forth.regularization + back.regularization) / 2,
        )

    def score(
        self,
        query: Tensor,
        reference: Tensor,
        *,
        query_mask: Tensor | None = None,
        reference_mask: Tensor | None = None,
    ) -> Tensor:
        """Video similarities [Q, N] in [-1, 1] of all pairs of embedded clips; arguments as for `compare`."""
        return self.compare(query, reference, query_mask=query_mask, reference_mask=reference_mask).video

    @property
    def _dtype(self) -> torch.dtype:
        # Half-precision features from disk are computed in the weights' precision; a network without weights keeps them
        # in float32, where sums of 512 products cannot overflow.
        return next((p.dtype for p in self.parameters()), torch.float32)

    def _compare_one_way(
        self, query: Tensor, reference: Tensor, query_mask: Tensor | None, reference_mask: Tensor | None
    ) -> Similarities:
        settings = self.settings
        frame = frame_similarity(
            query,
            reference,
            rate=settings.spatial_rate,
            pooling=settings.pooling,
            symmetric=settings.symmetric_chamfer,
        ).float()
        refined, raw = frame, None
        if self.comparator is not None:
            longer, query_mask = repeat_short(frame, query_mask, dim=2)
            longer, reference_mask = repeat_short(longer, reference_mask, dim=3)
            raw = self._refine(longer, query_mask, reference_mask)
            refined = F.hardtanh(raw)
            if query_mask is not None and reference_mask is not None:
                query_mask = halve_mask(halve_mask(query_mask))
                reference_mask = halve_mask(halve_mask(reference_mask))
        video = chamfer(
            refined,
            rate=settings.temporal_rate,
            pooling=settings.pooling,
            symmetric=settings.symmetric_chamfer,
            row_mask=None if query_mask is None else query_mask[:, None],
            column_mask=None if reference_mask is None else reference_mask[None, :],
        )
        overshoot = frame.new_zeros(()) if raw is None else (raw - refined).abs().sum()
        return Similarities(frame=frame, refined=refined, video=video, regularization=overshoot)

    def _refine(self, frame: Tensor, query_mask: Tensor | None, reference_mask: Tensor | None) -> Tensor:
        comparator = self.comparator
        assert comparator is not None
        num_queries, num_references = frame.shape[:2]
        step = max(MAX_CHUNK_CELLS.get(frame.device.type, 2**22) // (frame.shape[2] * frame.shape[3]), 1)
        pairs = torch.split(frame.flatten(0, 1), step)
        if query_mask is None or reference_mask is None:
            rows: tuple[Tensor | None, ...] = (None,) * len(pairs)
            columns = rows
        else:
            rows = torch.split(query_mask.repeat_interleave(num_references, 0), step)
            columns = torch.split(reference_mask.repeat(num_queries, 1), step)
        if frame.numel() > MAX_KEPT_CELLS and torch.is_grad_enabled():
            parts = [
                checkpoint(comparator, *inputs, use_reentrant=False, preserve_rng_state=False)
                for inputs in zip(pairs, rows, columns, strict=True)
            ]
        else:
            parts = [comparator(*inputs) for inputs in zip(pairs, rows, columns, strict=True)]
        refined = torch.cat(parts)
        return refined.view(num_queries, num_references, *refined.shape[1:])


def _or_all_real(mask: Tensor | None, clips: Tensor) -> Tensor:
    return clips.new_ones(clips.shape[:2], dtype=torch.bool) if mask is None else mask
