"""A bundle's networks as ONNX files, run by ONNX Runtime with numpy: no torch. `hapvr.scorer.onnx_export` writes them.

<bundle>/onnx/backbone.onnx   frames [B, 3, S, S] uint8 -> regions [B, R, D], whitened
              embed.onnx      regions [T, R, D] -> embedding [T, R, d]
              frames.onnx     query [T, R, d], reference [T', R, d] -> frame_similarity [T, T']
              compare.onnx    frame_similarity [T, T'] -> refined [t, t'], similarity [], with a calibration also logit []

All but S, R, D and d may be of any size. A pair with fewer than `min_frames` frames is repeated first, see
`repeat_frames`. The last step, TopK-Chamfer, is also done here, so that a long pair can be refined in strips.

ONNX Runtime is imported here alone. It is as fast as OpenVINO on the ONNX files and takes 80 MB on disk instead of 180
(docs/experiments.md).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from hapvr.errors import DataError
from hapvr.model.settings import MAX_MIN_FRAMES
from hapvr.provenance import file_sha256
from hapvr.settings import Rate, explain, first_line

Floats = NDArray[np.float32]

FOLDER = "onnx"
BACKBONE, EMBED, FRAMES, COMPARE = "backbone.onnx", "embed.onnx", "frames.onnx", "compare.onnx"
FILES = (BACKBONE, EMBED, FRAMES, COMPARE)
MAX_REGION_SIMILARITIES = 2**24
"""Similarities of regions that are held at once: 64 MiB."""

MAX_REFINED_AT_ONCE = 2**20
"""Frame similarities that the comparator sees at once."""

STEP = 4
"""The comparator halves both time axes twice."""

REACH = 8
"""Rows beyond a strip that its refined rows depend on, rounded up to a multiple of STEP."""


class _Settings(BaseModel):
    """Of the network, as far as they are applied here; see `hapvr.model.settings`."""

    spatial_rate: Rate
    spatial_pooling: Literal["chamfer", "max"]
    temporal_rate: Rate
    temporal_pooling: Literal["chamfer", "max"]
    symmetric_chamfer: bool
    symmetric: bool
    comparator: bool
    min_frames: Annotated[int, Field(ge=1, le=MAX_MIN_FRAMES)]


class _File(BaseModel):
    sha256: str


class _Record(BaseModel):
    """What scorer.json says under `onnx`."""

    settings: _Settings
    files: dict[str, _File]


class ONNXNetworks:
    """The four networks of a bundle. One operation at a time uses the processors; any thread may call it."""

    def __init__(self, folder: Path, record: Mapping[str, Any], *, num_threads: int | None = None) -> None:
        """folder: of the bundle. record: what scorer.json says under `onnx`. num_threads: None for all processors that this
        process may use. Raises DataError naming a file that is missing or is not the recorded one, and for another record.
        """
        self._folder = folder / FOLDER
        self._num_threads = num_threads or len(os.sched_getaffinity(0))
        self._loading = threading.Lock()
        try:
            stored = _Record.model_validate(record)
        except ValidationError as error:
            raise DataError(
                f"model: what scorer.json in {folder} says of the ONNX files cannot be used ({explain(error)}); fetch the model "
                "again"
            ) from error
        self.settings: dict[str, Any] = stored.settings.model_dump()
        for name in FILES:
            path = self._folder / name
            if name not in stored.files or not path.is_file():
                raise DataError(f"model: {path} is missing; fetch the model again")
            if file_sha256(path) != stored.files[name].sha256:
                raise DataError(f"model: {path} differs from what scorer.json says; fetch the model again")

    needs_side = False

    def regions(self, frames: NDArray[np.uint8]) -> Floats:
        """[B, 3, S, S] uint8 crops -> whitened region vectors [B, R, D]."""
        return self._run(self._backbone, frames)

    def embed(self, regions: NDArray[Any]) -> Floats:
        """Region features [T, R, D] in any floating dtype -> the embedding [T, R, d]."""
        return self._run(self._embed, np.asarray(regions, np.float32))

    def vectors(self, video: Floats) -> Floats:
        """An embedding as it is."""
        return video

    def frame_similarity(self, query: Floats, reference: Floats) -> Floats:
        """[T, T'] before the comparator, of two embeddings."""
        per_frame = query.shape[1] * reference.shape[0] * reference.shape[1]
        step = max(MAX_REGION_SIMILARITIES // per_frame, 1)
        parts = [
            self._run(self._frames, query[start : start + step], reference) for start in range(0, len(query), step)
        ]
        return np.concatenate(parts)

    def self_similarity(self, video: Floats) -> Floats:
        """[T]: `frame_similarity` of each frame with itself."""
        products = video @ video.transpose(0, 2, 1)
        return self._chamfer(products, "spatial")

    def similarities(self, query: Floats, references: Sequence[Floats]) -> Floats:
        """Video similarities [N] in [-1, 1] of one query with each reference."""
        return np.array([self._similarity(query, reference) for reference in references], np.float32)

    def _similarity(self, query: Floats, reference: Floats) -> float:
        forth = self._one_way(query, reference)
        return (forth + self._one_way(reference, query)) / 2 if self.settings["symmetric"] else forth

    def _one_way(self, query: Floats, reference: Floats) -> float:
        frame = self.frame_similarity(query, reference)
        return float(self._chamfer(self.refined(frame), "temporal"))

    def refined(self, frame: Floats) -> Floats:
        """Frame similarities [T, T'] after the comparator, [t, t'] in [-1, 1]; the same where the model has none."""
        if not self.settings["comparator"]:
            return frame
        frame = repeat_frames(frame, self.settings["min_frames"])
        whole = len(frame) // STEP * STEP
        height = max(MAX_REFINED_AT_ONCE // frame.shape[1] - 2 * REACH, STEP) // STEP * STEP
        strips = []
        for start in range(0, whole, height):
            before = min(start, REACH)
            end = min(start + height, whole)
            after = len(frame) if end == whole else min(end + REACH, len(frame))
            rows = self._run(self._compare, frame[start - before : after])
            strips.append(rows[before // STEP : (before + end - start) // STEP])
        return np.concatenate(strips)

    def _chamfer(self, values: Floats, level: str) -> Floats:
        """TopK-Chamfer of the last two axes, as `hapvr.model.similarity.chamfer` gives it."""
        if self.settings[f"{level}_pooling"] == "max":
            return np.asarray(values.max((-2, -1)))
        rate = self.settings[f"{level}_rate"]
        forth = topk_mean(values, rate).mean(-1)
        if not self.settings["symmetric_chamfer"]:
            return np.asarray(forth)
        return np.asarray((forth + topk_mean(values.swapaxes(-1, -2), rate).mean(-1)) / 2)

    def _run(self, session: Any, *inputs: NDArray[Any]) -> Floats:
        names = [one.name for one in session.get_inputs()]
        if len(names) != len(inputs):
            raise DataError(
                f"model: the files in {self._folder} take {len(names)} inputs instead of {len(inputs)}; fetch the model again"
            )
        given = {name: np.ascontiguousarray(value) for name, value in zip(names, inputs, strict=True)}
        try:
            found: Floats = session.run([session.get_outputs()[0].name], given)[0]
        except Exception as error:  # those of ONNX Runtime have no base of their own
            raise DataError(
                f"model: the files in {self._folder} do not go together ({first_line(error)}); fetch the model again"
            ) from error
        return found

    @cached_property
    def _backbone(self) -> Any:
        return self._session(BACKBONE)

    @cached_property
    def _embed(self) -> Any:
        return self._session(EMBED)

    @cached_property
    def _frames(self) -> Any:
        return self._session(FRAMES)

    @cached_property
    def _compare(self) -> Any:
        return self._session(COMPARE)

    def _session(self, name: str) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._num_threads
        options.log_severity_level = 3
        # threads that wait sleep: decoders and other processes work meanwhile (docs/experiments.md)
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # memory is given back between videos of different lengths
        options.enable_cpu_mem_arena = False
        path = self._folder / name
        try:
            return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise DataError(
                f"model: {path} cannot be loaded ({first_line(error)}); upgrade onnxruntime, or fetch the model again"
            ) from error


def topk_mean(values: Floats, rate: float) -> Floats:
    """Mean of the K largest entries along the last axis, K = max(round(rate * size), 1) as in `hapvr.model.similarity`."""
    size = values.shape[-1]
    count = max(round(rate * size), 1)
    if count == 1:
        return np.asarray(values.max(-1))
    if count < size:
        values = np.partition(values, size - count, axis=-1)[..., size - count :]
    return np.asarray(values.mean(-1, dtype=np.float32))


def repeat_frames(frame: Floats, min_frames: int) -> Floats:
    """Frame similarities [T, T'] of a video that is doubled until it has `min_frames` frames, on both axes."""
    for axis in (0, 1):
        while frame.shape[axis] < min_frames:
            frame = np.concatenate([frame, frame], axis)
    return frame
