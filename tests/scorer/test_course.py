"""Whether aligned frames of two videos have the same course."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hapvr.scorer.course import rows_between, same_course


@given(st.integers(0, 2**32 - 1), st.integers(8, 40), st.floats(0.4, 1.0))
def test_copies_have_the_course_of_their_original(seed: int, count: int, kept: float) -> None:
    """Frames that change, seen through any edit, are like the original where that is like itself;
    another take, as alike at all times, is not; few frames must be nearly the same."""
    rng = np.random.default_rng(seed)
    frames = np.cumsum(rng.normal(size=(count, 64)), axis=0)
    frames /= np.linalg.norm(frames, axis=1, keepdims=True)
    own = frames @ frames.T
    assert same_course(kept * own, own)
    assert not same_course(0.7 + rng.normal(size=own.shape) / 50, own)
    assert not same_course(0.9 * own[:3, :3], own[:3, :3])


@pytest.mark.parametrize(
    ("start_s", "end_s", "rows"),
    [(0.0, 3.0, (0, 3)), (1.5, 1.6, (2, 3)), (9.0, 12.0, (3, 4))],
    ids=["several", "between two frames", "behind the last"],
)
def test_seconds_are_frames_at_least_one(
    start_s: float, end_s: float, rows: tuple[int, int]
) -> None:
    assert rows_between((0.0, 1.0, 2.0, 3.0), start_s, end_s) == rows
