"""Which frame of a video is shown at which sampling time; pure arithmetic on timestamps in seconds."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hapvr.errors import ArgumentError

MAX_GAP_S = 600.0
"""A longer step between two frames is a jump of the clock, not a frame that long."""

TOLERANCE_S = 6e-4
"""Slack for containers that round timestamps to milliseconds: a frame at 1.0004 s counts as shown at 1 s."""


def advance_time(*, raw_s: float | None, previous_raw_s: float | None, previous_s: float, interval_s: float) -> float:
    """Time of the next frame on a clock that starts at 0 and never runs backwards.

    raw_s: the frame's own timestamp, None if it has none. previous_raw_s, previous_s: raw and repaired time of the
    frame before. interval_s: the nominal time between frames, used where timestamps are missing, run backwards or jump
    by more than MAX_GAP_S.
    """
    if raw_s is None or previous_raw_s is None:
        return previous_s + interval_s
    step_s = raw_s - previous_raw_s
    return previous_s + (step_s if 0 <= step_s <= MAX_GAP_S else interval_s)


def frames_due(*, fps: float, until_s: float, max_frames: int | None = None) -> int:
    """How many of the times k / fps lie before until_s, less the tolerance; at most `max_frames`."""
    count = max(0, math.ceil((until_s - TOLERANCE_S) * fps))
    return count if max_frames is None else min(count, max_frames)


def sampling_times(*, fps: float, end_s: float, max_frames: int | None = None) -> NDArray[np.float64]:
    """The times k / fps for k = 0, 1, ... up to and including end_s: [N] seconds, N >= 1, at most `max_frames`.

    end_s: timestamp of the last frame, counted from the first.
    """
    return np.arange(frames_due(fps=fps, until_s=end_s + 2 * TOLERANCE_S, max_frames=max_frames)) / fps


def shown_frames(timestamps_s: NDArray[np.float64], times_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Index of the frame on display at each time: the last one whose timestamp is not later.

    timestamps_s: [N] non-decreasing, first one 0. times_s: [K] non-negative. Returns [K].
    """
    return np.searchsorted(timestamps_s, times_s + TOLERANCE_S, side="right").astype(np.int64) - 1


def check_sampling(*, fps: float, max_frames: int | None) -> None:
    """Raise ArgumentError unless fps is positive and finite and max_frames, if given, is at least 1."""
    if not (math.isfinite(fps) and fps > 0 and (max_frames is None or max_frames >= 1)):
        raise ArgumentError(f"fps: wanted a positive number, got {fps!r}; max_frames: at least 1, got {max_frames}")
