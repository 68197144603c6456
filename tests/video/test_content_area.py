"""Black bars are found in frames of real files, and dark pictures are not taken for bars."""

from pathlib import Path

import numpy as np
import pytest

from hapvr.demo.output import write_mp4
from hapvr.video.decode import sample_frames
from hapvr.video.frames import content_area, encode_jpeg
from tests.conftest import write_clip


def with_bars(source: Path, target: Path, *, bars: tuple[int, int], dim: float = 1.0) -> Path:
    """The clip with black bars of (left and right, above and below) pixels around it."""
    frames = sample_frames(source, fps=5, short_side_px=96).frames
    x, y = bars
    padded = np.pad((frames * dim).astype(np.uint8), ((0, 0), (y, y), (x, x), (0, 0)))
    write_mp4(target, padded, fps=5)
    return target


@pytest.mark.parametrize("bars", [(0, 0), (0, 24), (30, 0), (16, 20)])
def test_bars_are_found(tmp_path: Path, bars: tuple[int, int]) -> None:
    """To within a few rows, and never less than there are."""
    clip = write_clip(tmp_path / "clip.mp4", seed=0, seconds=3)
    barred = with_bars(clip, tmp_path / "barred.mp4", bars=bars)
    sample = sample_frames(barred, fps=2, short_side_px=256).frames
    wanted = [side / (side + 2 * bar) for side, bar in zip((160, 96), bars, strict=True)]
    found = content_area([encode_jpeg(frame) for frame in sample])
    for share, right in zip(found, wanted, strict=True):
        assert right - 0.05 < share <= right


def test_dark_pictures_have_no_bars(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seed=0, seconds=2)
    dark = with_bars(clip, tmp_path / "dark.mp4", bars=(0, 0), dim=0.05)
    frames = sample_frames(dark, fps=2, short_side_px=96).frames
    assert content_area([encode_jpeg(frame) for frame in frames]) == (1.0, 1.0)
