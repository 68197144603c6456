"""Pictures that move: WebP, PNG and AVIF files with several frames, which are films. Not their
names, but their first bytes tell them from still pictures."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hapvr.errors import VideoError

MOVING_SUFFIXES = frozenset({".apng", ".avif", ".png", ".webp"})
MAX_CHUNKS = 100
"""The most chunks of a PNG file before its picture."""
USUAL_S = 0.1
"""How long browsers show a frame whose declared time is 0."""


def is_moving_picture(path: Path) -> bool:
    """Whether this is a picture with several frames, by its name and first bytes; False for a file
    that cannot be read."""
    if path.suffix.lower() not in MOVING_SUFFIXES:
        return False
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            head = file.read(64)
            return is_moving_webp(head) or _is_moving_avif(head) or _is_moving_png(file, head)
    except OSError:
        return False


def is_moving_webp(head: bytes) -> bool:
    """Whether a file that begins so is a WebP film (WebP container specification, "Extended File
    Format")."""
    is_extended = head[:4] == b"RIFF" and head[8:16] == b"WEBPVP8X"
    return is_extended and len(head) > 20 and bool(head[20] & 0b10)


def _is_moving_avif(head: bytes) -> bool:
    """Whether the brands of the file say that it is a sequence."""
    length = int.from_bytes(head[:4])
    return head[4:8] == b"ftyp" and b"avis" in head[8 : max(length, 12)]


def _is_moving_png(file: BinaryIO, head: bytes) -> bool:
    """Whether a chunk that announces frames comes before the picture (PNG, section 11.3.6)."""
    if head[:8] != b"\x89PNG\r\n\x1a\n":
        return False
    place = 8
    for _ in range(MAX_CHUNKS):
        file.seek(place)
        chunk = file.read(8)
        if chunk[4:] == b"acTL":
            return True
        if len(chunk) < 8 or chunk[4:] == b"IDAT":
            return False
        place += 12 + int.from_bytes(chunk[:4])

    return False


def webp_frames(path: Path, image: Image.Image) -> Iterator[tuple[float, NDArray[np.uint8]]]:
    """For each frame how long it stays, in seconds, and its pixels [H, W, 3]. Raises VideoError
    decode_error if the first frame cannot be decoded; the film ends where a later one is
    damaged."""
    for number in range(getattr(image, "n_frames", 1)):
        try:
            image.seek(number)
            pixels = np.asarray(image.convert("RGB"))
        except (OSError, EOFError, SyntaxError, ValueError) as error:
            if number == 0:
                raise VideoError(
                    "decode_error",
                    f"video: {path.name} cannot be decoded ({error}); fetch it again",
                ) from error

            return

        yield image.info.get("duration", 0) / 1000 or USUAL_S, pixels
