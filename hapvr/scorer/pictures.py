"""Still pictures as queries: one frame of the size that videos are sampled at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from hapvr.errors import VideoError
from hapvr.video.container import MAX_PIXELS, check_file

FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
PICTURE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp"})


def is_picture(name: str) -> bool:
    """Whether a name says that the file is a still picture."""
    return Path(name).suffix.lower() in PICTURE_SUFFIXES


def read_picture(path: Path, *, short_side_px: int, max_bytes: int) -> NDArray[np.uint8]:
    """A picture as one frame, [1, 3, H, W] uint8 RGB, min(H, W) = short_side_px, turned upright as its EXIF data says.

    Raises VideoError: missing_file, empty_file, not_video for another format, too_large, decode_error.
    """
    check_file(path)
    if path.stat().st_size > max_bytes:
        raise VideoError("too_large", f"picture: {path.name} has more than {max_bytes} bytes; see serving.max_bytes")
    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise VideoError(
                    "too_large", f"picture: {path.name} has {image.width} x {image.height} pixels; shrink it"
                )
            upright = ImageOps.exif_transpose(image).convert("RGB")
            scale = short_side_px / min(upright.size)
            width, height = (max(short_side_px, round(side * scale)) for side in upright.size)
            if width * height > MAX_PIXELS:
                raise VideoError("too_large", f"picture: {path.name} is {image.width} x {image.height}; crop it")
            pixels = np.asarray(upright.resize((width, height), Image.Resampling.BILINEAR))
    except UnidentifiedImageError as error:
        raise VideoError("not_video", f"picture: {path.name} is none of {', '.join(FORMATS)}; convert it") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise VideoError("decode_error", f"picture: {path.name} cannot be decoded ({error}); save it again") from error
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])
