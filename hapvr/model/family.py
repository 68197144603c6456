"""What every model family has: one way to embed videos, and one to compare embeddings.

A family is a subclass of `VideoNetwork` with frozen settings that carry its name.
`hapvr.model.checkpoint` builds them, and `hapvr.train.families` says how each is trained.
Everything else that uses a network knows only this interface.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from hapvr.errors import ArgumentError
from hapvr.model.settings import NUM_REGIONS, AnyNetworkSettings, extras_rows

Mask = Tensor | None
"""Which frames of clips are real: bool [N, T], True first and at least once per clip; None: all
are."""

GROUP_FRAMES = {"cpu": 256, "cuda": 2**13}
"""How many frames of videos, with their padding, are scored together; a longer video is scored
alone."""


@dataclass(frozen=True)
class Similarities:
    """Similarities of all pairs of Q queries and N references."""

    frame: Tensor
    """[Q, N, T, T'] before the comparator, 0 at padding."""
    refined: Tensor
    """[Q, N, t, t'] after the comparator and hard-tanh."""
    video: Tensor
    """[Q, N] in [-1, 1]."""
    regularization: Tensor
    """[], the sum of how far the comparator's raw output leaves [-1, 1]."""


class VideoNetwork(nn.Module, ABC):
    """Embeds videos from features of their frames, and compares embeddings.

    An embedding is [T, r, d]: a row of r vectors per frame, so that a part of a video can be cut
    from it, frames can be indexed, and matching frames can be found. A family of one vector per
    video gives frame vectors, r = 1, and pools them in `compare`.
    """

    settings: AnyNetworkSettings
    dims: int
    """D, values per region of the features."""
    extras_dims: int = 0
    """C, values of a pooled vector; 0 where `embed` reads none."""
    needs_extras: bool = False
    """Whether `embed` reads pooled vectors and magnitudes, which the features then carry behind
    the regions, see `join_extras`."""
    embedding_dims: int
    """d of an embedding."""
    embeds_videos: bool = False
    """Whether the sum of an embedding over frames is one vector of the whole video."""

    @abstractmethod
    def embed(self, features: Tensor, *, mask: Mask = None) -> Tensor:
        """Embeddings [..., T, r, d] of features [..., T, R, D].

        They are in the dtype of the weights; float32 of a family that computes in it whatever its
        weights are. mask: bool [..., T], real frames first; None: all are real. Padding is 0 in the
        result where a family mixes frames."""

    def compare(
        self,
        query: Tensor,
        reference: Tensor,
        *,
        query_mask: Mask = None,
        reference_mask: Mask = None,
    ) -> Similarities:
        """Similarities, with gradients, of all pairs of embedded clips [Q, T, r, d] and [N, T', r,
        d]. masks: bool [Q, T] and [N, T'], real frames first. Padding changes no score."""
        with_itself = query is reference and query_mask is reference_mask
        query = _without_padding(query, query_mask)
        # The same tensor tells a family that each pair need be computed only once.
        reference = query if with_itself else _without_padding(reference, reference_mask)
        return self._compare(query, reference, query_mask, reference_mask)

    @abstractmethod
    def _compare(
        self, query: Tensor, reference: Tensor, query_mask: Mask, reference_mask: Mask
    ) -> Similarities:
        """`compare` of clips whose padding is 0."""

    @abstractmethod
    def frame_similarity(self, query: Tensor, reference: Tensor) -> Tensor:
        """[T, T'] float32: how alike frames of two embedded videos [T, r, d] and [T', r, d] are."""

    @abstractmethod
    def self_similarity(self, video: Tensor) -> Tensor:
        """[T]: `frame_similarity` of each frame of an embedded video with itself."""

    @torch.inference_mode()
    def score_videos(self, queries: Sequence[Tensor], references: Sequence[Tensor]) -> Tensor:
        """Video similarities [Q, N] float32 of embeddings [T, r, d] of any lengths, of each pair as
        `compare` gives it."""
        scores = torch.empty(len(queries), len(references))
        query_groups = list(padded_groups(queries))
        for columns, reference, reference_mask in padded_groups(references):
            for rows, query, query_mask in query_groups:
                block = self._compare(query, reference, query_mask, reference_mask).video
                scores[torch.tensor(rows)[:, None], torch.tensor(columns)] = block.float().cpu()

        return scores


class FrameVectorNetwork(VideoNetwork):
    """A family of one vector of D values per frame, which are compared by their cosines, 0 for
    vectors of 0: embeddings are [T, 1, D]."""

    embeds_videos = True

    def _compare(
        self, query: Tensor, reference: Tensor, query_mask: Mask, reference_mask: Mask
    ) -> Similarities:
        query = query[:, :, 0]
        reference = reference[:, :, 0]
        video = video_vectors(query, query_mask) @ video_vectors(reference, reference_mask).T
        frame = torch.einsum(
            "qtd,nsd->qnts",
            F.normalize(query.to(video.dtype), dim=-1),
            F.normalize(reference.to(video.dtype), dim=-1),
        )
        return Similarities(
            frame=frame, refined=frame, video=video, regularization=video.new_zeros(())
        )

    @torch.inference_mode()
    def score_videos(self, queries: Sequence[Tensor], references: Sequence[Tensor]) -> Tensor:
        """Cosines [Q, N] of the vectors of videos, from embeddings [T, 1, D] of any lengths."""
        of_queries = torch.cat([video_vectors(video[None, :, 0]) for video in queries])
        of_references = torch.cat([video_vectors(video[None, :, 0]) for video in references])
        return (of_queries @ of_references.T).float().cpu()

    @torch.inference_mode()
    def frame_similarity(self, query: Tensor, reference: Tensor) -> Tensor:
        of_query = F.normalize(query[:, 0].float(), dim=-1)
        of_reference = F.normalize(reference[:, 0].float(), dim=-1)
        return of_query @ of_reference.T

    @torch.inference_mode()
    def self_similarity(self, video: Tensor) -> Tensor:
        return F.normalize(video[:, 0].float(), dim=-1).square().sum(-1)


def _without_padding(clips: Tensor, mask: Mask) -> Tensor:
    """Clips [N, T, r, d], 0 where the mask [N, T] says padding."""
    return clips if mask is None else clips.masked_fill(~mask[:, :, None, None], 0)


def padded_groups(videos: Sequence[Tensor]) -> Iterator[tuple[list[int], Tensor, Mask]]:
    """Videos [T, R, D] of similar lengths together: which they are, as clips [N, T, R, D] padded
    with 0, and their mask."""
    order = sorted(range(len(videos)), key=lambda index: len(videos[index]))
    while order:
        most = GROUP_FRAMES.get(videos[order[0]].device.type, 2**13)
        size = 1
        while size < len(order) and (size + 1) * len(videos[order[size]]) <= most:
            size += 1
        group = order[:size]
        order = order[size:]

        clips = pad_sequence([videos[index] for index in group], batch_first=True)
        mask = None
        if len(videos[group[0]]) < clips.shape[1]:  # the shortest comes first
            lengths = torch.tensor([len(videos[index]) for index in group], device=clips.device)
            mask = torch.arange(clips.shape[1], device=clips.device) < lengths[:, None]

        yield group, clips, mask


def video_vectors(frames: Tensor, mask: Mask = None) -> Tensor:
    """Unit vectors [N, D] in float32 or wider of the mean over real frames [N, T, D] (mask: bool
    [N, T])."""
    frames = frames.to(torch.promote_types(frames.dtype, torch.float32))
    if mask is not None:
        frames = frames.masked_fill(~mask[..., None], 0)
    return F.normalize(frames.sum(1), dim=-1)


def join_extras(regions: Tensor, pooled: Tensor, magnitude: Tensor) -> Tensor:
    """[..., R, D] regions and their frame extras -> [..., R + k, D] in the dtype of the regions,
    padded with zeros.

    So everything between the source of features and a network that reads extras handles one tensor,
    whole or in parts.

    pooled: [..., C], the mean over regions before whitening, of unit norm.
    magnitude: [...], the norm of that mean before any normalisation."""
    dims = regions.shape[-1]
    extras_dims = pooled.shape[-1]
    values = torch.cat([pooled, magnitude.unsqueeze(-1)], dim=-1).to(regions.dtype)
    rows = extras_rows(extras_dims, dims)
    padded = F.pad(values, (0, rows * dims - extras_dims - 1))
    return torch.cat([regions, padded.reshape(*values.shape[:-1], rows, dims)], dim=-2)


def split_extras(features: Tensor, *, extras_dims: int) -> tuple[Tensor, Tensor, Tensor]:
    """Regions, pooled vectors and magnitudes that `join_extras` joined, as views. features: [..., 9
    + k, D]; extras_dims: C. Raises ArgumentError for another number of rows: features without
    pooled vectors, or of another backbone."""
    rows = extras_rows(extras_dims, features.shape[-1])
    if features.shape[-2] != NUM_REGIONS + rows:
        raise ArgumentError(
            f"features: got {features.shape[-2]} rows of {features.shape[-1]} values per "
            f"frame, expected {NUM_REGIONS} regions "
            f"and {rows} rows for a pooled vector of {extras_dims} values and its magnitude; "
            "set features.pooled: true and "
            "extract the features again with the backbone of this network"
        )

    values = features[..., NUM_REGIONS:, :].flatten(-2)
    return features[..., :NUM_REGIONS, :], values[..., :extras_dims], values[..., extras_dims]
