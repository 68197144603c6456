"""Edits do what their names say, on frames whose contents are known; and the true times of what
they show."""

import numpy as np
import pytest

from hapvr.demo.edits import ALL_EDITS
from hapvr.demo.timelines import NOTHING, true_times

FPS = 4.0


def numbered(count: int) -> np.ndarray:
    """Frames [count, 24, 32, 3] whose grey value is 10 times their number, with a white left
    column."""
    frames = np.repeat(np.arange(count, dtype=np.uint8) * 10, 24 * 32 * 3).reshape(count, 24, 32, 3)
    frames[:, :, 0] = 255
    return frames


def apply(kind: str, frames: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """The edit with a white donor."""
    donor = np.full((8, 30, 40, 3), 255, dtype=np.uint8)
    return ALL_EDITS[kind].apply(frames, donor, FPS, np.random.default_rng(seed))


@pytest.mark.parametrize("kind", ALL_EDITS)
def test_edit_video_gives_frames_and_leaves_its_argument(kind: str) -> None:
    """From one frame on, repeatable, nothing changed in place; a new encoding alone alters no size,
    length or pixel."""
    for count in (1, 2, 24):
        frames = numbered(count)
        before = frames.copy()
        first = apply(kind, frames)
        second = apply(kind, frames)
        assert first.dtype == np.uint8
        assert first.ndim == 4
        assert len(first) >= 1
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(frames, before)
        assert not np.shares_memory(first, frames)

    assert np.array_equal(first, frames) == (kind == "low_bitrate")


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        (range(20), [(0, 2, 0, 2)]),
        (range(0, 20, 2), [(0, 1.9, 0, 1)]),
        (np.repeat(np.arange(10), 2), [(0, 1, 0, 2)]),
        (range(19, -1, -1), [(0, 2, 0, 2)]),
        ([*range(10, 20), *range(10)], [(1, 2, 0, 1), (0, 1, 1, 2)]),
        ([*range(10), *range(30, 40)], [(0, 1, 0, 1), (3, 4, 1, 2)]),
        ([*range(10), *[9] * 30, *range(10, 20)], [(0, 2, 0, 5)]),
        ([NOTHING] * 5 + [*range(10, 20)] + [NOTHING] * 3, [(1, 2, 0.5, 1.5)]),
        ([0, 1, 2, 1, 0], [(0, 0.3, 0, 0.3), (0, 0.2, 0.3, 0.5)]),
        ([7], [(0.7, 0.8, 0, 0.1)]),
        ([NOTHING], []),
    ],
)
def test_true_times(rows: list[int], wanted: list[tuple[float, ...]]) -> None:
    """Stretches end where the original's time jumps, turns round or is not shown; an intro moves
    them."""
    np.testing.assert_allclose(
        np.reshape(true_times(np.array(rows), fps=10), (-1, 4)), np.reshape(wanted, (-1, 4))
    )
    later = true_times(np.array(rows), fps=10, original_start_s=1, copy_start_s=2)
    np.testing.assert_allclose(
        np.reshape(later, (-1, 4)), np.add(np.reshape(wanted, (-1, 4)), [1, 1, 2, 2])
    )


@pytest.mark.parametrize("kind", ALL_EDITS)
def test_edit_rows_are_those_that_the_edit_shows(kind: str) -> None:
    """The timeline has a row for each frame of the copy; where nothing but time is edited, the
    frames are those rows."""
    frames = np.random.default_rng(0).integers(0, 256, (83, 48, 64, 3), dtype=np.uint8)
    donor = np.full((31, 50, 60, 3), 255, dtype=np.uint8)
    edited = ALL_EDITS[kind].apply(frames, donor, 10, np.random.default_rng(5))
    rows = ALL_EDITS[kind].rows(len(frames), len(donor), 10, np.random.default_rng(5))
    assert len(rows) == len(edited)
    shown = rows != NOTHING
    if kind in (
        "low_bitrate",
        "shuffle",
        "drop_blank",
        "drop_noise",
        "drop_cut",
        "fast_forward",
        "slow_motion",
        "reverse",
        "pause",
        "excerpt",
        "compilation",
        "five_seconds",
    ):
        np.testing.assert_array_equal(edited[shown], frames[rows[shown]])
        assert not any(
            np.array_equal(picture, frame) for picture in edited[~shown] for frame in frames[:3]
        )
