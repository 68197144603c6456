"""Generated files hold what was written, with the same bytes each time; folders belong to one fingerprint."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from hapvr.demo.output import prepare_folder, write_mp4
from hapvr.errors import DataError


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


def test_prepare_folder_keeps_equal_settings_and_replaces_others(tmp_path: Path) -> None:
    """A file survives another call with the same fingerprint, not one with a different one."""
    folder = tmp_path / "made"
    prepare_folder(folder, fingerprint="a")
    (folder / "videos").mkdir()
    (folder / "videos" / "x.mp4").touch()
    (folder / "benchmark.json").touch()
    prepare_folder(folder, fingerprint="a")
    assert (folder / "videos" / "x.mp4").exists()
    prepare_folder(folder, fingerprint="b")
    assert [path.name for path in folder.iterdir()] == ["corpus.json"]
    prepare_folder(folder, fingerprint="b")


def test_prepare_folder_refuses_folders_of_others(tmp_path: Path) -> None:
    """A file in the place, foreign contents and a damaged state are errors that name the path."""
    (tmp_path / "file").touch()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "x").touch()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "corpus.json").write_text("{")
    for name, message in (("file", "something else"), ("foreign", "something else"), ("damaged", "is damaged")):
        with pytest.raises(DataError, match=f"{name}.* {message}"):
            prepare_folder(tmp_path / name, fingerprint="a")
