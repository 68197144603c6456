"""Sampled frames as the backbone's input: square crops, in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]


def center_crop(frames: Pixels, size_px: int) -> Pixels:
    """`hapvr.features.backbone.center_crop`: [B, 3, H, W] -> [B, 3, size_px, size_px] uint8.

    Frames whose short side differs from 8/7 size_px are resized to it first; of their values a few differ by 1 from torch's.
    """
    short_side = round(size_px * 256 / 224)
    height, width = frames.shape[-2:]
    if min(height, width) != short_side:
        scale = short_side / min(height, width)
        height, width = (max(size_px, round(side * scale)) for side in (height, width))
        rows, columns = (
            _resizing(given, wanted) for given, wanted in zip(frames.shape[-2:], (height, width), strict=True)
        )
        resized = rows @ (frames.astype(np.float32) @ columns.T)
        frames = resized.round().clip(0, 255).astype(np.uint8)
    top, left = (height - size_px) // 2, (width - size_px) // 2
    return np.ascontiguousarray(frames[..., top : top + size_px, left : left + size_px])


def _resizing(given: int, wanted: int) -> NDArray[np.float32]:
    """[wanted, given]: weights of bilinear resizing with antialiasing, a triangle as wide as the pixels that become one."""
    scale = given / wanted
    reach = max(scale, 1.0)
    centers = (np.arange(wanted) + 0.5) * scale
    distances = np.abs(np.arange(given) + 0.5 - centers[:, None])
    weights = np.maximum(1 - distances / reach, 0)
    return np.asarray(weights / weights.sum(1, keepdims=True), np.float32)
