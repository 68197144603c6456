"""Alignment of frame similarities, on matrices whose matching parts are known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from hapvr.scorer.segments import (
    Alignment,
    FrameTimes,
    Segment,
    align,
    best_run,
    clearest,
    relative_similarity,
)
from hapvr.scorer.steady_parts import is_less_alike, is_one_scene, settled, timed
from hapvr.seeding import numpy_rng


def background(rows: int, columns: int, *, seed: int = 0) -> NDArray[np.float64]:
    """Frame similarities of two videos that have nothing in common."""
    return numpy_rng(seed, "background").uniform(-0.2, 0.35, (rows, columns))


def spans(found: list[Alignment]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    return sorted((part.query, part.reference) for part in found)


def drawn(
    matrix: NDArray[np.float64], start: tuple[int, int], length: int, value: float = 0.9
) -> NDArray[np.float64]:
    """The matrix with a copied part of `length` frames."""
    for step in range(length):
        matrix[start[0] + step, start[1] + step] = value
    return matrix


@settings(max_examples=30)
@given(
    start=st.tuples(st.integers(0, 20), st.integers(0, 30)),
    length=st.integers(2, 12),
    seed=st.integers(0, 50),
)
def test_one_copied_part_is_found_exactly(start: tuple[int, int], length: int, seed: int) -> None:
    """From its first to its last frame pair, with its mean similarity."""
    (alignment,) = align(drawn(background(34, 44, seed=seed), start, length), threshold=0.5)
    assert alignment.query == (start[0], start[0] + length - 1)
    assert alignment.reference == (start[1], start[1] + length - 1)
    assert alignment.score == pytest.approx(0.9)


def test_parts_that_changed_places_are_both_found_the_longer_first() -> None:
    swapped = align(drawn(drawn(background(20, 20), (0, 12), 8), (12, 2), 5), threshold=0.5)
    assert [(part.query, part.reference) for part in swapped] == [
        ((0, 7), (12, 19)),
        ((12, 16), (2, 6)),
    ]


def test_a_part_that_is_far_less_alike_is_left_out() -> None:
    faint = drawn(drawn(np.zeros((20, 20)), (0, 12), 8), (12, 2), 5, 0.3)
    assert spans(align(faint, threshold=0.2)) == [((0, 7), (12, 19))]


def test_no_end_runs_on_into_what_is_a_little_alike() -> None:
    part = drawn(background(20, 20), (3, 5), 10)
    assert spans(align(part, threshold=0.1)) == [((3, 12), (5, 14))]


def test_two_parts_are_not_joined_by_what_is_a_little_alike_between_them() -> None:
    faint = drawn(np.full((70, 70), -1.0), (0, 0), 70, 0.12)
    both = drawn(drawn(faint, (0, 0), 10), (50, 50), 8)
    assert spans(align(both, threshold=0.1)) == [((0, 9), (0, 9)), ((50, 57), (50, 57))]


def test_two_unlike_frames_within_a_part_are_bridged() -> None:
    part = drawn(background(20, 20), (3, 5), 10)
    part[[7, 8], [9, 10]] = 0.1
    assert spans(align(part, threshold=0.5)) == [((3, 12), (5, 14))]


def test_a_part_may_run_at_double_speed() -> None:
    """Its ends are known to a frame."""
    fast = background(30, 20)
    for step in range(10):
        rows = [4 + 2 * step, 5 + 2 * step]
        fast[rows, 3 + step] = 0.9

    best = align(fast, threshold=0.5)[0]
    assert list(best.query) == pytest.approx([4, 23], abs=1)
    assert best.reference == (3, 12)


def test_still_pictures_are_one_part() -> None:
    still = align(np.full((30, 30), 0.9), threshold=0.5)
    assert (still[0].query, still[0].reference) == ((0, 29), (0, 29))


def test_videos_that_have_nothing_in_common_have_no_part() -> None:
    assert align(background(30, 40), threshold=0.5) == []


def test_a_video_of_one_frame_has_a_part_of_one_frame() -> None:
    assert spans(align(np.array([[0.1, 0.9, 0.2]]), threshold=0.5)) == [((0, 0), (1, 1))]


@given(seed=st.integers(0, 200), rows=st.integers(1, 12), columns=st.integers(1, 12))
def test_alignments_obey_their_laws(seed: int, rows: int, columns: int) -> None:
    """In range, in order, long enough, no two with a common frame pair, and the same parts if the
    videos change places."""
    matrix = numpy_rng(seed, "matrix").uniform(-1, 1, (rows, columns))
    alignments = align(matrix, threshold=0.2)
    for part in alignments:
        first, last = part.query
        start, end = part.reference
        assert 0 <= first <= last < rows
        assert 0 <= start <= end < columns
        assert min(last - first, end - start) + 1 >= min(2, rows, columns)
        common = [
            other
            for other in alignments
            if max(first, other.query[0]) <= min(last, other.query[1])
            and max(start, other.reference[0]) <= min(end, other.reference[1])
        ]
        assert common == [part]

    mirrored = [
        Alignment(part.reference, part.query, part.score) for part in align(matrix.T, threshold=0.2)
    ]
    assert spans(mirrored) == spans(alignments)


def test_best_run_by_hand() -> None:
    """One high pair counts for nothing beside a lower run; a video of one frame has runs of one."""
    matrix = np.zeros((3, 4))
    matrix[0, 3] = 0.9
    matrix[1, 1] = 0.6
    matrix[2, 2] = 0.5
    assert best_run(matrix) == 0.5
    assert best_run(matrix[:1]) == 0.9


def test_relative_similarity_of_equal_frames_is_one() -> None:
    """Attention that shrinks one video's frames to a half and another's to a third leaves equal
    frames at 1."""
    pictures = np.array([[1.0, 0.2], [0.2, 1.0]])
    relative = relative_similarity(pictures / 6, np.full(2, 1 / 4), np.full(2, 1 / 9))
    assert relative == pytest.approx(pictures)


def test_times_run_to_the_end_of_the_last_frame() -> None:
    """Frames 2..4 and 0..2 at 2 fps are 1.0 to 2.5 s and 0 to 1.5 s."""
    clock = FrameTimes((0.0, 0.5, 1.0, 1.5, 2.0))
    assert (clock.span_s(2, 4, 2.0), clock.span_s(0, 2, 2.0)) == ((1.0, 2.5), (0.0, 1.5))
    cut = FrameTimes(clock.times_s, 2.25)
    wrong = FrameTimes(clock.times_s, 1.0)
    assert (cut.length_s(2.0, 6), FrameTimes(clock.times_s, 9.0).length_s(2.0, 5)) == (2.25, 9.0)
    assert (cut.span_s(2, 4, 2.0), wrong.span_s(2, 4, 2.0)) == ((1.0, 2.25), (1.0, 2.5))


def fixed_camera(start: int, *, light: float = 0.0) -> np.ndarray:
    """[5, 30]: five frames cut from a fixed camera's thirty at `start`; the place is a little more
    alike than any other. light: what an edit takes from some of the true pairs."""
    matrix = np.full((5, 30), 0.93)
    matrix += numpy_rng(start, "noise").uniform(-0.01, 0.01, matrix.shape)
    for row in range(5):
        matrix[row, start + row] = 0.96 - light * (row % 2)
    return matrix


@pytest.mark.parametrize(("start", "light"), [(12, 0.0), (3, 0.0), (20, 0.02)])
def test_a_part_of_a_fixed_camera_is_shown_once_and_at_its_own_speed(
    start: int, light: float
) -> None:
    """At the place that fits best, and it is said that the second is not certain."""
    matrix = fixed_camera(start, light=light)
    (part,) = clearest(settled(align(matrix, threshold=0.5), matrix))
    assert part.query == (0, 4)
    assert part.reference == (start, start + 4)
    assert not part.certain


def test_the_place_of_moving_pictures_is_certain() -> None:
    """Also where the same is shown twice: both places stay."""
    matrix = background(6, 40)
    for row in range(6):
        matrix[row, 5 + row] = matrix[row, 25 + row] = 0.9
    parts = clearest(settled(align(matrix, threshold=0.5), matrix))
    assert sorted(part.reference for part in parts) == [(5, 10), (25, 30)]
    assert all(part.certain for part in parts)


def test_a_speed_that_fits_better_is_kept() -> None:
    """Every other frame of the reference."""
    matrix = background(10, 30)
    for row in range(10):
        matrix[row, 4 + 2 * row] = 0.9
    (part,) = clearest(settled(align(matrix, threshold=0.5), matrix))
    assert part.reference == (4, 22)
    assert part.certain


@pytest.mark.parametrize("swapped", [False, True], ids=["cut out", "put in"])
def test_what_was_cut_out_or_put_in_changes_no_speed(swapped: bool) -> None:
    """The query has left out three frames of the reference, or shows something else for three: two
    parts at the speed of the original."""
    matrix = background(6, 30)
    for row in range(6):
        matrix[row, row + (2 if row < 3 else 5)] = 0.9
    if swapped:
        matrix = matrix.T
    parts = clearest(settled(align(matrix, threshold=0.5), matrix))
    expected = [((0, 2), (2, 4)), ((3, 5), (8, 10))]
    if swapped:
        expected = [(reference, query) for query, reference in expected]
    assert spans(parts) == expected


def test_three_frames_that_are_alike_at_any_distance_have_no_speed() -> None:
    """A path through whatever is a little more alike: shown at the speed of the original, at a
    second that is not certain."""
    matrix = np.array(
        [
            [0.26, 0.23, 0.21, 0.69, 0.66, 0.58, 0.57, 0.56, 0.56],
            [0.42, 0.34, 0.38, 0.61, 0.64, 0.59, 0.53, 0.65, 0.58],
            [0.35, 0.32, 0.39, 0.60, 0.61, 0.57, 0.64, 0.67, 0.66],
        ]
    )
    (part,) = clearest(settled(align(matrix, threshold=0.5), matrix))
    assert part.query == (0, 2)
    assert part.reference == (3, 5)
    assert not part.certain


def test_a_place_in_a_scene_that_repeats_is_not_certain() -> None:
    """As of a swing: places far apart fit as well, and the others not much worse."""
    rng = numpy_rng(1, "swing")
    matrix = rng.uniform(0.55, 0.65, (4, 20))
    for row in range(4):
        matrix[row, 2 + row] = 0.76
        matrix[row, 9 + row] = 0.75

    (part,) = clearest(settled(align(matrix, threshold=0.5), matrix))
    assert part.reference == (2, 5)
    assert not part.certain


def test_a_part_at_half_speed_of_pictures_that_are_all_alike_is_not_certain() -> None:
    """No path follows it, as each step of one moves on in both videos."""
    matrix = np.full((8, 20), 0.7)
    for row in range(8):
        matrix[row, 9 + row // 2] = 0.99
    (part,) = clearest(settled(align(matrix, threshold=0.5), matrix))
    assert not part.certain


@pytest.mark.parametrize("at", ["first", "last"])
def test_an_outer_frame_that_is_like_its_neighbour_belongs_to_the_part(at: str) -> None:
    """Sampled half a second later, two frames of the query are like one of the reference."""
    matrix = background(8, 20)
    for row in range(8):
        matrix[row, 6 + row - (row == 7)] = 0.9
    if at == "first":
        matrix = matrix[::-1, ::-1]
    (part,) = clearest(settled(align(matrix, threshold=0.5), matrix))
    assert part.query == (0, 7)


def test_the_last_frame_of_a_faster_video_lasts_longer() -> None:
    """At twice the speed it stands for two seconds, but not beyond the end."""
    query = FrameTimes(tuple(map(float, range(5))))
    part = Alignment((0, 4), (9, 17), 0.9)
    ends_s = []
    for reference_s in (30, 18):
        reference = FrameTimes(tuple(map(float, range(reference_s))))
        segment = timed(part, query, reference, fps=1)
        slowed = timed(replace(part, query=(9, 17), reference=(0, 4)), reference, query, fps=1)
        assert slowed.query_end_s == segment.reference_end_s
        ends_s.append(segment.reference_end_s)

    assert ends_s == [19, 18]


def test_footage_that_is_shown_twice_has_two_places() -> None:
    """The second time it is less alike, as under a caption."""
    matrix = background(6, 40)
    for row in range(6):
        matrix[row, 9 + row] = 0.95
        matrix[row, 25 + row] = 0.8
    parts = clearest(settled(align(matrix, threshold=0.5), matrix))
    assert [part.reference for part in parts] == [(9, 14), (25, 30)]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (Segment(0, 8, 80, 88, 0.98), False),
        (Segment(0, 8, 116, 124, 0.9), True),
        (Segment(8, 12, 20, 24, 0.9), False),
    ],
    ids=["as alike", "less alike", "another part"],
)
def test_a_part_may_show_less_alike_what_another_one_shows(part: Segment, expected: bool) -> None:
    assert is_less_alike(part, Segment(0, 8, 41, 49, 1.0)) == expected


def test_frames_of_one_scene_are_like_each_other_seconds_apart() -> None:
    assert is_one_scene(np.full((8, 8), 0.86), 0.9)
    assert not is_one_scene(np.full((8, 8), 0.4) + 0.6 * np.eye(8), 0.9)


def test_parts_far_below_the_best_are_no_parts() -> None:
    """What an edit does to one part, it does to all."""
    best = Alignment((0, 9), (0, 9), 0.9)
    alike = Alignment((20, 24), (30, 34), 0.5)
    second_best = Alignment((10, 14), (40, 44), 0.8)
    assert clearest([best, second_best, alike]) == [best, second_best]
    assert clearest([]) == []


def test_no_part_is_shown_twice() -> None:
    """Two paths through one stretch are one part at the speed of the original."""
    matrix = background(8, 20)
    for row in range(8):
        matrix[row, 6 + row] = 0.9
    paths = [Alignment((0, 7), (6, 15), 0.88), Alignment((0, 6), (5, 12), 0.87)]
    (part,) = settled(paths, matrix)
    assert part.reference == (6, 13)


def test_what_begins_late_is_as_long_as_its_picture() -> None:
    """Frames from 4 s to 12 s of a file whose sound starts first are 8 s of footage; where the
    rest was left out, the file says how long that is."""
    times_s = tuple(4.0 + number for number in range(8))
    late = FrameTimes(times_s, 12.0)
    assert late.span_s(0, 7, 1.0) == (4.0, 12.0)
    assert late.length_s(1.0, 3600) == 8.0
    assert FrameTimes(times_s, 100.0).length_s(1.0, 8) == 96.0
