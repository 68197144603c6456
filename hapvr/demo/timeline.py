"""Which frame of the original each frame of an edited copy shows, and the true times of the copy that follow from it.

A timeline is an array of frame numbers, NOTHING where other footage or none is shown. Functions that end in `rows` take the
original's number of frames, the donor's, frames per second and a generator.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hapvr.demo.scene import Rng

Rows = NDArray[np.int64]
RowsOf = Callable[[int, int, float, Rng], Rows]
Times = tuple[float, float, float, float]
"""Begin and end in the original, begin and end in the copy, in seconds."""

NOTHING = -1
MAX_STEP_S = 0.5
"""The original's time jumps where it moves further than this from one frame of the copy to the next."""

MIN_STEP_FRAMES = 3
"""Triple speed is not a jump, however few frames a second there are."""

PART_SPEEDS = (0.75, 1.0, 1.0, 1.0, 1.25, 1.5)
PART_SHARE = 3
"""A copy in longer footage is this many times as long as the part that it shows..."""
MIN_PART_S, MAX_PART_S = 20.0, 60.0
"""...but not shorter or longer than this, if the part allows."""


def true_times(rows: Rows, *, fps: float, original_start_s: float = 0.0, copy_start_s: float = 0.0) -> list[Times]:
    """Stretches of a copy in which the original's time runs on without jumps, at any speed, or runs backwards.

    A frame that stands still belongs to the stretch that it interrupts. original_start_s, copy_start_s: when the first
    frame is shown in each file.
    """
    limit = max(MAX_STEP_S * fps, MIN_STEP_FRAMES)
    steps = np.diff(rows)
    shown = rows != NOTHING
    breaks = (np.abs(steps) > limit) | (shown[1:] != shown[:-1])
    direction = 0
    for number, step in enumerate(steps):
        turned = direction * step < 0
        if breaks[number] or turned:
            breaks[number], direction = True, 0
        elif step:
            direction = int(np.sign(step))
    borders = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(rows)]
    return [
        (
            original_start_s + int(rows[first:last].min()) / fps,
            original_start_s + (int(rows[first:last].max()) + 1) / fps,
            copy_start_s + first / fps,
            copy_start_s + last / fps,
        )
        for first, last in pairwise(borders)
        if shown[first]
    ]


def same_rows(count: int, num_donor: int, fps: float, rng: Rng) -> Rows:
    """All frames, each in its place."""
    return np.arange(count)


def pieces(count: int, fps: float) -> list[slice]:
    """The video cut into pieces of about two seconds; at least two pieces where there are two frames."""
    number = min(max(round(count / (2 * fps)), 2), count)
    borders = [count * index // number for index in range(number + 1)]
    return [slice(start, stop) for start, stop in pairwise(borders)]


def dropped_pieces(count: int, fps: float, rng: Rng) -> list[slice]:
    """About a third of the pieces, never all of them."""
    whole = pieces(count, fps)
    number = min(max(round(len(whole) / 3), 1), len(whole) - 1)
    return [whole[int(index)] for index in rng.permutation(len(whole))[:number]]


def shuffled_rows(count: int, num_donor: int, fps: float, rng: Rng) -> Rows:
    """Pieces in another order."""
    whole = pieces(count, fps)
    order = np.roll(np.arange(len(whole)), 1) if len(whole) < 4 else rng.permutation(len(whole))
    return np.concatenate([np.arange(whole[int(index)].start, whole[int(index)].stop) for index in order])


def gap_rows(count: int, num_donor: int, fps: float, rng: Rng) -> Rows:
    """Dropped pieces show nothing."""
    rows = np.arange(count)
    for piece in dropped_pieces(count, fps, rng):
        rows[piece] = NOTHING
    return rows


def cut_rows(count: int, num_donor: int, fps: float, rng: Rng) -> Rows:
    """Dropped pieces are cut out."""
    rows = gap_rows(count, num_donor, fps, rng)
    return np.asarray(rows[rows != NOTHING])


def pause_rows(count: int, num_donor: int, fps: float, rng: Rng) -> Rows:
    """One frame stands still for three seconds in the middle third."""
    moment = int(count * rng.uniform(1 / 3, 2 / 3))
    return np.concatenate([np.arange(moment), np.full(max(round(3 * fps), 1), moment), np.arange(moment, count)])


def _run_of(length: int, count: int, rng: Rng) -> Rows:
    start = int(rng.integers(count - length + 1))
    return np.arange(start, start + length)


def excerpt_rows(count: int, num_donor: int, fps: float, rng: Rng) -> Rows:
    """A third to a half of it."""
    return _run_of(max(int(count * rng.uniform(0.35, 0.5)), 1), count, rng)


def five_second_rows(count: int, num_donor: int, fps: float, rng: Rng) -> Rows:
    """Five seconds of it, or a third where that is shorter."""
    return _run_of(max(min(round(5 * fps), count // 3), 1), count, rng)


def compilation_rows(count: int, num_donor: int, fps: float, rng: Rng) -> Rows:
    """An excerpt between two pieces of the donor, of five seconds together."""
    middle = excerpt_rows(count, num_donor, fps, rng)
    num_other = min(max(round(5 * fps), 2), num_donor)
    half = num_other // 2
    return np.concatenate([np.full(half, NOTHING), middle, np.full(num_other - half, NOTHING)])


def part_rows(count: int, num_donor: int, fps: float, rng: Rng, *, length_s: float) -> Rows:
    """`length_s` seconds of it, or all where it is shorter, at one of PART_SPEEDS, in longer footage of the donor."""
    length = max(min(round(length_s * fps), count), 1)
    first = int(rng.integers(count - length + 1))
    speed = float(rng.choice(PART_SPEEDS))
    middle = first + (np.arange(max(int(length / speed), 1)) * speed).astype(np.int64)
    wanted = min(max(PART_SHARE * len(middle), round(MIN_PART_S * fps)), round(MAX_PART_S * fps))
    num_other = max(wanted - len(middle), 2)
    before = int(rng.integers(1, num_other))
    return np.concatenate([np.full(before, NOTHING), middle, np.full(num_other - before, NOTHING)])
