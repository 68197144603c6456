"""Temporal augmentations as arithmetic on frame indices: each gives the frames that a clip shows, in order.

All functions return int64 arrays of indices into the video; BLANK and NOISE stand for frames without a source.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

BLANK = -1
NOISE = -2
MIN_SEGMENT_FRAMES = 4
PROBABILITIES = {"shuffle_dropout": 0.5, "fast_forward": 0.1, "slow_motion": 0.1, "reverse": 0.1, "pause": 0.1}
"""At most one of these changes a clip (S2VS 3.2)."""

FAST_FORWARD_RATES = (2, 3, 4)
SLOW_MOTION_RATE = 2
MIN_REAL_RATE = 0.25
"""A clip keeps at least this part of real frames where the shuffled window has any such stretch."""

Indices = NDArray[np.int64]


def draw_window(
    num_available: int, *, num_frames: int, rng: np.random.Generator, part: tuple[int, int] = (0, 1)
) -> Indices:
    """2 * num_frames consecutive frames at a random place; a shorter video is repeated to that length (method 3).

    part: (number, count); the stretch starts in this one of `count` equal parts of the places.
    """
    length = min(num_available, 2 * num_frames)
    num_starts = num_available - length + 1
    number, count = part
    first = num_starts * number // count
    start = int(rng.integers(first, max(first + 1, num_starts * (number + 1) // count)))
    return np.resize(np.arange(start, start + length), 2 * num_frames)


def crop_or_loop(indices: Indices, *, num_frames: int, rng: np.random.Generator) -> Indices:
    """num_frames consecutive entries at a random place; fewer entries are shown again from the first one on.

    Of the possible places only those with enough real frames are drawn from: MIN_REAL_RATE, or as many as there are.
    """
    if len(indices) <= num_frames:
        return np.resize(indices, num_frames)
    real = np.concatenate([[0], np.cumsum(indices >= 0)])
    num_real = real[num_frames:] - real[:-num_frames]
    enough = min(int(num_real.max()), math.ceil(MIN_REAL_RATE * num_frames))
    start = int(rng.choice(np.flatnonzero(num_real >= enough)))
    return indices[start : start + num_frames].copy()


def shuffle_dropout(
    window: Indices, *, max_segment_frames: int, rng: np.random.Generator, shuffled: float = 0.5, dropped: float = 0.3
) -> Indices:
    """Cut into segments of 4..max_segment_frames frames; by these probabilities shuffle them, drop some (S2VS 3.2).

    A dropped segment is blanked or turned to noise with a probability of a quarter each, otherwise cut out; one segment is
    always kept.
    """
    segments: list[Indices] = []
    rest = window
    while len(rest):
        length = int(rng.integers(MIN_SEGMENT_FRAMES, max(MIN_SEGMENT_FRAMES, max_segment_frames) + 1))
        segments.append(rest[:length])
        rest = rest[length:]
    if rng.random() < shuffled:
        segments = [segments[position] for position in rng.permutation(len(segments))]
    is_dropped = rng.random(len(segments)) < dropped
    is_dropped[rng.integers(len(segments))] = False
    shown: list[Indices] = []
    for segment, drop in zip(segments, is_dropped, strict=True):
        if not drop:
            shown.append(segment)
        elif rng.random() < 0.5:
            shown.append(np.full(len(segment), BLANK if rng.random() < 0.5 else NOISE))
    return np.concatenate(shown)


def draw_temporal(window: Indices, *, num_frames: int, rng: np.random.Generator) -> Indices:
    """At most one temporal augmentation of the window, drawn by its probability, then [num_frames] of the result."""
    choice = rng.random()
    for name, probability in PROBABILITIES.items():
        if choice < probability:
            window = _augment(name, window, num_frames=num_frames, rng=rng)
            break
        choice -= probability
    return crop_or_loop(window, num_frames=num_frames, rng=rng)


def _augment(name: str, window: Indices, *, num_frames: int, rng: np.random.Generator) -> Indices:
    if name == "shuffle_dropout":
        return shuffle_dropout(window, max_segment_frames=num_frames // 2, rng=rng)
    if name == "fast_forward":
        return window[:: int(rng.choice(FAST_FORWARD_RATES))]
    if name == "slow_motion":
        return np.repeat(window, SLOW_MOTION_RATE)
    if name == "reverse":
        return window[::-1]
    position = int(rng.integers(len(window)))
    num_paused = int(rng.integers(MIN_SEGMENT_FRAMES, max(MIN_SEGMENT_FRAMES, num_frames // 2) + 1))
    # cut to num_frames around the pause first, so that the clip shows at least a part of it
    start = min(max(0, position - num_frames // 2), max(0, len(window) - num_frames))
    around = window[start : start + num_frames]
    return np.insert(around, position - start, np.full(num_paused, window[position]))
