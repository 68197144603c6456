"""The part of the picture that shows the footage: without black bars, and without the blurred copy
of itself that fills the sides of an upright film in a wide picture, or of a wide one in an upright.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hapvr.video.frames import SAMPLED_FRAMES, content_box, luma, spread
from hapvr.video.settings import Picture

Box = tuple[float, float, float, float]
"""Left, top, right and bottom, as shares of width and height."""
WHOLE_PICTURE: Box = (0.0, 0.0, 1.0, 1.0)

MIN_SIDE = 0.1
"""Share of the width, or height, that a blurred side fills at least."""
MAX_SIDE = 0.45
UNEVEN = 0.04
"""By how much two bars, or two blurred sides, may differ, as a share."""
BLURRED = 0.15
"""Detail of a blurred side at most, as a share of what the film has. Ten films with sides blurred
by 13 to 30 pixels of 720: 51 of 87 are found, and of 217 clips without such sides none is."""
MIN_DETAIL = 1.0
"""Detail of the film at least; less is not evidence."""


def film_box(jpegs: Sequence[bytes]) -> Box:
    """Where the film is in the frames of one video, by a few of them."""
    return film_of([luma(jpeg) for jpeg in spread(jpegs, SAMPLED_FRAMES)])


def film_of(frames: Sequence[NDArray[np.uint8]]) -> Box:
    """Where the film is in a few frames of one video, [H, W] grey levels each."""
    frames = [frame for frame in frames if frame.shape == frames[0].shape]
    left, top, right, bottom = content_box(frames)
    are_bars = max(abs(left + right - 1), abs(top + bottom - 1)) <= UNEVEN
    if are_bars and (left, top, right, bottom) != WHOLE_PICTURE:
        return left, top, right, bottom
    # what is dark on one side alone is a part of the scene
    stack = np.stack(frames).astype(np.float32)
    left, right = sharp_span(detail_of_columns(stack))
    if (left, right) != (0.0, 1.0):
        return left, 0.0, right, 1.0
    top, bottom = sharp_span(detail_of_columns(stack.transpose(0, 2, 1)))
    return 0.0, top, 1.0, bottom


def film_area(jpegs: Sequence[bytes]) -> tuple[float, float]:
    """Shares of width and height that the film of one video fills, in (0, 1]."""
    left, top, right, bottom = film_box(jpegs)
    return right - left, bottom - top


def detail_of_columns(frames: NDArray[np.float32]) -> NDArray[np.float64]:
    """[W], by how many grey levels a step from pixel to pixel of a column of frames [N, H, W]
    differs from the next step: a blurred picture has slopes, but they hardly change."""
    changes = np.abs(np.diff(frames, n=2, axis=1))
    return np.asarray(changes.mean(axis=(0, 1)), np.float64)


def sharp_span(detail: NDArray[np.float64]) -> tuple[float, float]:
    """Where sharp columns begin and end between two blurred sides of about one width, as shares;
    (0, 1) where there are no such sides. detail: [W]."""
    width = len(detail)
    middle = slice(round(MAX_SIDE * width), round((1 - MAX_SIDE) * width))
    film = float(np.median(detail[middle])) if width else 0.0
    if film < MIN_DETAIL:
        return 0.0, 1.0
    sharp = np.flatnonzero(detail > BLURRED * film)
    first = int(sharp[0])
    last = int(sharp[-1]) + 1
    left = first / width
    right = 1 - last / width
    is_framed = min(left, right) >= MIN_SIDE and max(left, right) <= MAX_SIDE
    if not is_framed or abs(left - right) > UNEVEN:
        return 0.0, 1.0
    # most of the span is sharp, or it was only something in the middle of a blurred picture
    if np.mean(detail[first:last] > BLURRED * film) < 0.9:
        return 0.0, 1.0
    return first / width, last / width


def seen_box(jpegs: Sequence[bytes], picture: Picture) -> Box:
    """The part of one video's frames that a network sees: the film, of one that sees pictures
    whole; others cut off the edges themselves."""
    return film_box(jpegs) if picture == "squeezed" else WHOLE_PICTURE


def cut_to(frames: NDArray[np.uint8], box: Box) -> NDArray[np.uint8]:
    """A part of frames [N, 3, H, W]."""
    height, width = frames.shape[-2:]
    left, top, right, bottom = box
    rows = slice(round(top * height), round(bottom * height))
    columns = slice(round(left * width), round(right * width))
    return frames[..., rows, columns]
