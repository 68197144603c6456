"""Still pictures as one frame."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from hapvr.errors import VideoError
from hapvr.video.frames import display_frame
from hapvr.video.probe import check_size

PICTURE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")


def read_picture(path: Path, *, short_side_px: int) -> NDArray[np.uint8]:
    """A picture as one frame, [H, W, 3] uint8 RGB, min(H, W) = short_side_px, turned upright by its
    EXIF data. Raises VideoError: not_video for another format, too_large, decode_error."""
    try:
        with Image.open(path, formats=PICTURE_FORMATS) as image:
            check_size(path, image.width, image.height)
            if image.format != "MPO" and getattr(
                image, "is_animated", False
            ):  # MPO: a photo with its depth or preview
                raise VideoError(
                    "not_video", f"picture: {path.name} is animated; save it as GIF or MP4"
                )

            pixels = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = "not_video" if isinstance(error, UnidentifiedImageError) else "decode_error"
        wanted = f"save it again as {', '.join(PICTURE_FORMATS)}"
        raise VideoError(
            reason, f"picture: {path.name} cannot be decoded ({error}); {wanted}"
        ) from error

    return display_frame(pixels, short_side_px=short_side_px)
