"""What the sampled frames of a video look like as a whole, and for how long they stand still at its
ends."""

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hapvr.video.content import film_box

MEAN_COLOURS_PX = 32
LEAST_FRAMES = 24
"""Frames of a longer video whose mean is taken; at most twice as many."""
STILL = 1.0
"""Mean difference of two frames in levels of colour, of 255, up to which nothing moves."""
BLANK = 8.0
"""Standard deviation of a frame's levels up to which it shows nothing."""
SMALL_PX = 64
MAX_STILL_FRAMES = 600


def mean_colours(jpegs: Sequence[bytes]) -> bytes:
    """The mean of a video's frames without bars and blurred sides: MEAN_COLOURS_PX rows of as many
    pixels in RGB.

    Copies have the same mean, whatever their quality. What is added in one place stands out of it,
    and so does what changes its colours or its frame.
    """
    left, top, right, bottom = film_box(jpegs)
    size = (MEAN_COLOURS_PX, MEAN_COLOURS_PX)
    pixels = []
    # of videos that are about as long the same frames are taken
    for jpeg in jpegs[:: step_between(len(jpegs))]:
        with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as frame:
            box = (
                left * frame.width,
                top * frame.height,
                right * frame.width,
                bottom * frame.height,
            )
            small = frame.convert("RGB").resize(size, Image.Resampling.BOX, box=box)

        pixels.append(np.asarray(small, np.float64))

    mean = np.asarray(np.mean(pixels, axis=0).round(), np.uint8)
    return mean.tobytes()


def step_between(num_frames: int) -> int:
    """From one frame to the next of those whose mean is taken: a power of two."""
    step = 1
    while num_frames // (2 * step) >= LEAST_FRAMES:
        step *= 2
    return step


def still_s(jpegs: Sequence[bytes], times_s: Sequence[float]) -> float:
    """For how many seconds the frames at both ends of a video show nothing, or nothing new.

    times_s: when the frames are shown
    """
    at_end = _num_still(jpegs[::-1])
    at_begin = _num_still(jpegs)
    last = len(jpegs) - 1
    if at_begin >= last or at_end >= last:
        return float(times_s[last] - times_s[0])
    return float(times_s[at_begin] - times_s[0] + times_s[last] - times_s[last - at_end])


def _num_still(jpegs: Sequence[bytes]) -> int:
    """How many frames at the beginning could go: all but the last that is like the first one, or
    all that show nothing."""
    first = _small(jpegs[0])
    is_blank = first.std() <= BLANK
    num_like = 1
    for jpeg in jpegs[1:MAX_STILL_FRAMES]:
        if np.abs(_small(jpeg) - first).mean() > STILL:
            break
        num_like += 1

    return num_like if is_blank else num_like - 1


def _small(jpeg: bytes) -> NDArray[np.float64]:
    with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as frame:
        small = frame.convert("RGB").resize((SMALL_PX, SMALL_PX), Image.Resampling.BOX)
    return np.asarray(small, np.float64)
