"""Frames of a video: how stored pixels are displayed, frames as JPEG, their crops, black bars,
noise and perceptual hashes."""

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from hapvr.video.settings import Picture

Image.preinit()  # else each process that decodes one file loads Pillow's plugins again

MAX_ASPECT = 8
"""Frames whose long side exceeds this many short sides are squeezed, so that a 2 x 4000 strip
cannot become a giant picture."""

SAMPLED_FRAMES = 8
"""The number of frames, spread evenly, in which bars are looked for."""

MEAN_FRAMES = 24
MEAN_SIDE_PX = 16

HASH_VERSION = 1
"""Of the perceptual hashes: the pHash of Zauner, "Implementation and benchmarking of perceptual
image hash functions", 2010, section 3.2.1, on the picture without black bars. Raised when the same
frame gets another hash."""
NO_HASH = 0
"""The hash of a frame that shows nothing; half of the bits of any other are set."""
HASH_SIDE_PX = 32
Hashes = NDArray[np.uint64]
"""Perceptual hashes. They survive edits that change no shapes (scaling, grey, noise, compression,
colours), whatever a network makes of these, and none that do (crops, flips, pictures in pictures).
Exact copies differ in a few bits, unrelated frames in about 32."""

Item = TypeVar("Item")
Made = TypeVar("Made")

# the eight lowest frequencies of each direction, without the constant one, give the bits
_FREQUENCY = np.arange(1, 9)[:, None]
_PIXEL = np.arange(HASH_SIDE_PX)
_COSINES = np.sqrt(2 / HASH_SIDE_PX) * np.cos(
    np.pi * _FREQUENCY * (2 * _PIXEL + 1) / (2 * HASH_SIDE_PX)
)


def display_size(
    width_px: int,
    height_px: int,
    *,
    pixel_aspect: float = 1,
    rotation_deg: int = 0,
    short_side_px: int | None = None,
) -> tuple[int, int]:
    """Width and height of the picture a viewer sees, scaled to the wanted short side.

    width_px, height_px: as stored
    pixel_aspect: width of a pixel over its height; values outside [1/8, 8] are taken for errors and
        read as 1
    rotation_deg: a multiple of 90
    short_side_px: None keeps the stored resolution"""
    aspect = pixel_aspect if 1 / MAX_ASPECT <= pixel_aspect <= MAX_ASPECT else 1.0
    width = width_px * aspect
    height = float(height_px)
    if rotation_deg % 180:
        width, height = height, width
    if short_side_px is not None:
        scale = short_side_px / min(width, height)
        width *= scale
        height *= scale

    limit = MAX_ASPECT * min(width, height)
    return max(1, round(min(width, limit))), max(1, round(min(height, limit)))


