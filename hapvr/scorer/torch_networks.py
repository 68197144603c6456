"""A bundle's networks in torch, on any device: the reference, and the faster engine for one query with many references."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hapvr.features.backbone import Backbone
from hapvr.features.extract import region_embedder
from hapvr.features.whitening import Whitening
from hapvr.model.family import VideoNetwork
from hapvr.model.packed import Limits
from hapvr.scorer.networks import Networks


class TorchNetworks:
    """See `hapvr.scorer.networks.Networks`. network: of any family. dtype: of embeddings and comparisons, None: that of its
    weights; the frozen networks have a precision of their own."""

    def __init__(
        self,
        *,
        backbone: Backbone,
        whitening: Whitening,
        network: VideoNetwork,
        device: torch.device | str,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.network = network.to(device).eval()
        self._device = torch.device(device)
        self._dtype = dtype
        self._embed_frames = region_embedder(backbone, whitening, device, side=network.needs_side)
        # one operation at a time, so that torch's number of threads is left alone
        limits = dataclasses.replace(Limits.for_device(self._device), workers=0)
        self._score_packed = self.network.packed_scorer(dtype=dtype, limits=limits)

    @property
    def needs_side(self) -> bool:
        return self.network.needs_side

    @torch.inference_mode()
    def regions(self, frames: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.asarray(self._embed_frames(torch.from_numpy(frames)).numpy(), np.float32)

    @torch.inference_mode()
    def embed(self, regions: NDArray[np.floating]) -> Tensor:
        return self.network.embed(torch.from_numpy(regions).to(self._device), dtype=self._dtype)

    def vectors(self, video: Tensor) -> NDArray[np.float32]:
        return np.asarray(video.float().cpu().numpy())

    @torch.inference_mode()
    def similarities(self, query: Tensor, references: Sequence[Tensor]) -> NDArray[np.float32]:
        scores = self._score_packed(self.network.pack([query]), self.network.pack(references))
        return np.asarray(scores[0].cpu().numpy(), np.float32)

    def frame_similarity(self, query: Tensor, reference: Tensor) -> NDArray[np.float32]:
        return np.asarray(self.network.frame_similarity(query, reference).cpu().numpy())

    def self_similarity(self, video: Tensor) -> NDArray[np.float32]:
        return np.asarray(self.network.self_similarity(video).float().cpu().numpy())


def torch_network(networks: Networks) -> VideoNetwork:
    """The similarity network of a scorer that was loaded into torch."""
    assert isinstance(networks, TorchNetworks)
    return networks.network
