"""The networks of an untrained model: a frozen encoder, and frame vectors compared as they are.

Nothing is learned, so nothing but numpy is needed: the similarity of two frames is the mean over
the query's regions of the best product, and of two videos the mean over the query's frames of the
best frames (TopK-Chamfer similarity, HAP-VR Eq. 3 and 5).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hapvr.model.settings import NetworkSettings
from hapvr.networks.batches import Embed
from hapvr.scorer.onnx_networks import Floats, chamfer

MAX_PRODUCTS = 2**24
"""How many products of regions are in memory at once: 64 MiB."""
UNTRAINED = NetworkSettings(attention=False, comparator=False)
"""Of nine regions only the best counterpart counts; of the frames of a long video the best few
count."""


class PlainNetworks:
    """As `ONNXNetworks`, without a similarity network. Threads may share it."""

    needs_extras = False
    """Whether regions carry pooled vectors and magnitudes, see `hapvr.model.family`."""

    def __init__(self, open_embedder: Callable[[], Embed]) -> None:
        """open_embedder: opens the frozen network, [B, 3, S, S] uint8 -> [B, R, D]; called when the
        first frame is embedded."""
        self.settings = UNTRAINED
        self._open_embedder = open_embedder
        self._embed_frames: Embed | None = None
        self._opening = threading.Lock()

    def regions(self, frames: NDArray[np.uint8]) -> Floats:
        """[B, 3, S, S] uint8 pictures -> unit vectors [B, R, D]."""
        with self._opening:
            if self._embed_frames is None:
                self._embed_frames = self._open_embedder()
        return self._embed_frames(frames)

    def embed(self, regions: NDArray[Any]) -> Floats:
        """Region features [T, R, D] in any floating dtype, as float32."""
        return np.asarray(regions, np.float32)

    def vectors(self, video: Floats) -> Floats:
        """An embedding as an array [T, R, D]: as it is."""
        return video

    def frame_similarity(self, query: Floats, reference: Floats) -> Floats:
        """[T, T'] in [-1, 1] of two embeddings."""
        num_others, num_regions, dims = reference.shape
        others = reference.reshape(-1, dims).T
        step = max(MAX_PRODUCTS // (query.shape[1] * others.shape[1]), 1)
        rows = []
        for start in range(0, len(query), step):
            frames = query[start : start + step]
            products = frames.reshape(-1, dims) @ others
            products = products.reshape(len(frames), -1, num_others, num_regions)
            rows.append(products.max(axis=3).mean(axis=1))

        return np.concatenate(rows)

    def self_similarity(self, video: Floats) -> Floats:
        """[T]: `frame_similarity` of each frame with itself."""
        products = video @ video.transpose(0, 2, 1)
        return np.asarray(products.max(axis=2).mean(axis=1))

    def similarities(self, queries: Sequence[Floats], references: Sequence[Floats]) -> Floats:
        """Video similarities [N, M] in [-1, 1]."""
        rows = [self.comparisons(query, references)[0] for query in queries]
        return np.stack(rows)

    def comparisons(
        self, query: Floats, references: Sequence[Floats]
    ) -> tuple[Floats, list[Floats]]:
        """Video similarities [M] of one query with each reference, and frame similarities [T, T']
        with each."""
        lengths = [len(video) for video in references]
        whole = self.frame_similarity(query, np.concatenate(references))
        frames = np.split(whole, np.cumsum(lengths)[:-1], axis=1)
        scores = [chamfer(one, **self.settings.temporal) for one in frames]
        return np.array(scores, np.float32), frames
