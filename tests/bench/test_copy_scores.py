"""Scores of copies from frame vectors."""

import numpy as np
import pytest

from bench.copy_scores import VIEWS, best_run, copy_scores


def test_a_run_needs_two_frames_in_order() -> None:
    frames = np.eye(4, dtype=np.float32)
    assert best_run(frames[:2], frames[1:3]) == pytest.approx(0.0)
    assert best_run(frames[1:3], frames) == pytest.approx(1.0)
    assert best_run(frames[:1], frames) == pytest.approx(1.0)


def test_the_level_is_that_of_the_sixth_to_twentieth_video() -> None:
    whole = np.concatenate([[0.9] * 5, np.full(15, 0.36), np.full(100, 0.1)])
    runs = np.zeros((len(VIEWS), len(whole)))
    runs[0] = whole
    assert copy_scores(runs)[0] == pytest.approx((0.9 - 0.36) / 0.8)


def test_without_a_collection_the_level_is_fixed() -> None:
    runs = np.zeros((len(VIEWS), 1))
    runs[3] = 0.75
    expected = 0.5 / np.sqrt(0.75) - 0.05
    assert copy_scores(runs) == pytest.approx([expected])
