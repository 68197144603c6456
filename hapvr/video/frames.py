"""Frames of a video: how stored pixels are displayed, frames as JPEG, and their crops."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

Image.preinit()  # else each process that decodes one file loads Pillow's plugins again

MAX_ASPECT = 8
"""Frames longer than this many short sides are squeezed, so that a 2 x 4000 strip cannot become a giant picture."""

JPEG_QUALITY = 95
"""Of stored frames."""


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
    picture = Image.fromarray(np.ascontiguousarray(np.rot90(frame, k=rotation_deg // 90)))
    if size_px is not None and size_px != own:
        picture = ImageOps.fit(picture.resize(own), size_px, method=Image.Resampling.BILINEAR)
    elif picture.size != own:
        picture = picture.resize(own, Image.Resampling.BILINEAR)
    return np.asarray(picture)


def encode_jpeg(frame: NDArray[np.uint8]) -> bytes:
    """Encode one frame [H, W, 3] uint8 RGB as JPEG without chroma subsampling. Equal pixels give equal bytes."""
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="JPEG", quality=JPEG_QUALITY, subsampling=0)
    return buffer.getvalue()


def decode_jpegs(jpegs: Sequence[bytes]) -> NDArray[np.uint8]:
    """Decode the JPEG frames of one video, all of one size. Returns [N, 3, H, W] uint8 RGB.

    Pillow gives the same pixels as torchvision, whose import takes 2 seconds.
    """
    frames = [np.asarray(Image.open(io.BytesIO(jpeg), formats=["JPEG"]).convert("RGB")) for jpeg in jpegs]
    return np.stack(frames).transpose(0, 3, 1, 2)


def center_crop(frames: NDArray[np.uint8], size_px: int) -> NDArray[np.uint8]:
    """[B, 3, H, W] -> [B, 3, size_px, size_px] uint8; frames whose short side differs from 8/7 size_px are resized to it first."""
    short_side = round(size_px * 256 / 224)
    height, width = frames.shape[-2:]
    if min(height, width) != short_side:
        scale = short_side / min(height, width)
        height, width = (max(size_px, round(side * scale)) for side in (height, width))
        pictures = map(Image.fromarray, np.ascontiguousarray(frames.transpose(0, 2, 3, 1)))
        resized = [np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR)) for picture in pictures]
        frames = np.stack(resized).transpose(0, 3, 1, 2)
    top, left = (height - size_px) // 2, (width - size_px) // 2
    return np.ascontiguousarray(frames[..., top : top + size_px, left : left + size_px])
