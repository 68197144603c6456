"""Whether copies look alike: frames of real pictures, made small as they are stored."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from hapvr.search.looks import by_looks, shows_more_in_one_place, surely_look_alike
from hapvr.video.frames import encode_jpeg
from hapvr.video.looks import FILM_PX, MOMENT_PX, film_pictures, mean_colours, moments
from tests.search.copies import copy
from tests.video.scenes import wandering_box

WIDTH_PX = 320
HEIGHT_PX = 240
NUM_FRAMES = 8
Frames = list[NDArray[np.uint8]]


def scene() -> Frames:
    return wandering_box(NUM_FRAMES, size_px=(WIDTH_PX, HEIGHT_PX), step_px=20)


def written(frames: Frames, words: str, *, size_px: int, strength: float = 1.0) -> Frames:
    shown = []
    for frame in frames:
        picture = Image.fromarray(frame)
        marked = picture.copy()
        place = (WIDTH_PX * 0.7, HEIGHT_PX * 0.9)
        ImageDraw.Draw(marked).text(place, words, fill="white", font_size=size_px)
        shown.append(np.asarray(Image.blend(picture, marked, strength)))

    return shown


def with_faint_text(frames: Frames) -> Frames:
    return written(frames, "example.org", size_px=10, strength=0.6)


def with_watermark(frames: Frames) -> Frames:
    return written(frames, "sample.tv", size_px=16)


def with_subtitle(frames: Frames) -> Frames:
    """For two seconds."""
    return frames[:3] + written(frames[3:5], "and then", size_px=20) + frames[5:]


def damaged(frames: Frames) -> Frames:
    """As blocks are that a decoder cannot know until the next key frame."""
    shown = [frame.copy() for frame in frames]
    for frame in shown[5:7]:
        frame[150:200, 100:200] = np.random.default_rng(1).integers(0, 255, (50, 1, 1))

    return shown


def frozen(frames: Frames) -> Frames:
    """The third picture stays for two seconds."""
    return frames[:3] + 2 * frames[2:3] + frames[5:]


def halved(frames: Frames) -> Frames:
    size = (WIDTH_PX // 2, HEIGHT_PX // 2)
    return [np.asarray(Image.fromarray(frame).resize(size)) for frame in frames]


def squeezed(frames: Frames) -> Frames:
    size = (WIDTH_PX * 3 // 4, HEIGHT_PX)
    return [np.asarray(Image.fromarray(frame).resize(size)) for frame in frames]


def noisy(frames: Frames) -> Frames:
    rng = np.random.default_rng(1)
    shown = [frame + rng.normal(0, 8, frame.shape) for frame in frames]
    return [np.clip(frame, 0, 255).astype(np.uint8) for frame in shown]


def looks(frames: Sequence[NDArray[np.uint8]]) -> dict[str, Any]:
    """What is stored of a copy with these frames."""
    pictures = film_pictures([encode_jpeg(frame) for frame in frames])
    return {"mean_colours": mean_colours(pictures), "moments": moments(pictures)}


@pytest.mark.parametrize(
    ("edit", "is_alike"),
    [
        (halved, True),
        (squeezed, True),
        (noisy, True),
        (with_faint_text, False),
        (with_subtitle, False),
        (damaged, False),
        (frozen, False),
    ],
)
def test_what_is_shown_in_one_place_or_for_a_while_looks_otherwise(
    edit: Callable[[Frames], Frames], is_alike: bool
) -> None:
    verdict = by_looks([copy("plain", **looks(scene())), copy("edited", **looks(edit(scene())))])
    assert (verdict.doubt == "") is is_alike


@pytest.mark.parametrize(
    ("begin", "edit", "shows_more"),
    [
        pytest.param(0, list, False, id="cut at its end"),
        pytest.param(2, list, False, id="cut at its beginning"),
        pytest.param(0, with_watermark, True, id="cut at its end, without the watermark"),
        pytest.param(2, with_watermark, True, id="cut at its beginning, without the watermark"),
    ],
)
def test_a_longer_copy_may_show_more_in_one_place_than_a_shorter_one(
    begin: int, edit: Callable[[Frames], Frames], shows_more: bool
) -> None:
    frames = scene()
    longer = copy("longer", **looks(edit(frames)))
    shorter = copy("shorter", **looks(frames[begin : begin + 6]))
    assert shows_more_in_one_place(longer, shorter) is shows_more


def stored_with(*, everywhere: int, in_one_place: int) -> dict[str, Any]:
    """What is stored of a grey film, each cell of whose frames is as much lighter or darker, and
    one of them lighter by `in_one_place`."""
    cells = np.full((NUM_FRAMES, MOMENT_PX, MOMENT_PX), 100, np.uint8)
    cells[:, :, ::2] += np.uint8(everywhere)
    cells[:, :, 1::2] -= np.uint8(everywhere)
    cells[:, 8, 8] = 100 + in_one_place
    grey = np.full((FILM_PX, FILM_PX, 3), 100, np.uint8)
    return {"mean_colours": grey.tobytes(), "moments": cells.tobytes()}


@pytest.mark.parametrize(("everywhere", "is_alike"), [(1, False), (3, True)])
def test_a_place_stands_out_only_from_what_differs_everywhere(
    everywhere: int, is_alike: bool
) -> None:
    """In a very poor copy each place differs."""
    plain = copy("plain", **stored_with(everywhere=0, in_one_place=0))
    poor = copy("poor", **stored_with(everywhere=everywhere, in_one_place=12))
    assert (by_looks([plain, poor]).doubt == "") is is_alike


@pytest.mark.parametrize(
    ("changes", "is_sure"),
    [
        pytest.param({}, True, id="known"),
        pytest.param({"measured": False}, False, id="not measured"),
        pytest.param({"moments": b""}, False, id="no moments"),
        pytest.param({"content": (1.0, 0.75)}, False, id="bars"),
        pytest.param({"fps": 30.0}, False, id="other moments"),
    ],
)
def test_copies_look_alike_for_sure_only_where_all_is_known(
    changes: dict[str, Any], is_sure: bool
) -> None:
    stored = looks(scene())
    assert surely_look_alike(copy("a", **stored), copy("b", **{**stored, **changes})) is is_sure


def test_most_of_a_film_may_stand_still() -> None:
    """So that it looks nearly as like the other copy a second later."""
    frames = scene()
    stored = looks(frames + 10 * frames[-1:])
    assert by_looks([copy("a", **stored), copy("b", **stored)]).doubt == ""


def test_copies_that_all_have_bars_are_compared() -> None:
    """By the film between them."""
    barred = {"content": (1.0, 0.75)}
    verdict = by_looks(
        [
            copy("plain", **barred, **looks(scene())),
            copy("edited", **barred, **looks(damaged(scene()))),
        ]
    )
    assert verdict.doubt
