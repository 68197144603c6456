"""Which part of the picture is the film: bars and blurred sides are not."""

import numpy as np
import pytest
from PIL import Image, ImageFilter

from hapvr.video.content import WHOLE_PICTURE, Box, cut_to, film_box, seen_box
from hapvr.video.frames import encode_jpeg

HEIGHT = 180
WIDTH = 320
FILM_WIDTH = 100
FILM_HEIGHT = 60


def scene(width: int, height: int, *, seed: int = 0) -> Image.Image:
    """Coarse shapes with fine texture, as of a camera."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(60, 220, (9, 16, 3), dtype=np.uint8))
    large = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    textured = large + rng.integers(-25, 25, large.shape)
    return Image.fromarray(textured.clip(0, 255).astype(np.uint8))


def framed(film: Image.Image, ground: Image.Image) -> Image.Image:
    """A film in the middle of a picture."""
    ground = ground.copy()
    ground.paste(film, ((WIDTH - film.width) // 2, (HEIGHT - film.height) // 2))
    return ground


def black() -> Image.Image:
    return Image.new("RGB", (WIDTH, HEIGHT))


def blurred(film: Image.Image) -> Image.Image:
    return film.resize((WIDTH, HEIGHT)).filter(ImageFilter.GaussianBlur(20))


def upright_between_bars(seed: int) -> Image.Image:
    return framed(scene(FILM_WIDTH, HEIGHT, seed=seed), black())


def upright_on_itself(seed: int) -> Image.Image:
    film = scene(FILM_WIDTH, HEIGHT, seed=seed)
    return framed(film, blurred(film))


def wide_on_itself(seed: int) -> Image.Image:
    film = scene(WIDTH, FILM_HEIGHT, seed=seed)
    return framed(film, blurred(film))


def letterboxed(seed: int) -> Image.Image:
    return framed(scene(WIDTH, FILM_HEIGHT, seed=seed), black())


def whole(seed: int) -> Image.Image:
    return scene(WIDTH, HEIGHT, seed=seed)


def dark_on_the_left(seed: int) -> Image.Image:
    picture = scene(WIDTH, HEIGHT, seed=seed)
    picture.paste((0, 0, 0), (0, 0, WIDTH // 4, HEIGHT))
    return picture


def out_of_focus(seed: int) -> Image.Image:
    return blurred(scene(WIDTH, HEIGHT, seed=seed))


SIDE = (1 - FILM_WIDTH / WIDTH) / 2
EDGE = (1 - FILM_HEIGHT / HEIGHT) / 2
MADE = {
    make.__name__: make
    for make in (
        upright_between_bars,
        upright_on_itself,
        wide_on_itself,
        letterboxed,
        whole,
        dark_on_the_left,
        out_of_focus,
    )
}
UPRIGHT = (SIDE, 0.0, 1 - SIDE, 1.0)
WIDE = (0.0, EDGE, 1.0, 1 - EDGE)


def frames(make: str) -> list[bytes]:
    return [encode_jpeg(np.asarray(MADE[make](seed))) for seed in range(3)]


@pytest.mark.parametrize(
    ("make", "box"),
    [
        ("upright_between_bars", UPRIGHT),
        ("upright_on_itself", UPRIGHT),
        ("wide_on_itself", WIDE),
        ("letterboxed", WIDE),
        ("whole", WHOLE_PICTURE),
        ("dark_on_the_left", WHOLE_PICTURE),
        ("out_of_focus", WHOLE_PICTURE),
    ],
)
def test_the_film_is_what_bars_and_blurred_sides_leave(make: str, box: Box) -> None:
    """But for the blocks of a JPEG at its edges."""
    assert film_box(frames(make)) == pytest.approx(box, abs=0.03)


def test_networks_that_cut_off_edges_see_the_whole_picture() -> None:
    jpegs = frames("upright_between_bars")
    assert seen_box(jpegs, "cropped") == WHOLE_PICTURE
    assert seen_box(jpegs, "squeezed") != WHOLE_PICTURE


def test_a_box_is_cut_out_of_every_frame() -> None:
    pictures = np.arange(2 * 3 * 10 * 20, dtype=np.uint8).reshape(2, 3, 10, 20)
    part = cut_to(pictures, (0.25, 0.1, 0.75, 0.9))
    np.testing.assert_array_equal(part, pictures[:, :, 1:9, 5:15])
