"""Sizes and orientation of displayed frames; black bars are found, and dark pictures are not taken
for bars."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hapvr.demo.corpus import write_mp4
from hapvr.video.content import film_area
from hapvr.video.frames import (
    MAX_ASPECT,
    display_frame,
    display_size,
    encode_jpeg,
)
from hapvr.video.sampling import sample_frames
from tests.conftest import write_clip


@pytest.mark.parametrize(
    ("size", "aspect", "rotation", "short", "expected"),
    [
        ((1920, 1080), 1.0, 0, 256, (455, 256)),
        ((1920, 1080), 1.0, 90, 256, (256, 455)),
        ((1920, 1080), 1.0, -90, None, (1080, 1920)),
        ((720, 576), 16 / 15, 0, None, (768, 576)),
        ((720, 576), 16 / 15, 90, None, (576, 768)),
        ((100, 100), 1000.0, 0, None, (100, 100)),
        ((1, 1), 1.0, 0, 256, (256, 256)),
        ((4000, 2), 1.0, 0, 256, (2048, 256)),
    ],
)
def test_display_size_of_known_cases(size, aspect, rotation, short, expected):
    """Rotation swaps the sides, pixel aspect widens, strips are squeezed and absurd aspects are not
    believed."""
    got = display_size(*size, pixel_aspect=aspect, rotation_deg=rotation, short_side_px=short)
    assert got == expected


@given(
    width=st.integers(1, 9000),
    height=st.integers(1, 9000),
    aspect=st.floats(0.01, 100),
    rotation=st.sampled_from([-180, -90, 0, 90, 180, 270]),
    short=st.integers(32, 512),
)
def test_display_size_has_the_short_side_and_a_bounded_long_one(
    width, height, aspect, rotation, short
):
    """Whatever is stored, the short side is the one asked for and the long one is bounded."""
    size = display_size(
        width, height, pixel_aspect=aspect, rotation_deg=rotation, short_side_px=short
    )
    assert min(size) == short
    assert max(size) <= MAX_ASPECT * short


def test_display_frame_of_another_shape_is_cropped_not_stretched():
    """A wide frame in a square picture loses its sides; its centre keeps its proportions."""
    frame = np.zeros((64, 128, 3), np.uint8)
    frame[16:48, 48:80] = 255
    square = display_frame(
        frame, pixel_aspect=1, rotation_deg=0, short_side_px=64, size_px=(64, 64)
    )
    assert square.shape == (64, 64, 3)
    assert (square[:, :, 0] > 128).sum() == 32 * 32


def with_bars(source: Path, target: Path, *, bars: tuple[int, int], dim: float = 1.0) -> Path:
    """The clip with black bars of (left and right, above and below) pixels around it."""
    frames = np.stack(sample_frames(source, fps=5, short_side_px=96)[1])
    x, y = bars
    padded = np.pad((frames * dim).astype(np.uint8), ((0, 0), (y, y), (x, x), (0, 0)))
    write_mp4(target, padded, fps=5)
    return target


@pytest.mark.parametrize("bars", [(0, 0), (0, 24), (30, 0), (16, 20)])
def test_bars_are_found(tmp_path: Path, bars: tuple[int, int]) -> None:
    """To within a few rows, and never less than there are."""
    clip = write_clip(tmp_path / "clip.mp4", seed=0, seconds=3)
    barred = with_bars(clip, tmp_path / "barred.mp4", bars=bars)
    sample = np.stack(sample_frames(barred, fps=2, short_side_px=256)[1])
    wanted = [side / (side + 2 * bar) for side, bar in zip((160, 96), bars, strict=True)]
    shares = film_area([encode_jpeg(frame) for frame in sample])
    for share, right in zip(shares, wanted, strict=True):
        assert right - 0.05 < share <= right


def test_dark_pictures_have_no_bars(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seed=0, seconds=2)
    dark = with_bars(clip, tmp_path / "dark.mp4", bars=(0, 0), dim=0.05)
    frames = np.stack(sample_frames(dark, fps=2, short_side_px=96)[1])
    assert film_area([encode_jpeg(frame) for frame in frames]) == (1.0, 1.0)
