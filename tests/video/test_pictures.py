"""Still pictures as one frame: any size and format that people have, upright, and nothing that
fills the memory."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hapvr.errors import VideoError
from hapvr.video.sources import is_picture
from hapvr.video.stills import read_picture


def read(path: Path) -> tuple[int, ...]:
    return read_picture(path, short_side_px=64).shape


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.bmp"])
@pytest.mark.parametrize(
    ("size", "wanted"), [((640, 360), (64, 114)), ((30, 90), (192, 64)), ((64, 64), (64, 64))]
)
def test_short_sides_are_of_sampling(
    tmp_path: Path, name: str, size: tuple[int, int], wanted: tuple[int, int]
) -> None:
    Image.new("RGB", size, "red").save(tmp_path / name)
    assert is_picture(tmp_path / name)
    assert read(tmp_path / name) == (*wanted, 3)


def test_a_turned_picture_is_upright(tmp_path: Path) -> None:
    """EXIF orientation 6: the camera was turned, so the stored rows are columns of what was
    seen."""
    image = Image.new("RGB", (128, 64), "black")
    image.paste("white", (0, 0, 64, 64))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.jpg", exif=exif)
    pixels = read_picture(tmp_path / "turned.jpg", short_side_px=64)
    assert pixels.shape == (128, 64, 3)
    assert pixels[:48].mean() > 200
    assert pixels[-48:].mean() < 50


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    whole = tmp_path / "whole.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 90, 3), dtype=np.uint8)).save(
        whole
    )
    (tmp_path / "cut.png").write_bytes(whole.read_bytes()[:2000])
    (tmp_path / "text.jpg").write_text("no picture")
    Image.new("1", (9000, 9000)).save(tmp_path / "huge.png")
    frames = {"save_all": True, "append_images": [Image.new("RGB", (64, 64), "red")]}
    Image.new("RGB", (64, 64)).save(tmp_path / "moving.webp", **frames)
    Image.new("RGB", (64, 64)).save(tmp_path / "with its preview.jpg", format="MPO", **frames)
    assert read(tmp_path / "with its preview.jpg") == (64, 64, 3)
    refusals = dict.fromkeys(("text.jpg", "moving.webp"), "not_video")
    for name, reason in (refusals | {"cut.png": "decode_error", "huge.png": "too_large"}).items():
        with pytest.raises(VideoError) as refused:
            read(tmp_path / name)
        assert refused.value.reason == reason, name
        assert name in str(refused.value)
