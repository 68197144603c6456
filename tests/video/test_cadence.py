"""Which part of a film's pictures shows something new."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from hapvr.video.cadence import RUN_PICTURES, is_woven, share_of_new

Grey = NDArray[np.uint8]


def moving(count: int) -> list[Grey]:
    """A texture that wanders, a little faster or slower each time, with noise of its own."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (30, 60)).astype(np.uint8)
    texture = np.asarray(Image.fromarray(coarse).resize((640, 240), Image.Resampling.BICUBIC))
    place = 0.0
    pictures = []
    for _ in range(count):
        place += rng.uniform(2.5, 4)
        shown = texture[:, round(place) : round(place) + 320].astype(np.float64)
        pictures.append(compressed(shown, rng))

    return pictures


def compressed(picture: NDArray[np.float64], rng: np.random.Generator) -> Grey:
    return np.clip(picture + rng.normal(0, 0.7, picture.shape), 0, 255).astype(np.uint8)


def repeated(pictures: Sequence[Grey], every: int, times: int = 1) -> list[Grey]:
    """One of so many pictures comes more than once, compressed again."""
    rng = np.random.default_rng(1)
    shown = []
    for number, picture in enumerate(pictures):
        shown.append(picture)
        if number % every == every - 1:
            shown += [compressed(picture.astype(np.float64), rng) for _ in range(times)]

    return shown


def mixed(pictures: Sequence[Grey]) -> list[Grey]:
    """Between two pictures comes their mean."""
    shown = []
    for before, after in pairwise(pictures):
        mean = (before.astype(np.float64) + after) / 2
        shown += [before, mean.astype(np.uint8)]

    return shown


def mostly_still(pictures: Sequence[Grey]) -> list[Grey]:
    """What moves is in a corner of a wall."""
    wall = np.full((480, 640), 120, np.uint8)
    shown = []
    for picture in pictures:
        scene = wall.copy()
        scene[-80:, -100:] = picture[:80, :100]
        shown.append(scene)

    return shown


FILMS: dict[str, tuple[Callable[[list[Grey]], list[Grey]], float | None]] = {
    "as filmed": (lambda pictures: pictures, 1.0),
    "60 of 30": (lambda pictures: repeated(pictures, 1), 0.5),
    "90 of 30": (lambda pictures: repeated(pictures, 1, 2), 1 / 3),
    "30 of 24": (lambda pictures: repeated(pictures, 4), 0.8),
    "60 of 30, mixed": (mixed, 0.5),
    "a corner moves": (mostly_still, 1.0),
    "60 of 30 where a corner moves": (lambda pictures: mostly_still(repeated(pictures, 1)), 0.5),
    "nothing moves": (lambda pictures: len(pictures) * pictures[:1], None),
    "too short": (lambda pictures: repeated(pictures, 1)[: RUN_PICTURES - 1], None),
}


@pytest.mark.parametrize("film", FILMS)
def test_pictures_that_show_nothing_new_are_told(film: str) -> None:
    make, expected = FILMS[film]
    pictures = make(moving(4 * RUN_PICTURES))
    runs = [pictures[start : start + RUN_PICTURES] for start in (0, 8, 21)]
    assert share_of_new(runs) == pytest.approx(expected, abs=0.1)


def woven(pictures: Sequence[Grey]) -> list[Grey]:
    """Each has every second row of the next."""
    shown = []
    for picture, following in pairwise(pictures):
        both = picture.copy()
        both[1::2] = following[1::2]
        shown.append(both)

    return shown


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        pytest.param(list, False, id="as filmed"),
        pytest.param(woven, True, id="woven"),
        pytest.param(mostly_still, False, id="a corner moves"),
        pytest.param(lambda pictures: mostly_still(woven(pictures)), True, id="woven in a corner"),
        pytest.param(lambda pictures: woven(RUN_PICTURES * pictures[:1]), False, id="still"),
    ],
)
def test_pictures_woven_of_two_are_told(
    make: Callable[[list[Grey]], list[Grey]], expected: bool
) -> None:
    pictures = [np.roll(picture, -8 * number, axis=1) for number, picture in enumerate(moving(8))]
    assert is_woven([make(pictures)]) is expected
