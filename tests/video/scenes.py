"""Pictures in which something moves."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw


def wandering_box(
    num_frames: int, *, size_px: tuple[int, int], step_px: int
) -> list[NDArray[np.uint8]]:
    """A box that wanders over a coloured wall, so far from one picture to the next."""
    rng = np.random.default_rng(0)
    wall = rng.integers(40, 200, (6, 8, 3)).astype(np.uint8)
    background = Image.fromarray(wall).resize(size_px, Image.Resampling.BICUBIC)
    frames = []
    for number in range(num_frames):
        frame = background.copy()
        left = 20 + step_px * number
        ImageDraw.Draw(frame).rectangle((left, 60, left + 50, 120), fill=(220, 90, 30))
        frames.append(np.asarray(frame))

    return frames
