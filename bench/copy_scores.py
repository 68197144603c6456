"""How close videos are by one vector per frame: the scores behind the shipped calibration.

A query is compared in six views. The level of a view, what the collection's look-alikes reach, is
taken off, so that scores of different queries can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Vectors = NDArray[np.float32]
Floats = NDArray[np.float64]
Box = tuple[float, float, float, float]
"""Left, top, right and bottom as shares of width and height."""

SIDE_PX = 288
VIEWS: tuple[Box, ...] = (
    (0, 0, 1, 1),
    (0.25, 0.25, 0.75, 0.75),
    (0, 0, 0.5, 0.5),
    (0.5, 0, 1, 0.5),
    (0, 0.5, 0.5, 1),
    (0.5, 0.5, 1, 1),
)
"""The whole picture, its centre, and its quarters."""

CROP_PENALTY = 0.05
LEVEL_PLACES = slice(5, 20)
"""The sixth to the twentieth best video: further copies and close look-alikes come before them."""

LEVEL_FLOOR = 0.1
LEVEL_FLOOR_SMALL = 0.25
"""Of a collection of fewer videos than SMALL_COLLECTION, whose best videos tell little."""

SMALL_COLLECTION = 100
BLANK_COSINE = 0.7
PLAIN_COLOURS = (
    (0, 0, 0),
    (255, 255, 255),
    (128, 128, 128),
    (16, 16, 16),
    (200, 30, 30),
    (30, 90, 200),
    (30, 160, 60),
)


class CopyNetwork:
    """A network that is made for copies, run by OpenVINO.

    file: ONNX; `image` [B, H, W, 3] uint8 -> `embedding` [B, 512], unit length.
    """

    def __init__(self, file: Path) -> None:
        import openvino

        options = {"INFERENCE_NUM_THREADS": 1}
        self._model = openvino.Core().compile_model(str(file), "CPU", options)
        size = (len(PLAIN_COLOURS), SIDE_PX, SIDE_PX, 3)
        plain = np.empty(size, np.uint8)
        for number, colour in enumerate(PLAIN_COLOURS):
            plain[number] = colour
        self._blank = self._embed(plain)

    def vectors(self, frames: Sequence[NDArray[np.uint8]], view: Box) -> Vectors:
        """[T, 512] of frames [H, W, 3], squeezed to a square."""
        left, top, right, bottom = view
        pictures = []
        for frame in frames:
            height, width = frame.shape[:2]
            box = (left * width, top * height, right * width, bottom * height)
            size = (SIDE_PX, SIDE_PX)
            picture = Image.fromarray(frame).resize(size, Image.Resampling.BILINEAR, box=box)
            pictures.append(np.asarray(picture))

        batches = [
            self._embed(np.stack(pictures[start : start + 8]))
            for start in range(0, len(pictures), 8)
        ]
        return np.concatenate(batches)

    def shown(self, vectors: Vectors) -> NDArray[np.bool_]:
        """[T], which frames show more than one colour."""
        return np.asarray((vectors @ self._blank.T).max(axis=1) <= BLANK_COSINE)

    def _embed(self, pictures: NDArray[np.uint8]) -> Vectors:
        embedding = self._model({"image": np.ascontiguousarray(pictures)})["embedding"]
        return np.array(embedding, np.float32)


def best_run(query: Vectors, video: Vectors) -> float:
    """The best mean cosine of two consecutive frames, of frames [T, D] and [T', D]; of single
    frames where one of the two has no second."""
    similarity = query @ video.T
    if min(similarity.shape) < 2:
        return float(similarity.max())
    return float((similarity[:-1, :-1] + similarity[1:, 1:]).max() / 2)


def copy_scores(runs: Floats) -> Floats:
    """[V] scores of the collection's videos. runs: [len(VIEWS), V], V >= 1, `best_run` of each view
    of the query with each video."""
    num_videos = runs.shape[1]
    floor = LEVEL_FLOOR_SMALL if num_videos < SMALL_COLLECTION else LEVEL_FLOOR
    level = np.full(len(VIEWS), floor)
    descending = -np.sort(-runs, axis=1)[:, LEVEL_PLACES]
    if descending.size:
        level = np.maximum(level, descending.mean(axis=1))

    beyond = (runs - level[:, None]) / np.sqrt(1 - level[:, None])
    beyond[1:] -= CROP_PENALTY
    return np.asarray(beyond.max(axis=0), np.float64)
