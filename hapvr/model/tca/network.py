"""TCA's network: a transformer encoder mixes the frames of a video, and the mean of its frames stands for the video."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.errors import ArgumentError
from hapvr.model.clips import check_clips, clear_padding
from hapvr.model.family import PackedScorer, Similarities, VideoNetwork
from hapvr.model.network import SimilarityNetwork
from hapvr.model.packed import Limits, PackedVideos
from hapvr.model.settings import NetworkSettings
from hapvr.model.tca.settings import TcaSettings

FRAME_CHAMFER = NetworkSettings(spatial_rate=0, temporal_rate=0, attention=False, comparator=False)
"""Chamfer similarity of frame vectors and nothing else."""


class ContextNetwork(VideoNetwork):
    """Frames that know of each other, and their mean (TCA 3.2 to 3.5).

    An embedding holds the encoder's outputs [T, 1, D] as they are: their mean, made a unit vector, is the video vector, and
    each made a unit vector is a frame vector. No position is encoded, so the order of frames does not matter.

    dims: D, values per region and of every vector; ArgumentError unless a multiple of the heads. generator: draws the
    weights and leaves torch's global generator alone.
    """

    def __init__(self, settings: TcaSettings, *, dims: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        if dims < 1 or dims % settings.heads:
            raise ArgumentError(
                f"train.network.heads: {settings.heads} heads do not share {dims} values per region (whitening.dims) evenly; "
                "wanted a divisor of the values"
            )
        self.settings, self.dims = settings, dims
        with torch.random.fork_rng(devices=[], enabled=generator is not None):
            if generator is not None:
                torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            layer = nn.TransformerEncoderLayer(
                dims, settings.heads, settings.feedforward, dropout=settings.dropout, batch_first=True
            )
            # torch copies the layer, so that several start with equal weights, as the release's do.
            self.transformer_encoder = nn.TransformerEncoder(layer, settings.layers, enable_nested_tensor=False)
            self.matcher = SimilarityNetwork(_matching(settings), dims=dims, generator=generator)
        self.matcher.requires_grad_(False)

    def scoring_settings(self) -> dict[str, Any]:
        """Everything but the weights that decides a score, as values of JSON; stored beside the weights."""
        return {"dims": self.dims, **self.settings.scoring()}

    @property
    def embedding_dims(self) -> int:
        """D."""
        return self.dims

    def embed(
        self,
        features: Tensor,
        *,
        mask: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """The encoder's output [..., T, 1, D], 0 at padding: the input of `compare`.

        features: [..., T, R, D]. A frame vector is the only region as it is, or the mean of several, made a unit vector.
        mask: bool [..., T], real frames, at least one per video; padding is never attended to. dtype: of the result.
        """
        if mask is not None:
            features = features.masked_fill(~mask[..., None, None], 0)
        features = features.to(self._dtype)
        frames = features[..., 0, :] if features.shape[-2] == 1 else F.normalize(features.mean(-2), dim=-1)
        encoded = self.encode(frames.flatten(0, -3) if frames.ndim > 2 else frames[None], _flat(mask))
        return encoded.view(*frames.shape[:-1], 1, self.dims).to(dtype or encoded.dtype)

    def encode(self, frames: Tensor, mask: Tensor | None = None) -> Tensor:
        """The transformer alone: frame vectors [N, T, D] to [N, T, D], 0 at padding. mask: bool [N, T], real frames."""
        if mask is None:
            encoded: Tensor = self.transformer_encoder(frames)
            return encoded
        encoded = self.transformer_encoder(frames, src_key_padding_mask=~mask)
        return encoded.masked_fill(~mask[..., None], 0)

    def compare(
        self,
        query: Tensor,
        reference: Tensor,
        *,
        query_mask: Tensor | None = None,
        reference_mask: Tensor | None = None,
    ) -> Similarities:
        """Similarities of all pairs of embedded clips, by video vectors or by frames as `level` says.

        query: [Q, T, 1, D]; reference: [N, T', 1, D]; masks: bool [Q, T] and [N, T'], real frames first. Raises ArgumentError
        for shapes that disagree and values that are not finite.
        """
        check_clips("query", query, query_mask)
        check_clips("reference", reference, reference_mask)
        frames = [
            F.normalize(clear_padding(c, m), dim=-1) for c, m in ((query, query_mask), (reference, reference_mask))
        ]
        found = self.matcher.compare(*frames, query_mask=query_mask, reference_mask=reference_mask)
        if self.settings.level == "frame":
            return found
        video = video_vectors(query[:, :, 0], query_mask) @ video_vectors(reference[:, :, 0], reference_mask).T
        return Similarities(frame=found.frame, refined=found.frame, video=video, regularization=video.new_zeros(()))

    @torch.inference_mode()
    def frame_similarity(self, query: Tensor, reference: Tensor) -> Tensor:
        """[T, T'], cosines of frame vectors. query: [T, 1, D], reference: [T', 1, D], embedded."""
        first, second = (F.normalize(video[:, 0].float(), dim=-1) for video in (query, reference))
        return first @ second.T

    @torch.inference_mode()
    def self_similarity(self, video: Tensor) -> Tensor:
        """[T], 1 for every frame. video: [T, 1, D]."""
        return F.normalize(video[:, 0].float(), dim=-1).square().sum(-1)

    def pack(self, videos: Sequence[Tensor]) -> PackedVideos:
        """Unit vectors of embeddings [T, 1, D]: of each video one at level `video`, else of each frame one."""
        if self.settings.level == "frame":
            return PackedVideos.from_videos([F.normalize(video, dim=-1) for video in videos])
        return PackedVideos.from_videos([video_vectors(video[None, :, 0])[:, None] for video in videos])

    def packed_scorer(self, *, dtype: torch.dtype | None = None, limits: Limits | None = None) -> PackedScorer:
        """Products of video vectors, or Chamfer similarities of frames, of what `pack` gave."""
        if self.settings.level == "frame":
            return self.matcher.packed_scorer(dtype=dtype, limits=limits)
        return _products

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.transformer_encoder.parameters()).dtype


def video_vectors(encoded: Tensor, mask: Tensor | None = None) -> Tensor:
    """Unit vectors [N, D] in float32 of encoded frames [N, T, D]: the mean over real frames (mask: bool [N, T])."""
    encoded = encoded.to(torch.promote_types(encoded.dtype, torch.float32))
    if mask is None:
        return F.normalize(encoded.mean(1), dim=-1)
    total = encoded.masked_fill(~mask[..., None], 0).sum(1)
    return F.normalize(total / mask.sum(1, keepdim=True).to(total.dtype), dim=-1)


@torch.inference_mode()
def _products(query: PackedVideos, reference: PackedVideos) -> Tensor:
    return query.frames[:, 0].float() @ reference.frames[:, 0].float().T


def _matching(settings: TcaSettings) -> NetworkSettings:
    """How frames are compared: Chamfer similarity, with ViSiL's comparator where it is asked for."""
    changes = {
        "symmetric_chamfer": settings.symmetric_chamfer,
        "comparator": settings.comparator,
        "padding_mode": "replicate" if settings.comparator else FRAME_CHAMFER.padding_mode,
    }
    return FRAME_CHAMFER.model_copy(update=changes)


def _flat(mask: Tensor | None) -> Tensor | None:
    """[..., T] -> [N, T]."""
    return None if mask is None else mask.reshape(-1, mask.shape[-1])
