"""Spatial augmentations of whole clips: the same draw for all frames."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

MIN_ASPECT, MAX_ASPECT = 3 / 4, 4 / 3
CROP_ATTEMPTS = 10


@dataclass(frozen=True)
class CropBox:
    """A rectangle of a frame in pixels."""

    top_px: int
    left_px: int
    height_px: int
    width_px: int


def draw_crop(height_px: int, width_px: int, *, scale: tuple[float, float], rng: np.random.Generator) -> CropBox:
    """A rectangle with `scale` of the area and an aspect ratio of 3/4..4/3, anywhere in the frame (Inception's crop).

    If none is found in ten draws, as in very long frames, the largest one allowed around the centre.
    """
    for _ in range(CROP_ATTEMPTS):
        area = height_px * width_px * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(MIN_ASPECT), math.log(MAX_ASPECT)))
        width, height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < width <= width_px and 0 < height <= height_px:
            top = int(rng.integers(height_px - height + 1))
            left = int(rng.integers(width_px - width + 1))
            return CropBox(top, left, height, width)
    width = min(width_px, max(1, round(height_px * MAX_ASPECT)))
    height = min(height_px, max(1, round(width_px / MIN_ASPECT)))
    return CropBox((height_px - height) // 2, (width_px - width) // 2, height, width)


def crop_resize(frames: Tensor, *, box: CropBox, size_px: int, flip: bool) -> Tensor:
    """The box of each frame, scaled to size_px square, mirrored if flip: uint8 [T, 3, H, W] to [T, 3, S, S]."""
    resized: Tensor = functional.resized_crop(  # type: ignore[attr-defined]  # re-exported without __all__
        frames, box.top_px, box.left_px, box.height_px, box.width_px, [size_px, size_px], antialias=True
    )
    return functional.hflip(resized) if flip else resized  # type: ignore[attr-defined]


def rand_augment(frames: Tensor, *, num_operations: int, magnitude: int, seed: int) -> Tensor:
    """RandAugment (Cubuk et al., 2020) with one draw for all frames: [T, 3, S, S] uint8 -> the same shape.

    magnitude: of 30. seed: all randomness; the global generator is left as it was.
    """
    if num_operations == 0:
        return frames
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        operations = v2.RandAugment(num_ops=num_operations, magnitude=magnitude)  # type: ignore[attr-defined]
        augmented: Tensor = operations(frames)
    return augmented
