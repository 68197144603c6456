"""Files hold what was written, and the same bytes each time."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from hapvr.corpus.encode import write_mp4
from hapvr.errors import ArgumentError


def gradient(*, height_px: int = 48, width_px: int = 64) -> np.ndarray:
    """Frames [6, height_px, width_px, 3] that brighten."""
    ramp = np.linspace(0, 120, width_px, dtype=np.uint8)
    return np.stack([np.broadcast_to((ramp + 20 * step)[None, :, None], (height_px, width_px, 3)) for step in range(6)])


def test_write_mp4_keeps_pictures_and_times(tmp_path: Path) -> None:
    """Decoded frames are close to the written ones and come at the written rate, in H.264."""
    frames = gradient()
    write_mp4(tmp_path / "a.mp4", frames, fps=12.0)
    with av.open(str(tmp_path / "a.mp4")) as container:
        assert container.streams.video[0].codec_context.name == "h264"
        decoded = list(container.decode(video=0))
    assert [round(frame.time * 12) for frame in decoded] == list(range(6))
    pixels = np.stack([frame.to_ndarray(format="rgb24") for frame in decoded])
    assert np.abs(pixels.astype(int) - frames).mean() < 4


def test_write_mp4_repeats_its_bytes(tmp_path: Path) -> None:
    """Equal frames give equal files and leave nothing else behind."""
    for name in ("a.mp4", "b.mp4"):
        write_mp4(tmp_path / name, gradient(), fps=12.0)
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(("height_px", "width_px", "stored"), [(49, 63, (50, 64)), (5, 40, (16, 40)), (1, 1, (16, 16))])
def test_write_mp4_pads_odd_and_tiny_frames(
    tmp_path: Path, height_px: int, width_px: int, stored: tuple[int, int]
) -> None:
    """Sides become even and at least 16 pixels by repeating the last row and column."""
    write_mp4(tmp_path / "a.mp4", gradient(height_px=height_px, width_px=width_px), fps=29.97)
    with av.open(str(tmp_path / "a.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.height, stream.width) == stored


@pytest.mark.parametrize(
    "frames", [np.zeros((0, 16, 16, 3), np.uint8), np.zeros((2, 16, 16, 3)), np.zeros((2, 16, 16), np.uint8)]
)
def test_write_mp4_refuses_what_is_no_video(tmp_path: Path, frames: np.ndarray) -> None:
    """No frames, other types and other shapes are named in the error, and no file is made."""
    with pytest.raises(ArgumentError, match="wanted uint8 frames"):
        write_mp4(tmp_path / "a.mp4", frames, fps=12.0)
    assert not list(tmp_path.iterdir())
