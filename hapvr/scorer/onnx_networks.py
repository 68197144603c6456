"""A bundle's networks as ONNX files, run by the engine with numpy: no torch. `hapvr.scorer.onnx_export` writes them.

<bundle>/onnx/backbone.onnx   frames [B, 3, S, S] uint8 -> regions [B, R, D], whitened
              embed.onnx      regions [T, R, D] -> embedding [T, R, d]
              frames.onnx     query [T, R, d], reference [T', R, d] -> frame_similarity [T, T']
              compare.onnx    frame_similarity [T, T'] -> refined [t, t'], where the model has a comparator

All but S, R, D and d may be of any size. A pair with fewer than `min_frames` frames is repeated first. The
last step, TopK-Chamfer, is done here, since a long pair is refined in strips.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hapvr.model.settings import doubled_length, strips
from hapvr.networks.extract import CompiledNetwork
from hapvr.networks.settings import Precision
from hapvr.scorer.description import ONNX_FOLDER, ONNXName, ONNXRecord

Floats = NDArray[np.float32]

MAX_REGION_SIMILARITIES = 2**24
"""Similarities of regions that are held at once: 64 MiB."""

MAX_REFINED_AT_ONCE = 2**20
"""Frame similarities that the comparator sees at once."""


class ONNXNetworks:
    """The four networks of a bundle. One operation at a time uses the processors; any thread may call it."""

    def __init__(self, folder: Path, record: ONNXRecord, *, precision: Precision = "float32") -> None:
        """folder: of the bundle, whose files were checked. precision: of the backbone."""
        self._folder = folder / ONNX_FOLDER
        self._precision = precision
        self.settings = record.settings
        self._loaded: dict[ONNXName, CompiledNetwork] = {}
        self._loading = threading.Lock()

    needs_extras = False

    def regions(self, frames: NDArray[np.uint8]) -> Floats:
        """[B, 3, S, S] uint8 crops -> whitened region vectors [B, R, D]."""
        return self._run("backbone.onnx", frames)

    def embed(self, regions: NDArray[Any]) -> Floats:
        """Region features [T, R, D] in any floating dtype -> the embedding [T, R, d]."""
        return self._run("embed.onnx", np.asarray(regions, np.float32))

    def vectors(self, video: Floats) -> Floats:
        """An embedding as it is."""
        return video

    def frame_similarity(self, query: Floats, reference: Floats) -> Floats:
        """[T, T'] before the comparator, of two embeddings."""
        per_frame = query.shape[1] * reference.shape[0] * reference.shape[1]
        step = max(MAX_REGION_SIMILARITIES // per_frame, 1)
        parts = [
            self._run("frames.onnx", query[start : start + step], reference) for start in range(0, len(query), step)
        ]
        return np.concatenate(parts)

    def self_similarity(self, video: Floats) -> Floats:
        """[T]: `frame_similarity` of each frame with itself."""
        products = video @ video.transpose(0, 2, 1)
        return self._chamfer(products, "spatial")

    def similarities(self, query: Floats, references: Sequence[Floats]) -> Floats:
        """Video similarities [N] in [-1, 1] of one query with each reference."""
        return self.comparisons(query, references)[0]

    def comparisons(self, query: Floats, references: Sequence[Floats]) -> tuple[Floats, list[Floats]]:
        """Video similarities [N] of one query with each reference, and frame similarities [T, T'] with each."""
        frames = [self.frame_similarity(query, reference) for reference in references]
        return np.array([self._chamfer(self.refined(one), "temporal") for one in frames], np.float32), frames

    def refined(self, frame: Floats) -> Floats:
        """Frame similarities [T, T'] after the comparator, [t, t'] in [-1, 1]; the same where the model has none."""
        if not self.settings.comparator:
            return frame
        for axis, size in enumerate(frame.shape):
            repeated = np.arange(doubled_length(size, self.settings.min_frames)) % size
            frame = frame.take(repeated, axis) if len(repeated) > size else frame
        height = MAX_REFINED_AT_ONCE // frame.shape[1]
        parts = [self._run("compare.onnx", frame[rows])[kept] for rows, kept in strips(len(frame), height=height)]
        return np.concatenate(parts)

    def _chamfer(self, values: Floats, level: str) -> Floats:
        """TopK-Chamfer of the last two axes, as `hapvr.model.similarity.chamfer` gives it."""
        rate = getattr(self.settings, f"{level}_rate")
        forth = topk_mean(values, rate).mean(-1)
        if not self.settings.symmetric_chamfer:
            return np.asarray(forth)
        return np.asarray((forth + topk_mean(values.swapaxes(-1, -2), rate).mean(-1)) / 2)

    def _run(self, name: ONNXName, *inputs: NDArray[Any]) -> Floats:
        with self._loading:
            if name not in self._loaded:
                precision: Precision = self._precision if name == "backbone.onnx" else "float32"
                self._loaded[name] = CompiledNetwork(self._folder / name, precision=precision)
        return self._loaded[name](*inputs)


def topk_mean(values: Floats, rate: float) -> Floats:
    """Mean of the K largest entries along the last axis, K = max(round(rate * size), 1) as in `hapvr.model.similarity`."""
    size = values.shape[-1]
    count = max(round(rate * size), 1)
    if count == 1:
        return np.asarray(values.max(-1))
    if count < size:
        values = np.partition(values, size - count, axis=-1)[..., size - count :]
    return np.asarray(values.mean(-1, dtype=np.float32))
