"""What the sampled frames of a video look like as a whole, and for how long they stand still at its
ends."""

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hapvr.video.content import film_box

FILM_PX = 64
MOMENT_PX = 16
LEAST_FRAMES = 24
"""Frames of a longer video that are looked at; at most twice as many."""
STILL = 1.0
"""Mean difference of two frames in levels of colour, of 255, up to which nothing moves."""
BLANK = 8.0
"""Standard deviation of a frame's levels up to which it shows nothing."""
SMALL_PX = 64
MAX_STILL_FRAMES = 600


def film_pictures(jpegs: Sequence[bytes]) -> NDArray[np.float32]:
    """Frames of a video without bars and blurred sides, made small: [N, FILM_PX, FILM_PX, 3] in
    RGB."""
    left, top, right, bottom = film_box(jpegs)
    pictures = []
    # of videos that are about as long the same frames are taken
    for jpeg in jpegs[:: step_between(len(jpegs))]:
        with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as frame:
            box = (
                left * frame.width,
                top * frame.height,
                right * frame.width,
                bottom * frame.height,
            )
            size = (FILM_PX, FILM_PX)
            small = frame.convert("RGB").resize(size, Image.Resampling.BOX, box=box)

        pictures.append(np.asarray(small, np.float32))

    return np.stack(pictures)


def mean_colours(pictures: NDArray[np.float32]) -> bytes:
    """The mean of `film_pictures`: FILM_PX rows of as many pixels in RGB.

    Copies have the same mean, whatever their quality. What is added in one place stands out of it,
    and so does what changes its colours or its frame.
    """
    mean = np.asarray(pictures.mean(axis=0).round(), np.uint8)
    return mean.tobytes()


def moments(pictures: NDArray[np.float32]) -> bytes:
    """Each of `film_pictures` in MOMENT_PX rows of as many grey pixels.

    What is shown for a while only, such as a subtitle or damage, stands out of some of them.
    """
    step = FILM_PX // MOMENT_PX
    cells = pictures.reshape(len(pictures), MOMENT_PX, step, MOMENT_PX, step, 3)
    grey = np.asarray(cells.mean(axis=(2, 4, 5)).round(), np.uint8)
    return grey.tobytes()


def step_between(num_frames: int) -> int:
    """From one frame to the next of those that are looked at: a power of two."""
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
