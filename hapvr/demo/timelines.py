"""Timelines of edits, from which the true times of a copy follow.

A timeline says which frame of the original each frame of the copy shows, as an array of frame
numbers, NOTHING where it shows other footage or none.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hapvr.demo.scene import Rng

Rows = NDArray[np.int64]
Times = tuple[float, float, float, float]
"""Begin and end in the original, begin and end in the copy, in seconds."""

NOTHING = -1


def _pieces(count: int, fps: float) -> list[Rows]:
    """The video cut into pieces of about two seconds; at least two pieces where there are two
    frames."""
    number = min(max(round(count / (2 * fps)), 2), count)
    return np.split(np.arange(count), [count * index // number for index in range(1, number)])


def dropped_pieces(count: int, fps: float, rng: Rng) -> list[Rows]:
    """About a third of the pieces, never all of them."""
    whole = _pieces(count, fps)
    number = min(max(round(len(whole) / 3), 1), len(whole) - 1)
    return [whole[index] for index in rng.permutation(len(whole))[:number]]


def shuffled_rows(count: int, num_donor: int, fps: float, rng: Rng) -> Rows:
    """Pieces in another order."""
    whole = _pieces(count, fps)
    if len(whole) < 4:  # a random order may be the old one
        return np.concatenate([whole[-1], *whole[:-1]])
    return np.concatenate([whole[index] for index in rng.permutation(len(whole))])


def gap_rows(count: int, num_donor: int, fps: float, rng: Rng) -> Rows:
    """Dropped pieces show nothing."""
    rows = np.arange(count)
    for piece in dropped_pieces(count, fps, rng):
        rows[piece] = NOTHING
    return rows


def cut_rows(count: int, num_donor: int, fps: float, rng: Rng) -> Rows:
    rows = gap_rows(count, num_donor, fps, rng)
    return np.asarray(rows[rows != NOTHING])


def pause_rows(count: int, num_donor: int, fps: float, rng: Rng) -> Rows:
    """One frame is frozen for three seconds in the middle third."""
    moment = int(count * rng.uniform(1 / 3, 2 / 3))
    still = np.full(max(round(3 * fps), 1), moment)
    return np.concatenate([np.arange(moment), still, np.arange(moment, count)])


def excerpt_rows(
    count: int, num_donor: int, fps: float, rng: Rng, *, length_s: float | None = None
) -> Rows:
    """`length_s` seconds of it, or a third where that is shorter; for None a third to a half of
    it."""
    if length_s is None:
        wanted = count * rng.uniform(0.35, 0.5)
    else:
        wanted = min(round(length_s * fps), count // 3)

    length = max(int(wanted), 1)
    return int(rng.integers(count - length + 1)) + np.arange(length)


def compilation_rows(count: int, num_donor: int, fps: float, rng: Rng) -> Rows:
    """An excerpt between two pieces of the donor, of five seconds together."""
    num_other = min(max(round(5 * fps), 2), num_donor)
    around = (num_other // 2, num_other - num_other // 2)
    return np.pad(excerpt_rows(count, num_donor, fps, rng), around, constant_values=NOTHING)


def part_rows(count: int, num_donor: int, fps: float, rng: Rng, *, length_s: float) -> Rows:
    """`length_s` seconds of it, or all where it is shorter, at one of some speeds, in footage of
    the donor: three times as long together, but not shorter than 20 or longer than 60 seconds if
    the part allows."""
    length = max(min(round(length_s * fps), count), 1)
    first = int(rng.integers(count - length + 1))
    speed = float(rng.choice((0.75, 1.0, 1.0, 1.0, 1.25, 1.5)))
    part = first + (np.arange(max(int(length / speed), 1)) * speed).astype(np.int64)

    wanted = min(max(3 * len(part), round(20 * fps)), round(60 * fps))
    num_other = max(wanted - len(part), 2)
    before = int(rng.integers(1, num_other))
    return np.pad(part, (before, num_other - before), constant_values=NOTHING)


def true_times(
    rows: Rows, *, fps: float, original_start_s: float = 0.0, copy_start_s: float = 0.0
) -> list[Times]:
    """Stretches of a copy in which the original's time runs on without jumps, at any speed, or runs
    backwards. A jump is more than half a second from one frame of the copy to the next, and more
    than triple speed. A still frame belongs to the stretch that it interrupts.
    original_start_s, copy_start_s: when the first frame is shown in each file.
    """
    borders = [0, *_breaks(rows, fps=fps), len(rows)]
    times = []
    for first, last in pairwise(borders):
        if rows[first] == NOTHING:
            continue
        stretch = rows[first:last]
        times.append(
            (
                float(stretch.min() / fps + original_start_s),
                float((stretch.max() + 1) / fps + original_start_s),
                float(first / fps + copy_start_s),
                float(last / fps + copy_start_s),
            )
        )

    return times


def _breaks(rows: Rows, *, fps: float) -> list[int]:
    """Frames of the copy at which a new stretch begins, but for the first."""
    steps = np.diff(rows)
    shown = rows != NOTHING
    breaks = (np.abs(steps) > max(fps / 2, 3)) | (shown[1:] != shown[:-1])
    direction = 0
    for number, step in enumerate(steps):
        turned = direction * step < 0
        if breaks[number] or turned:
            breaks[number] = True
            direction = 0
        elif step:
            direction = int(np.sign(step))

    return [int(place) + 1 for place in np.flatnonzero(breaks)]