def display_frame(
    frame: NDArray[np.uint8],
    *,
    pixel_aspect: float = 1,
    rotation_deg: int = 0,
    short_side_px: int | None,
    size_px: tuple[int, int] | None = None,
) -> NDArray[np.uint8]:
    """One stored frame as it is displayed.

    frame: [H, W, 3]. rotation_deg: counter-clockwise, a multiple of 90. size_px: (width, height)
    that the result must have, or None for `display_size`; a frame of another shape is scaled to
    cover it and cropped around the centre. Returns [H', W', 3] uint8.
    """
    height_px, width_px = frame.shape[:2]
    own = display_size(
        width_px,
        height_px,
        pixel_aspect=pixel_aspect,
        rotation_deg=rotation_deg,
        short_side_px=short_side_px,
    )
    picture = Image.fromarray(np.ascontiguousarray(np.rot90(frame, k=rotation_deg // 90)))
    if size_px is not None and size_px != own:
        picture = ImageOps.fit(picture.resize(own), size_px, method=Image.Resampling.BILINEAR)
    elif picture.size != own:
        picture = picture.resize(own, Image.Resampling.BILINEAR)

    return np.asarray(picture)


def encode_jpeg(frame: NDArray[np.uint8]) -> bytes:
    """Encode one frame [H, W, 3] uint8 RGB as JPEG without chroma subsampling. Equal pixels give
    equal bytes."""
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="JPEG", quality=95, subsampling=0)
    return buffer.getvalue()


def decode_jpeg(jpeg: bytes) -> NDArray[np.uint8]:
    """[H, W, 3] uint8 RGB. Pillow gives the same pixels as torchvision, whose import takes 2
    seconds."""
    with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as frame:
        return np.asarray(frame.convert("RGB"))


def decode_jpegs(jpegs: Sequence[bytes]) -> NDArray[np.uint8]:
    """Decode the JPEG frames of one video, all of one size. Returns [N, 3, H, W] uint8 RGB."""
    return np.stack([decode_jpeg(jpeg) for jpeg in jpegs]).transpose(0, 3, 1, 2)


def in_threads(work: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
    """`work` of each item, in order, by four threads: while Pillow decodes, other threads can run,
    but more than four gain nothing."""
    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(work, items))


def center_crop(frames: NDArray[np.uint8], size_px: int) -> NDArray[np.uint8]:
    """[B, 3, H, W] -> [B, 3, size_px, size_px] uint8; frames whose short side differs from 8/7
    size_px are resized to it first."""
    short_side = round(size_px * 256 / 224)
    height, width = frames.shape[-2:]
    if min(height, width) != short_side:
        scale = short_side / min(height, width)
        height = max(size_px, round(height * scale))
        width = max(size_px, round(width * scale))
        pictures = map(Image.fromarray, np.ascontiguousarray(frames.transpose(0, 2, 3, 1)))
        resized = [
            np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR))
            for picture in pictures
        ]
        frames = np.stack(resized).transpose(0, 3, 1, 2)

    top = (height - size_px) // 2
    left = (width - size_px) // 2
    return frames[..., top : top + size_px, left : left + size_px]


def squeeze(frames: NDArray[np.uint8], size_px: int) -> NDArray[np.uint8]:
    """[B, 3, H, W] -> [B, 3, size_px, size_px] uint8, the whole picture with another aspect
    ratio."""
    squares = np.empty((len(frames), size_px, size_px, 3), np.uint8)
    for square_, frame in zip(squares, frames, strict=True):
        picture = Image.fromarray(np.ascontiguousarray(frame.transpose(1, 2, 0)))
        square_[:] = np.asarray(picture.resize((size_px, size_px), Image.Resampling.BILINEAR))

    return squares.transpose(0, 3, 1, 2)


def square(frames: NDArray[np.uint8], size_px: int, picture: Picture) -> NDArray[np.uint8]:
    """[B, 3, H, W] -> [B, 3, size_px, size_px] uint8, as a network sees a frame. The colours of a
    pixel are side by side in memory, as Pillow decodes them; a network that wants them otherwise
    copies them once."""
    if picture == "squeezed":
        return squeeze(frames, size_px)
    return center_crop(frames, size_px)


def content_box(frames: Sequence[NDArray[np.uint8]]) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the part that shows something, as shares of width and height;
    (0, 0, 1, 1) where nothing does.

    frames: [H, W] luma of one frame or more. Rows and columns belong to a bar if they are at an
    edge and near black in every frame."""
    brightest = np.max([frame for frame in frames if frame.shape == frames[0].shape], axis=0)
    first, last = _shown(brightest)
    left, right = _shown(brightest[first:last].T)
    height, width = brightest.shape
    return left / width, first / height, right / width, last / height


def spread_places(num_frames: int, count: int) -> list[int]:
    """The places of at most `count` of a video's frames, evenly apart."""
    places = np.linspace(0, num_frames - 1, min(num_frames, count)).astype(int)
    return sorted(set(places.tolist()))


def spread(jpegs: Sequence[bytes], count: int) -> list[bytes]:
    """At most `count` of the frames, evenly apart."""
    return [jpegs[place] for place in spread_places(len(jpegs), count)]


