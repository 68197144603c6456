"""From stored pixels to displayed pixels: rotation, pixel aspect and size of frames."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

MAX_ASPECT = 8
"""Frames longer than this many short sides are squeezed, so that a 2 x 4000 strip cannot become a giant picture."""


def display_size(
    width_px: int, height_px: int, *, pixel_aspect: float, rotation_deg: int, short_side_px: int | None
) -> tuple[int, int]:
    """Width and height of the picture a viewer sees, scaled to the wanted short side.

    width_px, height_px: as stored. pixel_aspect: width of a pixel over its height; values outside [1/8, 8] are taken
    for errors and read as 1. rotation_deg: a multiple of 90. short_side_px: None keeps the stored resolution.
    """
    aspect = pixel_aspect if 1 / MAX_ASPECT <= pixel_aspect <= MAX_ASPECT else 1.0
    width, height = width_px * aspect, float(height_px)
    if rotation_deg % 180:
        width, height = height, width
    if short_side_px is not None:
        scale = short_side_px / min(width, height)
        width, height = width * scale, height * scale
    limit = MAX_ASPECT * min(width, height)
    return max(1, round(min(width, limit))), max(1, round(min(height, limit)))


def display_frame(
    frame: NDArray[np.uint8],
    *,
    pixel_aspect: float,
    rotation_deg: int,
    short_side_px: int | None,
    size_px: tuple[int, int] | None,
) -> NDArray[np.uint8]:
    """One stored frame as it is displayed.

    frame: [H, W, 3]. rotation_deg: counter-clockwise, a multiple of 90. size_px: (width, height) that the result must
    have, or None for `display_size`; a frame of another shape is scaled to cover it and cropped around the centre.
    Returns [H', W', 3] uint8.
    """
    height_px, width_px = frame.shape[:2]
    own = display_size(
        width_px, height_px, pixel_aspect=pixel_aspect, rotation_deg=rotation_deg, short_side_px=short_side_px
    )
    turned = np.rot90(frame, k=rotation_deg // 90) if rotation_deg % 360 else frame
    picture = Image.fromarray(np.ascontiguousarray(turned))
    if size_px is not None and size_px != own:
        picture = ImageOps.fit(picture.resize(own), size_px, method=Image.Resampling.BILINEAR)
    elif picture.size != own:
        picture = picture.resize(own, Image.Resampling.BILINEAR)
    return np.asarray(picture)
