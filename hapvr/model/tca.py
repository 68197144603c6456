"""TCA (Shao et al., WACV 2021): a transformer mixes the frames of a video, and their mean stands
for the video."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.errors import ArgumentError
from hapvr.model.family import FrameVectorNetwork, Mask, Similarities, VideoNetwork
from hapvr.model.settings import TcaSettings
from hapvr.model.similarity import chamfer


class ContextNetwork(FrameVectorNetwork):
    """Frames that know of each other, and their mean (TCA 3.3 and 3.6).

    An embedding holds the encoder's outputs [T, 1, D] as they are: their mean, made a unit vector,
    is the video vector, and each made a unit vector is a frame vector. No position is encoded, so
    the order of frames does not matter.

    dims: D, values per region and of every vector; ArgumentError unless a multiple of the heads."""

    settings: TcaSettings

    def __init__(self, settings: TcaSettings, *, dims: int) -> None:
        super().__init__()
        if dims < 1 or dims % settings.heads:
            raise ArgumentError(
                f"train.network.heads: {settings.heads} heads do not share {dims} values per "
                "region (whitening.dims) evenly; "
                "expected a divisor of the values"
            )

        self.settings = settings
        self.dims = dims
        self.embedding_dims = dims
        layer = nn.TransformerEncoderLayer(
            dims, settings.heads, settings.feedforward, settings.dropout, batch_first=True
        )
        # torch copies the layer, so that several start with equal weights, as the release's do.
        self.transformer_encoder = nn.TransformerEncoder(
            layer, settings.layers, enable_nested_tensor=False
        )

    def embed(self, features: Tensor, *, mask: Mask = None) -> Tensor:
        """The encoder's output [..., T, 1, D], 0 at padding: the input of `compare`. features:
        [..., T, R, D]. A frame vector is the only region as it is, or the mean of several, made a
        unit vector. mask: bool [..., T], real frames, at least one per video; padding is never
        attended to."""
        if mask is not None:
            features = features.masked_fill(~mask[..., None, None], 0)
        features = features.to(next(self.transformer_encoder.parameters()).dtype)
        if features.shape[-2] == 1:
            frames = features[..., 0, :]
        else:
            frames = F.normalize(features.mean(-2), dim=-1)

        flat_frames = frames.reshape(-1, *frames.shape[-2:])
        flat_mask = None if mask is None else mask.reshape(-1, mask.shape[-1])
        encoded = self.encode(flat_frames, flat_mask)
        return encoded.view(*frames.shape[:-1], 1, self.dims)

    def encode(self, frames: Tensor, mask: Mask = None) -> Tensor:
        """The transformer alone: frame vectors [N, T, D] to [N, T, D], 0 at padding. mask: bool [N,
        T], real frames."""
        padding = None if mask is None else ~mask
        encoded: Tensor = self.transformer_encoder(frames, src_key_padding_mask=padding)
        return encoded if padding is None else encoded.masked_fill(padding[..., None], 0)

    def _compare(
        self, query: Tensor, reference: Tensor, query_mask: Mask, reference_mask: Mask
    ) -> Similarities:
        similarities = super()._compare(query, reference, query_mask, reference_mask)
        if self.settings.level == "video":
            return similarities
        video = chamfer(
            similarities.frame,
            symmetric=self.settings.symmetric_chamfer,
            row_mask=None if query_mask is None else query_mask[:, None],
            column_mask=None if reference_mask is None else reference_mask[None],
        )
        return replace(similarities, video=video)

    def score_videos(self, queries: Sequence[Tensor], references: Sequence[Tensor]) -> Tensor:
        """Cosines [Q, N] of video vectors, or Chamfer similarities of frames, of embeddings [T, 1,
        D] of any lengths."""
        if self.settings.level == "video":
            return super().score_videos(queries, references)
        return VideoNetwork.score_videos(self, queries, references)
