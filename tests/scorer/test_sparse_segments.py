"""Parts that a video has in common with one of which only key frames were decoded."""

import numpy as np
import pytest
from numpy.typing import NDArray

from hapvr.scorer.segments import FrameTimes, Segment
from hapvr.scorer.sparse_segments import align_timed, best_timed_run, widened

KEYS_S = (0.0, 4.0, 8.0, 13.5, 18.0, 22.0, 26.0, 30.0, 34.0, 38.0)
"""When key frames of a video of 40 seconds are shown."""
REFERENCE = FrameTimes(KEYS_S, duration_s=40.0)
EVEN = FrameTimes(tuple(float(second) for second in range(40)), duration_s=40.0)


def of_part(first_s: float, seconds: int) -> tuple[FrameTimes, NDArray[np.float64]]:
    """A part of the video, and how like its frames are to key frames: less by a tenth for each
    second between them."""
    clock = FrameTimes(tuple(float(second) for second in range(seconds)), duration_s=seconds)
    apart_s = np.abs(np.add.outer(np.array(clock.times_s) + first_s, -np.array(KEYS_S)))
    return clock, np.maximum(1 - 0.1 * apart_s, 0.2)


@pytest.mark.parametrize("first_s", [0.0, 3.4, 9.8])
def test_a_part_is_found_where_it_is_in_both_videos(first_s: float) -> None:
    """Give or take half of the time between two key frames."""
    query, matrix = of_part(first_s, 20)
    (part,) = align_timed(matrix, query, REFERENCE, threshold=0.8, fps=1)
    start_s = query.times_s[part.query[0]] + first_s
    end_s = query.times_s[part.query[1]] + first_s
    assert start_s == pytest.approx(KEYS_S[part.reference[0]], abs=2)
    assert end_s == pytest.approx(KEYS_S[part.reference[1]], abs=2)
    assert part.reference[1] - part.reference[0] >= 3


def test_it_is_the_same_the_other_way_round() -> None:
    query, matrix = of_part(3.4, 20)
    alignments = align_timed(matrix, query, REFERENCE, threshold=0.8, fps=1)
    swapped = align_timed(matrix.T, REFERENCE, query, threshold=0.8, fps=1)
    assert [(part.query, part.reference) for part in swapped] == [
        (part.reference, part.query) for part in alignments
    ]


def test_a_run_is_of_frames_that_are_equally_far_apart() -> None:
    query, matrix = of_part(0.0, 20)
    assert best_timed_run(matrix, query, REFERENCE, fps=1) == pytest.approx(1.0)
    assert best_timed_run(matrix[::-1], query, REFERENCE, fps=1) < 0.9


def test_a_query_between_two_key_frames_has_a_run_with_one_of_them() -> None:
    query, matrix = of_part(8.0, 3)
    assert best_timed_run(matrix, query, REFERENCE, fps=1) == pytest.approx(0.9)


def test_even_videos_are_compared_as_ever() -> None:
    matrix = np.eye(40)
    (part,) = align_timed(matrix, EVEN, EVEN, threshold=0.5, fps=1)
    assert (part.query, part.reference) == ((0, 39), (0, 39))
    assert best_timed_run(matrix, EVEN, EVEN, fps=1) == 1.0


@pytest.mark.parametrize("pause_s", [0.0, 30.0, 590.0])
def test_a_part_does_not_go_on_over_a_pause(pause_s: float) -> None:
    """The picture before it stays for a minute, and is like all of the other video, as with a fixed
    camera."""
    early_s = [float(second) for second in range(63)]
    late_s = [63.0 + pause_s + second for second in range(3)]
    query = FrameTimes((*early_s, *late_s), duration_s=late_s[-1] + 1)
    reference = FrameTimes(tuple(map(float, range(6))), duration_s=6.0)
    matrix = np.full((66, 6), 0.9)
    matrix[range(3), range(3)] = 1.0
    matrix[range(63, 66), range(3, 6)] = 1.0
    parts = align_timed(matrix, query, reference, threshold=0.6, fps=1)
    swapped = align_timed(matrix.T, reference, query, threshold=0.6, fps=1)
    paths = [part.query for part in parts] + [part.reference for part in swapped]
    over_pause = [rows for rows in paths if rows[0] < 63 <= rows[1]]
    assert bool(over_pause) is (pause_s < 60)


def test_a_segment_goes_on_by_half_of_the_time_between_key_frames() -> None:
    """No further than both videos."""
    query, _ = of_part(3.0, 20)
    segment = Segment(1.0, 16.0, 4.0, 19.0, 0.9)
    longer = widened(segment, query, REFERENCE, fps=1)
    assert (longer.query_start_s, longer.query_end_s) == (0.0, 17.5)
    assert (longer.reference_start_s, longer.reference_end_s) == (3.0, 20.5)
    assert widened(segment, EVEN, EVEN, fps=1) == segment
