"""Which of many videos that are like a query are copies of it."""

import numpy as np
import pyarrow as pa
import pytest

from hapvr.scorer.evidence import level_of
from hapvr.search.crowds import all_alike, known_copies

NUM_VIDEOS = 200
COPIES = 45
UNRELATED = [0.2] * 30


def never(place: int) -> bool:
    raise AssertionError("nobody has to ask")


def test_the_level_of_a_search_with_many_copies_is_that_of_the_others() -> None:
    runs = [0.95] * COPIES + UNRELATED
    is_copy = known_copies(runs, num_videos=NUM_VIDEOS, shows_same=lambda place: place < COPIES)
    assert is_copy.tolist() == [True] * COPIES + [False] * len(UNRELATED)
    others = np.array(runs)[~is_copy]
    assert level_of(others, num_videos=NUM_VIDEOS) == pytest.approx(0.2)


def test_look_alikes_of_one_place_stay_what_unrelated_videos_reach() -> None:
    runs = [0.9] * 100
    asked = []

    def is_the_copy(place: int) -> bool:
        asked.append(place)
        return place == 0

    is_copy = known_copies(runs, num_videos=NUM_VIDEOS, shows_same=is_the_copy)
    assert np.flatnonzero(is_copy).tolist() == [0]
    assert len(asked) == 21  # no more than the level needs


@pytest.mark.parametrize(
    "runs", [[], [0.95] * 5 + UNRELATED, UNRELATED], ids=["none", "five copies", "no copy"]
)
def test_usual_searches_ask_of_no_candidate(runs: list[float]) -> None:
    assert not known_copies(runs, num_videos=NUM_VIDEOS, shows_same=never).any()


@pytest.mark.parametrize(
    ("similarities", "expected"),
    [
        ([[0.9, 0.9], [0.9, 0.8]], True),
        ([[0.9, 0.9], [0.9, 0.3]], True),
        ([[0.9, 0.3], [0.9, 0.3]], False),
        ([[0.9], [0.9]], False),
    ],
    ids=["all", "of half of the frames", "none", "the index had no more"],
)
def test_more_frames_are_looked_up_where_even_the_last_ones_are_alike(
    similarities: list[list[float]], expected: bool
) -> None:
    frames = [number for number, row in enumerate(similarities) for _ in row]
    values = [value for row in similarities for value in row]
    hits = pa.table({"query_frame": pa.array(frames, pa.int32()), "similarity": values})
    assert all_alike(hits, len(similarities), 2) == expected
