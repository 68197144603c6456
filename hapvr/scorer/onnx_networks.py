"""A bundle's networks as ONNX files, run by the engine with numpy: no torch.
`hapvr.scorer.torch_networks` writes them.

<bundle>/onnx/backbone.onnx   frames [B, 3, S, S] uint8 -> regions [B, R, D], whitened
              embed.onnx      regions [T, R, D] -> embedding [T, R, d]
              frames.onnx     query [T, R, d], reference [T', R, d] -> frame_similarity [T, T']
              compare.onnx    frame_similarity [T, T'] -> refined [t, t'], of a comparator

All but S, R, D and d may be of any size. A pair with fewer than `min_frames` frames is repeated
first. The last step, TopK-Chamfer, is done here, since a long pair is refined in strips.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from hapvr.errors import DataError
from hapvr.model.settings import COMPARATOR_STEP, NetworkSettings, doubled_length, strips
from hapvr.networks.batches import Embed
from hapvr.networks.encoder import FrameEncoder
from hapvr.networks.openvino_runtime import CompiledNetwork
from hapvr.networks.settings import Precision

Floats = NDArray[np.float32]
ONNXName = Literal["backbone.onnx", "embed.onnx", "frames.onnx", "compare.onnx"]
ONNX_FOLDER = "onnx"

MAX_REGION_SIMILARITIES = 2**24
"""How many similarities of regions are in memory at once: 64 MiB."""

MAX_REFINED_AT_ONCE = 2**20
"""How many frame similarities the comparator sees at once."""


class ONNXRecord(BaseModel, extra="allow"):
    """What scorer.json says. settings: of the similarity network. Further keys say how the files
    were checked."""

    settings: NetworkSettings
    files: list[ONNXName]


class ONNXNetworks:
    """The frozen network with its whitening, and the similarity network; `TorchNetworks` are the
    same in torch. One operation at a time uses the processors; threads may share it."""

    needs_extras = False
    """Whether regions carry pooled vectors and magnitudes, see `hapvr.model.family`."""

    def __init__(
        self,
        folder: Path,
        record: ONNXRecord,
        *,
        encoder: FrameEncoder | None = None,
        precision: Precision = "float32",
    ) -> None:
        """folder: of the bundle, whose files were checked. encoder: the network in place of
        backbone.onnx, where its files stay in their package. precision: of the backbone."""
        self._encoder = encoder
        self._folder = folder / ONNX_FOLDER
        self._precision = precision
        self.settings = record.settings
        self._loaded: dict[ONNXName, CompiledNetwork] = {}
        self._embed_frames: Embed | None = None
        self._loading = threading.Lock()

    def regions(self, frames: NDArray[np.uint8]) -> Floats:
        """[B, 3, S, S] uint8 crops -> whitened region vectors [B, R, D]."""
        if self._encoder is None:
            return self._run("backbone.onnx", frames)
        with self._loading:
            if self._embed_frames is None:
                self._embed_frames = self._encoder.embedder(None, "cpu")

        return self._embed_frames(frames)

    def embed(self, regions: NDArray[Any]) -> Floats:
        """Region features [T, R, D] in any floating dtype -> the embedding [T, R, d]."""
        return self._run("embed.onnx", np.asarray(regions, np.float32))

    def vectors(self, video: Floats) -> Floats:
        """An embedding as an array [T, r, d]: as it is."""
        return video

    def frame_similarity(self, query: Floats, reference: Floats) -> Floats:
        """[T, T'] in [-1, 1], before the comparator, of two embeddings."""
        step = max(
            MAX_REGION_SIMILARITIES // (query.shape[1] * reference.shape[0] * reference.shape[1]), 1
        )
        starts = range(0, len(query), step)
        return np.concatenate(
            [self._run("frames.onnx", query[start : start + step], reference) for start in starts]
        )

    def self_similarity(self, video: Floats) -> Floats:
        """[T]: `frame_similarity` of each frame with itself."""
        return chamfer(video @ video.transpose(0, 2, 1), **self.settings.spatial)

    def similarities(self, queries: Sequence[Floats], references: Sequence[Floats]) -> Floats:
        """Video similarities [N, M] in [-1, 1]."""
        scores = []
        for row in self._frames(queries, references):
            scores.append([self._score(matrix) for matrix in row])
        return np.array(scores, np.float32)

    def comparisons(
        self, query: Floats, references: Sequence[Floats]
    ) -> tuple[Floats, list[Floats]]:
        """Video similarities [M] of one query with each reference, and frame similarities [T, T']
        with each."""
        (frames,) = self._frames([query], references)
        return np.array(list(map(self._score, frames)), np.float32), frames

    def _frames(
        self, queries: Sequence[Floats], references: Sequence[Floats]
    ) -> list[list[Floats]]:
        """Frame similarities [T, T'] of each query with each reference, computed in one run."""
        rows = np.cumsum([len(video) for video in queries])[:-1]
        columns = np.cumsum([len(video) for video in references])[:-1]
        whole = self.frame_similarity(np.concatenate(queries), np.concatenate(references))
        return [np.split(part, columns, axis=1) for part in np.split(whole, rows)]

    def _score(self, frame: Floats) -> Floats:
        return chamfer(self._refined(frame), **self.settings.temporal)

    def _refined(self, frame: Floats) -> Floats:
        """Frame similarities [T, T'] after the comparator, [t, t'] in [-1, 1]; the same where the
        model has none."""
        if not self.settings.comparator:
            return frame
        for axis, size in enumerate(frame.shape):
            repeated = np.arange(doubled_length(size, self.settings.min_frames)) % size
            frame = frame.take(repeated, axis) if len(repeated) > size else frame

        parts = strips(len(frame), height=MAX_REFINED_AT_ONCE // frame.shape[1])
        return np.concatenate(
            [self._run("compare.onnx", frame[rows])[kept] for rows, kept in parts]
        )

    def _run(self, name: ONNXName, *inputs: NDArray[Any]) -> Floats:
        with self._loading:
            if name not in self._loaded:
                precision: Precision = self._precision if name == "backbone.onnx" else "float32"
                self._loaded[name] = CompiledNetwork(self._folder / name, precision=precision)

        output = self._loaded[name](*inputs)
        first = inputs[0].shape
        wanted = {
            "backbone.onnx": (*first[:1], *output.shape[-2:]),
            "embed.onnx": (*first[:2], *output.shape[-1:]),
            "frames.onnx": tuple(map(len, inputs)),
        }.get(name, tuple(size // COMPARATOR_STEP for size in first))
        if output.dtype != np.float32 or output.shape != wanted:
            raise DataError(
                f"model: {self._folder / name} gives {output.dtype} {output.shape}; export the "
                "model again"
            )

        return output


def chamfer(values: Floats, *, rate: float, symmetric: bool) -> Floats:
    """TopK-Chamfer of the last two axes, as `hapvr.model.similarity.chamfer` gives it: the mean
    over rows of the mean of their K largest values, K = max(round(rate * size), 1)."""
    size = values.shape[-1]
    count = max(round(rate * size), 1)
    largest = values
    if count < size:
        largest = np.partition(values, size - count, axis=-1)[..., size - count :]
    forth = largest.mean(-1, dtype=np.float32).mean(-1)
    back = chamfer(values.swapaxes(-1, -2), rate=rate, symmetric=False) if symmetric else forth
    return np.asarray((forth + back) / 2)
