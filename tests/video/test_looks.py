"""What a video's frames look like as a whole, and when they stand still."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from hapvr.video.frames import encode_jpeg
from hapvr.video.looks import (
    FILM_PX,
    LEAST_FRAMES,
    MOMENT_PX,
    film_pictures,
    mean_colours,
    moments,
    step_between,
    still_s,
)
from tests.video.scenes import wandering_box

WIDTH_PX = 320
HEIGHT_PX = 180
NUM_FRAMES = 8
Frame = NDArray[np.uint8]


def scene() -> list[Frame]:
    return wandering_box(NUM_FRAMES, size_px=(WIDTH_PX, HEIGHT_PX), step_px=30)


def resized(frame: Frame, width_px: int, height_px: int) -> Frame:
    return np.asarray(Image.fromarray(frame).resize((width_px, height_px)))


def with_logo(frame: Frame) -> Frame:
    marked = Image.fromarray(frame)
    ImageDraw.Draw(marked).ellipse((270, 15, 300, 35), fill=(255, 255, 255))
    return np.asarray(marked)


def with_text(frame: Frame) -> Frame:
    marked = Image.fromarray(frame)
    place = (WIDTH_PX // 2, 160)
    ImageDraw.Draw(marked).text(place, "Come along!", fill="white", anchor="mm", font_size=14)
    return np.asarray(marked)


def cropped(frame: Frame) -> Frame:
    inner = frame[6:-6, 10:-10]
    return resized(inner, WIDTH_PX, HEIGHT_PX)


def grey(frame: Frame) -> Frame:
    return np.asarray(Image.fromarray(frame).convert("L").convert("RGB"))


def brighter(frame: Frame) -> Frame:
    return np.asarray(255 * (frame / 255) ** 0.7, np.uint8)


def squeezed(frame: Frame) -> Frame:
    return resized(frame, 240, 180)


def halved(frame: Frame) -> Frame:
    return resized(frame, WIDTH_PX // 2, HEIGHT_PX // 2)


def noisy(frame: Frame) -> Frame:
    noise = np.random.default_rng(1).normal(0, 8, frame.shape)
    return np.clip(frame + noise, 0, 255).astype(np.uint8)


def colours(frames: Sequence[Frame]) -> NDArray[np.float64]:
    """[N, N, 3], without what is at the edges."""
    stored = mean_colours(film_pictures([encode_jpeg(frame) for frame in frames]))
    fine = np.frombuffer(stored, np.uint8).reshape(FILM_PX, FILM_PX, 3)
    coarse = fine.reshape(FILM_PX // 2, 2, FILM_PX // 2, 2, 3).mean(axis=(1, 3))
    return np.asarray(coarse[1:-1, 1:-1], np.float64)


@pytest.mark.parametrize("edit", [squeezed, halved, noisy])
def test_a_copy_of_other_quality_has_the_same_mean(edit: Callable[[Frame], Frame]) -> None:
    frames = scene()
    differences = np.abs(colours(frames) - colours([edit(frame) for frame in frames]))
    assert differences.max() < 10


@pytest.mark.parametrize("edit", [with_logo, with_text, cropped, grey, brighter])
def test_what_shows_more_or_less_stands_out_of_the_mean(edit: Callable[[Frame], Frame]) -> None:
    frames = scene()
    differences = np.abs(colours(frames) - colours([edit(frame) for frame in frames]))
    assert differences.max() > 20


def test_each_frame_has_its_moment() -> None:
    """In grey, without black bars."""
    frames = scene()
    between_bars = [np.pad(frame, ((60, 60), (0, 0), (0, 0))) for frame in frames]
    plain = stored_moments(frames)
    assert plain.shape == (NUM_FRAMES, MOMENT_PX**2)
    assert np.abs(plain - stored_moments(between_bars)).mean() < 3
    in_grey = [float(np.mean(frame)) for frame in frames]
    assert plain.mean(axis=1) == pytest.approx(in_grey, abs=3)


def stored_moments(frames: Sequence[Frame]) -> NDArray[np.float64]:
    """[N, P]"""
    stored = moments(film_pictures([encode_jpeg(frame) for frame in frames]))
    return np.frombuffer(stored, np.uint8).reshape(len(frames), -1).astype(np.float64)


@pytest.mark.parametrize(("num_frames", "step"), [(7, 1), (47, 1), (48, 2), (95, 2), (3600, 128)])
def test_of_a_long_video_a_part_of_the_frames_is_taken(num_frames: int, step: int) -> None:
    assert step_between(num_frames) == step
    assert num_frames // step < 2 * LEAST_FRAMES


BLACK = [np.zeros((HEIGHT_PX, WIDTH_PX, 3), np.uint8)]
ENDS: dict[str, tuple[Callable[[list[Frame]], list[Frame]], float]] = {
    "none": (lambda frames: frames, 0),
    "the last picture stays": (lambda frames: frames + 3 * frames[-1:], 3),
    "the first picture stays": (lambda frames: 2 * frames[:1] + frames, 2),
    "black at the front": (lambda frames: 2 * BLACK + frames, 2),
    "black at both ends": (lambda frames: BLACK + frames + 2 * BLACK, 3),
    "a pause in the middle": (lambda frames: frames[:4] + 3 * frames[4:5] + frames[5:], 0),
    "one picture": (lambda frames: 5 * frames[:1], 4),
}


@pytest.mark.parametrize("ends", ENDS)
def test_what_shows_nothing_new_at_the_ends_is_still(ends: str) -> None:
    make, expected_s = ENDS[ends]
    frames = make(scene())
    times_s = [float(number) for number in range(len(frames))]
    assert still_s([encode_jpeg(frame) for frame in frames], times_s) == expected_s
