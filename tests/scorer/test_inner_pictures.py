"""A picture that moves within another one is found where it is, and nothing is where nothing is."""

import numpy as np
import pytest
from PIL import Image

from hapvr.scorer.inner_pictures import inner_pictures
from hapvr.seeding import numpy_rng
from hapvr.video.frames import encode_jpeg

HEIGHT, WIDTH, COUNT = 144, 240, 8
Share = tuple[float, float, float, float]
"""Top, left, bottom and right of a rectangle, as shares of the picture."""


def panned(seed: int, *, height: int = HEIGHT, width: int = WIDTH, step: int = 9) -> np.ndarray:
    """A textured scene that a camera pans over, [COUNT, H, W, 3]; with step 0 it stands still."""
    rng = numpy_rng(seed, "panned")
    size = (width + step * COUNT, height + step * COUNT)
    small = rng.integers(0, 256, (size[1] // 12, size[0] // 12, 3), dtype=np.uint8)
    scene = np.asarray(Image.fromarray(small).resize(size, Image.Resampling.BICUBIC))
    return np.stack(
        [scene[n * step : n * step + height, n * step : n * step + width] for n in range(COUNT)]
    )


def put(host: np.ndarray, box: Share, *, seed: int, step: int = 9) -> np.ndarray:
    """The host with another scene in a box."""
    top, bottom = round(box[0] * HEIGHT), round(box[2] * HEIGHT)
    left, right = round(box[1] * WIDTH), round(box[3] * WIDTH)
    shown = host.copy()
    shown[:, top:bottom, left:right] = panned(
        seed, height=bottom - top, width=right - left, step=step
    )
    return shown


def found_in(frames: np.ndarray) -> list[Share]:
    boxes = inner_pictures([encode_jpeg(frame) for frame in frames])
    return [(y.start / HEIGHT, x.start / WIDTH, y.stop / HEIGHT, x.stop / WIDTH) for y, x in boxes]


def overlap(one: Share, two: Share) -> float:
    """Intersection over union."""
    high, wide = (max(min(one[n + 2], two[n + 2]) - max(one[n], two[n]), 0) for n in (0, 1))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, two)]
    return high * wide / (sum(areas) - high * wide)


@pytest.mark.parametrize("host", ["moving", "still", "plain"])
@pytest.mark.parametrize(
    "box", [(0.1, 0.55, 0.5, 0.93), (0.3, 0.1, 0.8, 0.6), (0.25, 0.0, 1.0, 1.0)]
)
def test_a_clip_in_a_clip_is_found(host: str, box: Share) -> None:
    """From 15 % of the area on; a meme's picture reaches three borders."""
    plain = np.full((COUNT, HEIGHT, WIDTH, 3), 250, np.uint8)
    hosts = {"moving": panned(0), "still": panned(1, step=0), "plain": plain}
    found = found_in(put(hosts[host], box, seed=2))
    assert max(overlap(box, one) for one in found) >= 0.8


def test_both_halves_of_a_split_screen_are_found() -> None:
    left, right = (0.0, 0.0, 1.0, 0.5), (0.0, 0.5, 1.0, 1.0)
    found = found_in(put(panned(3), right, seed=4))
    assert all(max(overlap(half, one) for one in found) >= 0.95 for half in (left, right))


def test_whole_pictures_have_none() -> None:
    """Nor have stills and single frames."""
    assert found_in(panned(5)) == []
    assert found_in(panned(5, step=0)) == []
    assert found_in(panned(5)[:1]) == []


def test_of_a_letterbox_what_lies_between_the_bars_is_found() -> None:
    between = (0.15, 0.0, 0.85, 1.0)
    (found,) = found_in(put(np.zeros((COUNT, HEIGHT, WIDTH, 3), np.uint8), between, seed=8))
    assert overlap(between, found) >= 0.95