def noise_level(jpegs: Sequence[bytes]) -> float:
    """Standard deviation of noise in grey levels, of 255, measured in the quietest tenth of the
    blocks of three frames, since texture is local.

    The estimator of Immerkaer, "Fast noise variance estimation", CVIU 1996, per block of 16 x 16
    pixels; 0 for smaller pictures.
    """
    levels = []
    side = 16
    for frame in (luma(jpeg).astype(np.float64) for jpeg in spread(jpegs, 3)):
        across = frame[:, :-2] - 2 * frame[:, 1:-1] + frame[:, 2:]
        both = np.abs(across[:-2] - 2 * across[1:-1] + across[2:])
        down = both.shape[0] // side
        wide = both.shape[1] // side
        blocks = (
            both[: down * side, : wide * side].reshape(down, side, wide, side).mean(axis=(1, 3))
        )
        shown = blocks[blocks > 0]  # bars have none
        levels.append(np.sqrt(np.pi / 2) / 6 * np.quantile(shown, 0.1) if len(shown) else 0.0)

    return float(np.median(levels))


def mean_picture(jpegs: Sequence[bytes]) -> bytes:
    """The mean of a few of a video's frames, without bars: MEAN_SIDE_PX rows of as many grey
    levels."""
    frames = [luma(jpeg) for jpeg in spread(jpegs, MEAN_FRAMES)]
    left, top, right, bottom = content_box(frames)
    small = []
    for frame in frames:
        height, width = frame.shape
        box = (left * width, top * height, right * width, bottom * height)
        size = (MEAN_SIDE_PX, MEAN_SIDE_PX)
        shown = Image.fromarray(frame).resize(size, Image.Resampling.BOX, box=box)
        small.append(np.asarray(shown, np.float64))

    mean = np.asarray(np.mean(small, axis=0).round(), np.uint8)
    return mean.tobytes()


def luma(jpeg: bytes) -> NDArray[np.uint8]:
    """[H, W], the grey levels of a stored frame."""
    with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as frame:
        return np.asarray(frame.convert("L"))


def grey_levels(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[H, W], as `luma` gives it, of a frame that is decoded already, [H, W, 3] RGB."""
    return np.asarray(Image.fromarray(frame).convert("L"))


def _shown(rows: NDArray[np.uint8]) -> tuple[int, int]:
    """The first row that is not part of a bar, and the one after the last."""
    # near black to 95 %, so that a logo or subtitle on a bar leaves it one; noise of compression
    # next to an edge stays below 24
    lit = np.flatnonzero(np.percentile(rows, 95, axis=1) > 24)
    if not len(lit):
        return 0, len(rows)
    first = int(lit[0])
    last = int(lit[-1]) + 1
    if first + len(rows) - last < 0.03 * len(rows):  # dark edges as thin as these are not bars
        return 0, len(rows)
    # scaling mixes a bar into the rows next to it: a letterboxed copy must not gain by rounding
    if first > 0:
        first += 2
    if last < len(rows):
        last -= 2
    return (first, last) if first < last else (0, len(rows))


def picture_hash(
    grey: NDArray[np.uint8], box: tuple[float, float, float, float] = (0, 0, 1, 1)
) -> int:
    """The hash of one picture [H, W], or NO_HASH: a bit for each low coefficient above their
    median. box: the `content_box` of its video, whose bars are the same throughout."""
    height, width = grey.shape
    left, top, right, bottom = box
    area = (left * width, top * height, right * width, bottom * height)
    small = Image.fromarray(grey).resize(
        (HASH_SIDE_PX, HASH_SIDE_PX), Image.Resampling.BOX, box=area
    )
    coefficients = (_COSINES @ np.asarray(small, np.float64) @ _COSINES.T).ravel()
    if np.median(np.abs(coefficients)) < 12:  # noise would decide the bits
        return NO_HASH
    return int.from_bytes(np.packbits(coefficients > np.median(coefficients)).tobytes(), "big")
