"""The two ways to find segments, on matrices whose matching parts are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hapvr.errors import ArgumentError
from hapvr.scorer.aligners import ALIGNERS, AlignerName
from hapvr.seeding import numpy_rng

EACH = pytest.mark.parametrize("name", list(ALIGNERS))


def background(rows: int, columns: int, *, seed: int = 0) -> NDArray[np.float64]:
    """Frame similarities of two videos that have nothing in common."""
    return numpy_rng(seed, "background").uniform(-0.2, 0.35, (rows, columns))


def drawn(matrix: NDArray[np.float64], start: tuple[int, int], length: int, value: float = 0.9) -> NDArray[np.float64]:
    """The matrix with a copied part of `length` frames."""
    for step in range(length):
        matrix[start[0] + step, start[1] + step] = value
    return matrix


@EACH
@settings(max_examples=30)
@given(start=st.tuples(st.integers(0, 20), st.integers(0, 30)), length=st.integers(2, 12), seed=st.integers(0, 50))
def test_one_copied_part_is_found_exactly(name: AlignerName, start: tuple[int, int], length: int, seed: int) -> None:
    """From its first to its last frame pair, with its mean similarity."""
    (found,) = ALIGNERS[name](drawn(background(34, 44, seed=seed), start, length), threshold=0.5)
    assert found.query == (start[0], start[0] + length - 1)
    assert found.reference == (start[1], start[1] + length - 1)
    assert found.score == pytest.approx(0.9)


@EACH
def test_parts_in_another_order_are_both_found(name: AlignerName) -> None:
    """Two parts that swapped places are two alignments; the longer is first."""
    matrix = drawn(drawn(background(20, 20), (0, 12), 8), (12, 2), 5)
    found = ALIGNERS[name](matrix, threshold=0.5)
    assert [(part.query, part.reference) for part in found] == [((0, 7), (12, 19)), ((12, 16), (2, 6))]


@EACH
def test_frames_that_are_missing_within_a_part_are_bridged(name: AlignerName) -> None:
    """Two unlike frames in the middle do not end a part."""
    matrix = drawn(background(20, 20), (3, 5), 10)
    matrix[[7, 8], [9, 10]] = 0.1
    (found,) = ALIGNERS[name](matrix, threshold=0.5)
    assert (found.query, found.reference) == ((3, 12), (5, 14))


def test_double_speed_is_found_by_a_path() -> None:
    """A path may run faster in one video than in the other; a vote for one offset may not."""
    matrix = background(30, 20)
    for step in range(10):
        matrix[4 + 2 * step, 3 + step] = matrix[5 + 2 * step, 3 + step] = 0.9
    best = ALIGNERS["tn"](matrix, threshold=0.5)[0]
    assert abs(best.query[0] - 4) <= 1
    assert abs(best.query[1] - 23) <= 1
    assert best.reference == (3, 12)


@EACH
def test_unrelated_videos_have_no_segment(name: AlignerName) -> None:
    """Nothing exceeds the threshold, or single frames do, far from each other."""
    assert ALIGNERS[name](background(30, 40), threshold=0.5) == []
    matrix = background(40, 40)
    matrix[[2, 30], [30, 3]] = 0.9
    assert ALIGNERS[name](matrix, threshold=0.5) == []


@EACH
def test_videos_of_one_frame(name: AlignerName) -> None:
    """A part has two frames, or as many as the shorter video."""
    (found,) = ALIGNERS[name](np.array([[0.1, 0.9, 0.2]]), threshold=0.5)
    assert (found.query, found.reference) == ((0, 0), (1, 1))
    (found,) = ALIGNERS[name](np.array([[0.9]]), threshold=0.5)
    assert (found.query, found.reference) == ((0, 0), (0, 0))


@EACH
@pytest.mark.parametrize(
    ("matrix", "threshold", "message"),
    [(np.zeros((0, 3)), 0.5, "wanted a matrix"), (np.zeros(3), 0.5, "wanted a matrix"), (np.eye(3), 1.0, "below 1")],
)
def test_what_is_no_matrix_is_refused(name: AlignerName, matrix: NDArray, threshold: float, message: str) -> None:
    """Shape and threshold are named."""
    with pytest.raises(ArgumentError, match=message):
        ALIGNERS[name](matrix, threshold=threshold)


@EACH
def test_a_matrix_of_equal_cells_ends(name: AlignerName) -> None:
    """Still pictures match everywhere; one part of them is found whole, and the search ends."""
    found = ALIGNERS[name](np.full((30, 30), 0.9), threshold=0.5)
    assert found
    assert (found[0].query, found[0].reference) == ((0, 29), (0, 29))
