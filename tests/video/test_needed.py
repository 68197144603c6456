"""Decoding what a thorough sample needs, and no more: its frames are those of decoding every
picture."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from hapvr.video.needed import sample_needed
from hapvr.video.sampler import Wanted
from hapvr.video.sampling import Reading, Samples, sample_every_picture, sample_frames
from hapvr.video.stream_reader import UnsuitedError
from tests.video.conftest import write_film, write_video

Make = Callable[[Path], Path]
NUM_FRAMES = 75


def moving(*, width_px: int = 128, height_px: int = 96) -> list[NDArray[np.uint8]]:
    """Pictures in which something moves and something stays."""
    rng = np.random.default_rng(3)
    small = rng.integers(0, 255, (8, 60, 3), dtype=np.uint8)
    wide = np.kron(small, np.ones((16, 16, 1), np.uint8))
    frames = []
    for number in range(NUM_FRAMES):
        frame = wide[:height_px, 5 * number : 5 * number + width_px].copy()
        frame[: height_px // 4] = 90
        frames.append(frame)

    return frames


def clip(name: str, params: str = "", **settings: object) -> Make:
    """params: of x264."""
    options = {"x264-params": f"keyint=20:min-keyint=20:scenecut=0:{params}".rstrip(":")}
    size = {side: settings.pop(side) for side in ("width_px", "height_px") if side in settings}
    chosen: dict[str, object] = {"codec_options": options, "fps": 10} | settings
    return lambda folder: write_video(folder / name, moving(**size), **chosen)  # type: ignore[arg-type]


def coded(name: str, codec: str, pixel_format: str = "yuv420p", **options: str) -> Make:
    return clip(name, codec=codec, pixel_format=pixel_format, codec_options=options)


def damaged(part: float) -> Make:
    """Zeros in the packets of a clip, at a part of its bytes."""

    def make(folder: Path) -> Path:
        path = clip("a.mp4")(folder)
        data = bytearray(path.read_bytes())
        place = round(part * len(data))
        data[place : place + 300] = bytes(300)
        path.write_bytes(data)
        return path

    return make


def begun_late(folder: Path) -> Path:
    """A clip without its first packets, whose time runs from below zero; an edit list hides the
    pictures that are shown before zero."""
    source_path = clip("a.mp4")(folder)
    path = folder / "b.mp4"
    with av.open(str(source_path)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size and packet.pts is not None and packet.dts is not None:
                shift = round(0.7 / packet.time_base)
                packet.pts -= shift
                packet.dts -= shift
                packet.stream = stream
                target.mux(packet)

    return path


VARIABLE = [number / 10 + (number % 7) / 100 + (number > 30) for number in range(NUM_FRAMES)]
X265 = "log-level=none:keyint=20:min-keyint=20:scenecut=0"

CASES: dict[str, tuple[Make, bool]] = {
    "B-frames": (clip("a.mp4"), True),
    "references among B-frames": (clip("a.mkv", "bframes=7:b-pyramid=normal"), True),
    "no B-frames": (clip("a.mp4", "bframes=0"), True),
    "open groups": (clip("a.mp4", "open-gop=1"), True),
    "one key frame": (clip("a.mp4", codec_options={"g": "1000"}), True),
    "transport stream": (clip("a.ts"), True),
    "Flash": (clip("a.flv"), True),
    "variable rate": (clip("a.mkv", times_s=VARIABLE), True),
    "a rate of NTSC": (clip("a.mp4", fps=Fraction(30000, 1001)), True),
    "odd size": (clip("a.mp4", pixel_format="yuv444p", width_px=127, height_px=95), True),
    "full range": (clip("a.mp4", pixel_format="yuvj420p"), True),
    "colours of HD": (clip("a.mp4", "colorprim=bt709:transfer=bt709:colormatrix=bt709"), True),
    "colours of television": (clip("a.mp4", "colormatrix=smpte170m"), True),
    "interlaced": (clip("a.mp4", "interlaced=1"), True),
    "turned": (clip("a.mp4", rotation_deg=90), True),
    "wide pixels": (clip("a.mp4", pixel_aspect=Fraction(4, 3)), True),
    "begins below zero": (begun_late, True),
    "HDR": (
        coded(
            "a.mp4",
            "libx265",
            "yuv420p10le",
            **{"x265-params": f"{X265}:colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc"},
        ),
        True,
    ),
    "temporal layers": (
        coded("a.mp4", "libx265", **{"x265-params": f"{X265}:temporal-layers=3:b-pyramid=1"}),
        True,
    ),
    "MPEG-4": (coded("a.mp4", "mpeg4", bf="2", g="20"), True),
    "MPEG-2": (coded("a.mkv", "mpeg2video", bf="2", g="20"), True),
    "VP8": (coded("a.webm", "libvpx", g="20"), True),
    "VP9": (coded("a.webm", "libvpx-vp9", g="20"), True),
    "motion JPEG": (coded("a.mov", "mjpeg", "yuvj420p"), True),
    "ProRes": (coded("a.mov", "prores_ks", "yuv422p10le"), True),
    "damage where it is not needed": (damaged(0.5), False),
    "refreshed within pictures": (clip("a.mp4", "intra-refresh=1"), False),
    "AVI with B-frames": (coded("a.avi", "mpeg4", bf="2"), True),
    "no times": (clip("a.h264"), False),
    "GIF": (coded("a.gif", "gif", "rgb8"), False),
    "a jump of the clock": (
        lambda folder: write_film(folder / "a.mp4", [0.0, 0.5, 1.0, 1.5, 900.0, 900.5, 2.0, 2.5]),
        False,
    ),
}
"""What is made, and whether the needed pictures alone are decoded for one frame a second."""


def needed(path: Path, wanted: Wanted) -> Samples | None:
    """None for a file that is left to decoding every picture."""
    try:
        sample = sample_needed(
            path, wanted=wanted, threads=1, archive_codecs=False, progress=lambda seconds: None
        )
    except UnsuitedError:
        return None

    return Samples(*sample, clock_note="")


def assert_equal(found: Samples, expected: Samples) -> None:
    assert found._replace(frames=[]) == expected._replace(frames=[])
    assert len(found.frames) == len(expected.frames)
    for frame, of_every in zip(found.frames, expected.frames, strict=True):
        np.testing.assert_array_equal(frame, of_every)


@pytest.mark.parametrize("case", CASES)
def test_frames_are_those_of_decoding_every_picture(tmp_path: Path, case: str) -> None:
    """Bit for bit, with times, and what is said of the file."""
    make, is_suited = CASES[case]
    path = make(tmp_path)
    for fps in (0.4, 1.0, 9.0):
        wanted = Wanted(fps, None, keep=np.copy)
        expected = sample_every_picture(path, wanted, Reading())
        assert_equal(sample_frames(path, fps=fps, short_side_px=None), expected)
        sample = needed(path, wanted)
        if fps == 1.0:
            assert (sample is not None) == is_suited
        if sample is not None:
            assert_equal(sample, expected)


@pytest.mark.parametrize("case", ["B-frames", "open groups", "temporal layers", "VP9"])
def test_threads_change_nothing(tmp_path: Path, case: str) -> None:
    path = CASES[case][0](tmp_path)
    expected = sample_every_picture(path, Wanted(1.0, None, keep=np.copy), Reading())
    actual = sample_frames(path, fps=1.0, short_side_px=None, reading=Reading(threads=3))
    assert_equal(actual, expected)


@pytest.mark.parametrize("most", [1, 2, 7])
def test_the_first_frames_alone_are_the_same(tmp_path: Path, most: int) -> None:
    """Also what is said of the rest."""
    path = clip("a.mp4")(tmp_path)
    wanted = Wanted(1.0, None, np.copy, max_frames=most)
    sample = needed(path, wanted)
    assert sample is not None
    assert_equal(sample, sample_every_picture(path, wanted, Reading()))


@pytest.mark.parametrize(
    ("name", "codec", "most"), [("a.mp4", "libx264", 45), ("a.mov", "mjpeg", 9)]
)
def test_what_no_sample_needs_is_not_decoded(
    tmp_path: Path, name: str, codec: str, most: int
) -> None:
    """Of 75 pictures: of a film with a key frame in two seconds, and of key frames."""
    pixel_format = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    path = clip(name, codec=codec, pixel_format=pixel_format)(tmp_path)
    times_s: list[float] = []
    sample_frames(path, fps=1.0, short_side_px=None, reading=Reading(progress=times_s.append))
    assert len(times_s) <= most


DAMAGED: dict[str, tuple[Make, str]] = {
    "none": (clip("a.mp4"), ""),
    "in the middle": (damaged(0.55), "damaged, the first at 4."),
    "at the beginning, as of a recording": (damaged(0.08), ""),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_pictures_that_are_damaged_are_said_to_be_missing(tmp_path: Path, case: str) -> None:
    make, expected = DAMAGED[case]
    samples = sample_frames(make(tmp_path), fps=10, short_side_px=None)
    assert expected in samples.missing
    assert bool(samples.missing) == bool(expected)
