"""How much detail a picture has, by what it would lose if it were made smaller, and how much of it
are edges of blocks."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hapvr.video.facts import DETAIL_SCALES

DETAIL_SIDE_PX = 768
"""Longest side of the middle of a picture whose detail is measured."""
FINE_SCALE = 0.5
CODED_BLOCK_PX = 8
"""Side of the blocks that codecs transform: 4 to 32 pixels, most of them multiples of this."""
LEAST_STEP = 1e-3
BLOCK_PX = 16
MIN_DETAIL_SIDE_PX = 4 * BLOCK_PX
CLEAREST_RATE = 0.05
"""Part of the blocks that are looked at, those with the clearest edges: beside these, noise of
compression is weak."""


def detail_of(grey: NDArray[np.uint8]) -> tuple[float, ...]:
    """How much detail a picture [H, W] has at its clearest edges that it would lose if it were
    scaled down, for each of DETAIL_SCALES: relative to what it would lose besides at half of that
    scale. Enlarged pictures have little; () for one that is too small, or shows no edges."""
    if min(grey.shape) < MIN_DETAIL_SIDE_PX:
        return ()
    middle = _middle_of(grey)
    values = list[float]()
    for scale in DETAIL_SCALES:
        coarse = _blurred(middle, scale)
        coarser = _blurred(middle, scale / 2)
        fine = _block_energy(middle - coarse)
        usual = _block_energy(coarse - coarser)
        least = max(float(np.quantile(usual, 1 - CLEAREST_RATE)), 1.0)
        clearest = usual >= least
        if not clearest.any():
            return ()
        values.append(float(np.sqrt(np.median(fine[clearest] / usual[clearest]))))

    return tuple(values)


def fineness_of(grey: NDArray[np.uint8]) -> float:
    """How much a picture [H, W] would lose if it were scaled to half its size: root mean square in
    grey levels, of 255. Each time that a film is compressed, it loses some of that; 0 for a picture
    that is too small."""
    if min(grey.shape) < BLOCK_PX:
        return 0.0
    middle = _middle_of(grey)
    return float(np.sqrt(_block_energy(middle - _blurred(middle, FINE_SCALE)).mean()))


def blockiness_of(grey: NDArray[np.uint8]) -> float:
    """How much larger the mean step from one pixel to the next is between the blocks of a codec
    than within them, in a picture [H, W] as it was decoded: about 1 where no blocks are seen, 1.4
    and more where there are too few bits; 0 for a picture that is too small."""
    if min(grey.shape) < BLOCK_PX:
        return 0.0
    picture = grey.astype(np.float32)
    return float(np.mean([_blockiness_along(picture), _blockiness_along(picture.T)]))


def _blockiness_along(picture: NDArray[np.float32]) -> float:
    """Of the steps along the rows of a picture [H, W]."""
    steps = np.abs(np.diff(picture, axis=1)).mean(axis=0)
    is_between = np.arange(1, len(steps) + 1) % CODED_BLOCK_PX == 0
    within = max(float(steps[~is_between].mean()), LEAST_STEP)
    return float(steps[is_between].mean()) / within


def _middle_of(grey: NDArray[np.uint8]) -> NDArray[np.float32]:
    """As much of the middle of a picture [H, W] as is looked at, in whole blocks."""
    height = min(grey.shape[0], DETAIL_SIDE_PX) // BLOCK_PX * BLOCK_PX
    width = min(grey.shape[1], DETAIL_SIDE_PX) // BLOCK_PX * BLOCK_PX
    top = (grey.shape[0] - height) // 2
    left = (grey.shape[1] - width) // 2
    return grey[top : top + height, left : left + width].astype(np.float32)


def _blurred(picture: NDArray[np.float32], scale: float) -> NDArray[np.float32]:
    """The picture [H, W], scaled down and up again."""
    height, width = picture.shape
    small = (max(1, round(width * scale)), max(1, round(height * scale)))
    lanczos = Image.Resampling.LANCZOS
    shrunk = Image.fromarray(picture).resize(small, lanczos)
    return np.asarray(shrunk.resize((width, height), lanczos))


def _block_energy(picture: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mean square of each block of a picture [H, W], flat."""
    height, width = picture.shape
    blocks = (picture**2).reshape(height // BLOCK_PX, BLOCK_PX, width // BLOCK_PX, BLOCK_PX)
    return np.asarray(blocks.mean(axis=(1, 3)).ravel(), np.float32)
