"""What every model family has: one way to embed videos, and one to compare embeddings.

A family is a subclass of `VideoNetwork` with frozen settings that carry its name. `hapvr.model.checkpoint` builds them,
and `hapvr.train.families` says how each is trained. Everything else that uses a network knows this interface alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from hapvr.model.settings import AnyNetworkSettings

Mask = Tensor | None
"""Which frames of clips are real: bool [N, T], True first and at least once per clip; None: all are."""

GROUP_FRAMES = {"cpu": 256, "cuda": 2**13}
"""Frames of videos that are scored together, with their padding; a longer video is scored alone."""


@dataclass(frozen=True)
class Similarities:
    """Similarities of all pairs of Q queries and N references.

    frame: [Q, N, T, T'] before the comparator, 0 at padding; refined: [Q, N, t, t'] after it and hard-tanh;
    video: [Q, N] in [-1, 1]; regularization: [], the sum of how far the comparator's raw output leaves [-1, 1].
    """

    frame: Tensor
    refined: Tensor
    video: Tensor
    regularization: Tensor


class VideoNetwork(nn.Module, ABC):
    """Embeds videos from features of their frames, and compares embeddings.

    An embedding is [T, r, d]: a row of r vectors per frame, so that a part of a video can be cut from it, frames can be
    indexed, and matching frames can be found. A family of one vector per video gives frame vectors, r = 1, and pools
    them in `compare`.

    dims: D, values per region of the features. needs_extras: whether `embed` reads pooled vectors of extras_dims values and
    magnitudes, which the features then carry behind the regions, see `hapvr.model.frame_extras`.
    """

    settings: AnyNetworkSettings
    dims: int
    extras_dims: int = 0
    needs_extras: bool = False

    def scoring_settings(self) -> dict[str, Any]:
        """Everything but the weights that decides a score, as JSON values."""
        return {"dims": self.dims, "extras_dims": self.extras_dims, **self.settings.model_dump(mode="json")}

    @property
    def embedding_dims(self) -> int:
        """d, values per vector of an embedding."""
        return self.dims

    @abstractmethod
    def embed(self, features: Tensor, *, mask: Mask = None) -> Tensor:
        """Embeddings [..., T, r, d] of features [..., T, R, D], in the dtype of the weights.

        mask: bool [..., T], real frames first; None: all are real. Padding is 0 in the result where a family mixes frames.
        """

    def compare(
        self, query: Tensor, reference: Tensor, *, query_mask: Mask = None, reference_mask: Mask = None
    ) -> Similarities:
        """Similarities, with gradients, of all pairs of embedded clips [Q, T, r, d] and [N, T', r, d].

        masks: bool [Q, T] and [N, T'], real frames first. Padding changes no score.
        """
        with_itself = query is reference and query_mask is reference_mask
        query, reference = (
            clips if mask is None else clips.masked_fill(~mask[:, :, None, None], 0)
            for clips, mask in ((query, query_mask), (reference, reference_mask))
        )
        return self._compare(query, query if with_itself else reference, query_mask, reference_mask)

    @abstractmethod
    def _compare(self, query: Tensor, reference: Tensor, query_mask: Mask, reference_mask: Mask) -> Similarities:
        """`compare` of clips whose padding is 0."""

    @abstractmethod
    def frame_similarity(self, query: Tensor, reference: Tensor) -> Tensor:
        """[T, T'] float32: how alike frames of two embedded videos [T, r, d] and [T', r, d] are."""

    @abstractmethod
    def self_similarity(self, video: Tensor) -> Tensor:
        """[T]: `frame_similarity` of each frame of an embedded video with itself."""

    @torch.inference_mode()
    def score_videos(self, queries: Sequence[Tensor], references: Sequence[Tensor]) -> Tensor:
        """Video similarities [Q, N] float32 of embeddings [T, r, d] of any lengths, of each pair as `compare` gives it."""
        scores, query_groups = torch.empty(len(queries), len(references)), list(padded_groups(queries))
        for columns, reference, reference_mask in padded_groups(references):
            for rows, query, query_mask in query_groups:
                found = self._compare(query, reference, query_mask, reference_mask).video
                scores[torch.tensor(rows)[:, None], torch.tensor(columns)] = found.float().cpu()
        return scores

    def score(
        self, query: Tensor, reference: Tensor, *, query_mask: Mask = None, reference_mask: Mask = None
    ) -> Tensor:
        """Video similarities [Q, N] in [-1, 1] of all pairs of embedded clips; arguments as for `compare`."""
        return self.compare(query, reference, query_mask=query_mask, reference_mask=reference_mask).video


class FrameVectorNetwork(VideoNetwork):
    """A family of one vector of D values per frame, which are compared by their cosines, 0 for vectors of 0: embeddings
    are [T, 1, D]."""

    def _compare(self, query: Tensor, reference: Tensor, query_mask: Mask, reference_mask: Mask) -> Similarities:
        video = video_vectors(query[:, :, 0], query_mask) @ video_vectors(reference[:, :, 0], reference_mask).T
        first, second = (F.normalize(clips[:, :, 0].to(video.dtype), dim=-1) for clips in (query, reference))
        frame = torch.einsum("qtd,nsd->qnts", first, second)
        return Similarities(frame=frame, refined=frame, video=video, regularization=video.new_zeros(()))

    @torch.inference_mode()
    def score_videos(self, queries: Sequence[Tensor], references: Sequence[Tensor]) -> Tensor:
        """Cosines [Q, N] of the vectors of videos, from embeddings [T, 1, D] of any lengths."""
        first, second = (torch.cat([video_vectors(one[None, :, 0]) for one in part]) for part in (queries, references))
        return (first @ second.T).float().cpu()

    @torch.inference_mode()
    def frame_similarity(self, query: Tensor, reference: Tensor) -> Tensor:
        first, second = (F.normalize(video[:, 0].float(), dim=-1) for video in (query, reference))
        return first @ second.T

    @torch.inference_mode()
    def self_similarity(self, video: Tensor) -> Tensor:
        return F.normalize(video[:, 0].float(), dim=-1).square().sum(-1)


def padded_groups(videos: Sequence[Tensor]) -> Iterator[tuple[list[int], Tensor, Mask]]:
    """Videos [T, R, D] of similar lengths together: which they are, as clips [N, T, R, D] padded with 0, and their mask."""
    order = sorted(range(len(videos)), key=lambda index: len(videos[index]))
    while order:
        most = GROUP_FRAMES.get(videos[order[0]].device.type, 2**13)
        size = next((n for n, index in enumerate(order) if (n + 1) * len(videos[index]) > most), len(order))
        group, order = order[: max(size, 1)], order[max(size, 1) :]
        clips = pad_sequence([videos[index] for index in group], batch_first=True)
        lengths = torch.tensor([len(videos[index]) for index in group], device=clips.device)
        equal = len(videos[group[0]]) == clips.shape[1]
        yield group, clips, None if equal else torch.arange(clips.shape[1], device=clips.device) < lengths[:, None]


def video_vectors(frames: Tensor, mask: Mask = None) -> Tensor:
    """Unit vectors [N, D] in float32 or wider of the mean over real frames [N, T, D] (mask: bool [N, T])."""
    frames = frames.to(torch.promote_types(frames.dtype, torch.float32))
    return F.normalize((frames if mask is None else frames.masked_fill(~mask[..., None], 0)).sum(1), dim=-1)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """What torch draws inside, on the CPU or on this device, follows from the seed; its generators are then as they were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
