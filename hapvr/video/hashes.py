"""Perceptual hashes of frames: the pHash of Zauner, "Implementation and benchmarking of perceptual image hash functions", 2010,
section 3.2.1, on the picture without black bars.

A hash survives what changes no shapes (scaling, grey, noise, compression, colours), whatever a network makes of that, and
nothing that does (crops, flips, pictures in pictures). An exact copy differs in a few bits, unrelated frames in about 32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hapvr.video.frames import SAMPLED_FRAMES, content_box, luma, spread

HASH_VERSION = 1
"""Changes with the hash of the same frame."""
NO_HASH = 0
"""The hash of a frame that shows nothing; half of the bits of any other are set."""
SIDE_PX = 32
Hashes = NDArray[np.uint64]

# the eight lowest frequencies of each direction make bits, but for the constant one
_FREQUENCY, _PIXEL = np.arange(1, 9)[:, None], np.arange(SIDE_PX)
_COSINES = np.sqrt(2 / SIDE_PX) * np.cos(np.pi * _FREQUENCY * (2 * _PIXEL + 1) / (2 * SIDE_PX))


def frame_hashes(jpegs: Sequence[bytes], part: tuple[slice, slice] = (slice(None), slice(None))) -> Hashes:
    """[T], the hashes of the frames of one video, whose bars are the same throughout. part: rows and columns that are hashed."""
    box = content_box([luma(jpeg)[part] for jpeg in spread(jpegs, SAMPLED_FRAMES)])
    return np.array([picture_hash(luma(jpeg)[part], box) for jpeg in jpegs], np.uint64)


def picture_hash(grey: NDArray[np.uint8], box: tuple[float, float, float, float] = (0, 0, 1, 1)) -> int:
    """The hash of one picture [H, W], or NO_HASH: a bit for each low coefficient above their median. box: what of it shows
    something, as `content_box` says."""
    height, width = grey.shape
    left, top, right, bottom = box
    area = (left * width, top * height, right * width, bottom * height)
    small = Image.fromarray(grey).resize((SIDE_PX, SIDE_PX), Image.Resampling.BOX, box=area)
    coefficients = (_COSINES @ np.asarray(small, np.float64) @ _COSINES.T).ravel()
    if np.median(np.abs(coefficients)) < 12:  # noise would decide the bits
        return NO_HASH
    return int.from_bytes(np.packbits(coefficients > np.median(coefficients)).tobytes(), "big")


def distances(first: Hashes, second: Hashes) -> NDArray[np.uint8]:
    """Bits in which hashes differ, element by element as numpy broadcasts."""
    return np.asarray(np.bitwise_count(first ^ second), np.uint8)


def same_pictures(query: Hashes, reference: Hashes, *, radius: int) -> int:
    """How many different pictures two videos [T] and [T'] share at one offset: those of the reference whose hashes are within
    `radius` bits of the query's. A still scene is one picture, however many frames show it."""
    near = (distances(query[:, None], reference) <= radius) & (query != NO_HASH)[:, None] & (reference != NO_HASH)
    rows, columns = np.nonzero(near)
    most = 0
    for offset in np.unique(columns - rows):
        shown = reference[columns[columns - rows == offset]]
        pictures = shown[:1]
        for one in shown[1:]:
            if distances(pictures, one).min() > radius:
                pictures = np.append(pictures, one)
        most = max(most, len(pictures))
    return most
