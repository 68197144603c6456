"""Which stream of a file is its film, and which of its pictures are shown."""

from pathlib import Path

import av
import numpy as np
import pytest

from hapvr.video.measure import measure_file
from hapvr.video.packets import tag_s
from hapvr.video.sampling import sample_frames
from tests.video.conftest import numbered_frame, read_numbers, write_film

FPS = 10
SMALL = (128, 96)
LARGE = (256, 192)


def write_streams(path: Path, *streams: tuple[tuple[int, int], int]) -> Path:
    """A file with several video streams. streams: width and height in pixels, and the number of
    pictures of each."""
    packets = []
    with av.open(str(path), "w") as container:
        for (width_px, height_px), num_frames in streams:
            stream = container.add_stream("libx264", rate=FPS, options={"bf": "0"})
            stream.width = width_px
            stream.height = height_px
            stream.pix_fmt = "yuv420p"
            for number in range(num_frames):
                picture = numbered_frame(number, width_px=width_px, height_px=height_px)
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                packets += stream.encode(frame)

            packets += stream.encode()

        packets.sort(key=lambda packet: packet.dts * packet.time_base)
        container.mux(packets)

    return path


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "mov", "ts"])
@pytest.mark.parametrize(
    ("streams", "size_px", "length_s"),
    [
        pytest.param([(LARGE, 10), (SMALL, 100)], SMALL, 10, id="a large trailer"),
        pytest.param([(SMALL, 100), (LARGE, 10)], SMALL, 10, id="a large menu behind it"),
        pytest.param([(SMALL, 40), (LARGE, 40)], LARGE, 4, id="two sizes"),
        pytest.param([(LARGE, 38), (SMALL, 40)], LARGE, 3.8, id="two sizes of about one length"),
    ],
)
def test_the_film_is_the_largest_of_the_long_streams(
    tmp_path: Path,
    suffix: str,
    streams: list[tuple[tuple[int, int], int]],
    size_px: tuple[int, int],
    length_s: float,
) -> None:
    path = write_streams(tmp_path / f"several.{suffix}", *streams)
    samples = sample_frames(path, fps=1, short_side_px=None)
    assert (samples.probe.width_px, samples.probe.height_px) == size_px
    assert len(samples.frames) == pytest.approx(length_s, abs=1)
    assert measure_file(path).length_s == pytest.approx(length_s, abs=0.2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("00:01:10.500000000", 70.5), ("1:00:00", 3600.0), ("", None), ("10 s", None)],
)
def test_lengths_of_tags_are_read(text: str, expected: float | None) -> None:
    assert tag_s(text) == expected


@pytest.mark.parametrize(
    ("length", "media_time"),
    [
        pytest.param(0, None, id="of no length"),
        pytest.param(0, -1, id="of nothing, and no length"),
        pytest.param(None, -1, id="of nothing"),
        pytest.param(None, 10**8, id="behind the end"),
    ],
)
def test_an_edit_list_that_would_hide_all_pictures_hides_none(
    tmp_path: Path, length: int | None, media_time: int | None
) -> None:
    """length, media_time: what is written into the list, None: as it was"""
    path = write_film(tmp_path / "clip.mp4", [number / FPS for number in range(40)])
    data = bytearray(path.read_bytes())
    place = data.index(b"elst") + 12
    if length is not None:
        data[place : place + 4] = length.to_bytes(4, "big")
    if media_time is not None:
        data[place + 4 : place + 8] = media_time.to_bytes(4, "big", signed=True)
    path.write_bytes(data)
    samples = sample_frames(path, fps=1, short_side_px=None)
    assert read_numbers(np.stack(samples.frames)) == pytest.approx([0, 10, 20, 30], abs=2)
    assert samples.missing == ""
    assert measure_file(path).length_s == pytest.approx(4, abs=0.15)
