"""What a scorer asks of a model's networks, whichever engine runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Embedding = Any
"""[T, r, d] of one video: a numpy array or a tensor on the engine's device, with a length and slices."""


class Networks(Protocol):
    """The frozen network with its whitening, and the similarity network. `ONNXNetworks` and `TorchNetworks` are such."""

    @property
    def needs_side(self) -> bool:
        """Whether regions carry pooled vectors and magnitudes, see `hapvr.model.side`."""

    def regions(self, frames: NDArray[np.uint8]) -> NDArray[np.float32]:
        """[B, 3, S, S] crops -> whitened region vectors [B, R, D]."""

    def embed(self, regions: NDArray[np.floating]) -> Embedding:
        """Region features [T, R, D] -> what is compared."""

    def vectors(self, video: Embedding) -> NDArray[np.float32]:
        """An embedding as an array [T, r, d]."""

    def similarities(self, query: Embedding, references: Sequence[Embedding]) -> NDArray[np.float32]:
        """Video similarities [N] in [-1, 1] of one query with each reference."""

    def frame_similarity(self, query: Embedding, reference: Embedding) -> NDArray[np.float32]:
        """[T, T'] in [-1, 1], before the comparator."""

    def self_similarity(self, video: Embedding) -> NDArray[np.float32]:
        """[T]: `frame_similarity` of each frame with itself."""
