"""Inner pictures: a moving picture within a still or another one, as in picture in picture, split
screens, reactions and memes.

Found without training, as by the winner of VSC2022's descriptor track (Yokoo et al., 2023): a
border that stands still while the pictures on both sides move leaves long straight edges in the
mean over time.
"""

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from hapvr.video.frames import decode_jpegs, spread

Floats = NDArray[np.float32]
Box = tuple[slice, slice]
"""Rows and columns."""

IN_A_PART = "in a part of the picture"
"""What answers say of a match by an inner picture."""
MAX_INNER = 3
MAX_FRAMES = 24
"""Frames, spread evenly, that are looked at."""
LINES = 12
"""Straight edges of each direction, both borders of the picture among them, whose rectangles are
looked at."""
LEAST_SIDE = 0.25
"""Share of width and height that an inner picture has at least."""
AREAS = (0.08, 0.92)
"""Shares of the picture, least and most."""
COVERED = 0.5
"""How much of an edge there must be, in [0, 1], on three quarters of each side that is no border of
the picture: text may lie over the fourth."""
NEAR = 12
"""Pixels around an edge that say how strong the picture's own edges are there."""
LEAST_MOVING = 0.1
"""Share of an inner picture that moves."""


def inner_pictures(jpegs: Sequence[bytes]) -> list[Box]:
    """Where a video has inner pictures, at most MAX_INNER, the clearest first. jpegs: its sampled
    frames; in a single one nothing moves."""
    if len(jpegs) < 2:
        return []
    frames = decode_jpegs(spread(jpegs, MAX_FRAMES)).astype(np.float32)
    luma = np.tensordot(frames, np.array([0.299, 0.587, 0.114], np.float32), axes=(1, 0))
    upright, level = _edges(luma), _edges(luma.transpose(0, 2, 1))
    x, y = _lines(upright), _lines(level)
    # a pixel moves that differs by more than three grey levels over time
    moving = np.pad((luma.std(axis=0) > 3).cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))[
        np.ix_(y, x)
    ]
    # axes of what follows: left, right, top, bottom
    wide, high = (places[None, :] - places[:, None] for places in (x, y))
    area = wide[:, :, None, None] * high
    moved = (
        moving[:, None, :, None]
        - moving[None, :, :, None]
        - moving[:, None, None, :]
        + moving[None, :, None, :]
    )
    share = moved.transpose(2, 3, 0, 1) / np.maximum(area, 1)
    across, along = _sides(upright, x, y), _sides(level, y, x).transpose(1, 2, 0)
    sides = np.stack(
        np.broadcast_arrays(
            across[:, None], across[None, :], along[:, :, :, None], along[:, :, None, :]
        )
    )
    usable = (wide >= LEAST_SIDE * luma.shape[2])[:, :, None, None] & (
        high >= LEAST_SIDE * luma.shape[1]
    )
    usable &= (
        (area >= AREAS[0] * luma[0].size)
        & (area <= AREAS[1] * luma[0].size)
        & (share >= LEAST_MOVING)
    )
    free = np.isnan(sides)
    usable &= (free | (sides > 0)).all(axis=0)
    # of rectangles with equally clear sides the larger goes first
    clear = (
        np.nansum(sides, axis=0) / np.sqrt((~free).sum(axis=0).clip(min=1)) * np.abs(area) ** 0.25
    )
    places = np.argwhere(usable)[np.argsort(-clear[usable], kind="stable")]
    found: list[Box] = []
    for left, right, top, bottom in places.tolist():
        box = slice(int(y[top]), int(y[bottom])), slice(int(x[left]), int(x[right]))
        if len(found) < MAX_INNER and all(
            _overlap(box, other) < 0.5 for other in found
        ):  # else they are one picture
            found.append(box)
    return found


def _edges(luma: Floats) -> Floats:
    """[W + 1, H] in [0, 1]: how much of an edge stands still between the columns x - 1 and x at
    each row."""
    # grey levels; more count as 40, so that one frame does not make an edge of its own
    steps = np.minimum(np.abs(np.diff(luma, axis=2)), 40).mean(axis=0)
    windows = sliding_window_view(
        np.pad(steps, ((0, 0), (NEAR, NEAR)), mode="edge"), 2 * NEAR + 1, axis=1
    )
    around = np.partition(windows, NEAR, axis=-1)[..., NEAR]
    # six grey levels make an edge where the picture has none of its own
    strength = np.pad(((steps - around) / (around + 6)).clip(0, 1), ((0, 0), (1, 1)))
    # scaling and compression spread an edge over two or three pixels
    spread = np.maximum(np.maximum(strength[:, :-2], strength[:, 2:]), strength[:, 1:-1])
    return np.pad(spread.T, ((1, 1), (0, 0)))


def _lines(edges: Floats) -> NDArray[np.intp]:
    """Places of the longest straight edges and of both borders, rising."""
    score, run = np.zeros(len(edges)), np.zeros(len(edges))
    for row in edges.T:
        run = (run + row - 0.5).clip(min=0)
        score = np.maximum(score, run)
    found = [0, len(edges) - 1]
    for place in np.argsort(-score, kind="stable").tolist():
        if len(found) == LINES or score[place] < 0.3 * LEAST_SIDE * edges.shape[1]:
            break
        if min(abs(place - other) for other in found) > 3:
            found.append(place)
    return np.sort(found)


def _sides(edges: Floats, places: NDArray[np.intp], ends: NDArray[np.intp]) -> Floats:
    """[P, E, E]: how much of an edge there is at each place from one end to another, 0 for less
    than COVERED asks; NaN at the picture's borders, which need none."""
    spans = ends[None, :] - ends[:, None]
    quarters = (ends[:, None, None] + spans[:, :, None] * np.linspace(0, 1, 5)).round().astype(int)
    sums = np.pad(edges.cumsum(axis=1), ((0, 0), (1, 0)))[places]
    found = np.sort(np.diff(sums[:, quarters]) / np.maximum(np.diff(quarters), 1), axis=-1)
    found = np.where(found[..., 1] >= COVERED, found.mean(axis=-1), 0)
    found[[0, -1]] = np.nan
    return np.asarray(found, np.float32)


def _overlap(box: Box, other: Box) -> float:
    """Intersection over union of two rectangles."""
    shared = [
        max(min(a.stop, b.stop) - max(a.start, b.start), 0) for a, b in zip(box, other, strict=True)
    ]
    areas = [(one[0].stop - one[0].start) * (one[1].stop - one[1].start) for one in (box, other)]
    both = shared[0] * shared[1]
    return float(both / (sum(areas) - both))
