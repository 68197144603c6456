"""Whether aligned frames of two videos have the same course."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from hapvr.scorer.course import rows_between, same_course, shown_parts
from hapvr.scorer.embedded import EmbeddedVideo
from hapvr.scorer.segments import FrameTimes, Segment


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


class LikeItself:
    """Frames of a video that are so similar to each other."""

    def __init__(self, similarity: float) -> None:
        self.similarity = similarity

    def relative_similarity(
        self, query: EmbeddedVideo, reference: EmbeddedVideo
    ) -> NDArray[np.float64]:
        return np.full((len(query), len(reference)), self.similarity)


QUERY = EmbeddedVideo(
    np.zeros((8, 1, 4)), FrameTimes(tuple(map(float, range(8)))), np.zeros(8, np.uint64)
)
BEST = Segment(0, 8, 41, 49, 1.0)
LESS_ALIKE = Segment(0, 8, 116, 124, 0.9)


@pytest.mark.parametrize(
    ("similarity", "is_certain"), [(0.3, True), (0.85, False)], ids=["changes", "one scene"]
)
def test_footage_that_is_shown_again_is_certain_unless_the_query_is_one_scene(
    similarity: float, is_certain: bool
) -> None:
    best, again = shown_parts(LikeItself(similarity), QUERY, [BEST, LESS_ALIKE], lambda _: True)
    assert best == BEST
    assert (again.reference_start_s, again.certain) == (116, is_certain)


def test_what_is_less_alike_and_has_another_course_is_no_part() -> None:
    """It is another moment of the scene."""
    shown = shown_parts(LikeItself(0.3), QUERY, [BEST, LESS_ALIKE], lambda _: False)
    assert shown == [BEST]


def test_what_is_as_alike_is_a_part() -> None:
    again = Segment(0, 8, 80, 88, 0.98)
    assert shown_parts(LikeItself(0.85), QUERY, [BEST, again], lambda _: False) == [BEST, again]
