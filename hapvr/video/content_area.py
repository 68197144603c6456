"""The part of a video's picture that black bars leave: letterboxes, pillarboxes and frames around everything; and its noise."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

Frame = TypeVar("Frame")

SAMPLED_FRAMES = 8
NEAR_BLACK = 24
"""Luma, of 255; noise of compression next to an edge stays below."""

BLACK_SHARE = 95.0
"""Percent of a row or column that must be near black, so that a logo or subtitle on a bar leaves it one."""

MIN_BAR = 0.03
"""Share of width or height below which dark edges are no bars."""

NOISE_FRAMES = 3
"""Frames, spread evenly, whose noise is measured."""
BLOCK_PX = 16
"""Side of the blocks of a frame in which noise is measured."""
QUIET = 0.1
"""Share of the blocks, the quietest ones, from which the noise of a frame is taken."""
EDGE_PX = 2
"""Rows next to a bar that count as bar, since scaling mixes it into them: a letterboxed copy must not gain by rounding."""


def content_area(jpegs: Sequence[bytes]) -> tuple[float, float]:
    """Shares of width and height that show something, in (0, 1], by a few of a video's frames; (1, 1) where nothing does."""
    left, top, right, bottom = content_box(list(map(luma, spread(jpegs, SAMPLED_FRAMES))))
    return right - left, bottom - top


def content_box(frames: Sequence[npt.NDArray[np.uint8]]) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of what shows something, as shares of width and height; (0, 0, 1, 1) where nothing does.

    frames: [H, W] luma of a few frames, at least one. Rows and columns belong to a bar if they are at an edge and near black
    in every frame.
    """
    brightest = np.max([frame for frame in frames if frame.shape == frames[0].shape], axis=0)
    first, last = _shown(brightest)
    left, right = _shown(brightest[first:last].T)
    height, width = brightest.shape
    return left / width, first / height, right / width, last / height


def spread(frames: Sequence[Frame], count: int) -> list[Frame]:
    """At most `count` of the frames, evenly apart."""
    places = np.unique(np.linspace(0, len(frames) - 1, min(len(frames), count)).astype(int))
    return [frames[place] for place in places]


def noise_level(jpegs: Sequence[bytes]) -> float:
    """Standard deviation of noise in grey levels, of 255, from the quietest blocks of a few frames: texture is local.

    The estimator of Immerkaer, "Fast noise variance estimation", CVIU 1996, per block. 0 for pictures of less than a block.
    """
    return float(np.median([_noise(luma(jpeg).astype(np.float64)) for jpeg in spread(jpegs, NOISE_FRAMES)]))


def _noise(frame: npt.NDArray[np.float64]) -> float:
    across = frame[:, :-2] - 2 * frame[:, 1:-1] + frame[:, 2:]
    both = np.abs(across[:-2] - 2 * across[1:-1] + across[2:])
    down, wide = (size // BLOCK_PX for size in both.shape)
    if not down * wide:
        return 0.0
    blocks = both[: down * BLOCK_PX, : wide * BLOCK_PX].reshape(down, BLOCK_PX, wide, BLOCK_PX).mean(axis=(1, 3))
    shown = blocks[blocks > 0]  # bars have none
    return float(np.sqrt(np.pi / 2) / 6 * np.quantile(shown, QUIET)) if len(shown) else 0.0


def luma(jpeg: bytes) -> npt.NDArray[np.uint8]:
    """[H, W], the grey levels of a stored frame."""
    with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as frame:
        return np.asarray(frame.convert("L"))


def _shown(rows: npt.NDArray[np.uint8]) -> tuple[int, int]:
    """The first row that is no bar, and the one behind the last."""
    lit = np.flatnonzero(np.percentile(rows, BLACK_SHARE, axis=1) > NEAR_BLACK)
    if not len(lit):
        return 0, len(rows)
    first, last = int(lit[0]), int(lit[-1]) + 1
    if first + len(rows) - last < MIN_BAR * len(rows):
        return 0, len(rows)
    first, last = first + EDGE_PX * (first > 0), last - EDGE_PX * (last < len(rows))
    return (first, last) if first < last else (0, len(rows))
