"""Sampling real files by timestamp, whatever their rate, shape, format or damage."""

import struct
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from hapvr.errors import VideoError
from hapvr.video import probe
from hapvr.video.decode import probe_video
from hapvr.video.sampling import sample_frames
from tests.video.conftest import numbered_frame, read_numbers, write_video


def sampled(path, *, fps=1.0, short_side_px=None, **settings):
    samples = sample_frames(path, fps=fps, short_side_px=short_side_px, **settings)
    return SimpleNamespace(
        frames=np.stack(samples.frames),
        times_s=samples.times_s,
        missing=samples.missing,
        note=samples.clock_note,
    )


@pytest.mark.parametrize(
    ("fps", "expected"), [(1.0, [0, 10, 20]), (2.5, [0, 4, 8, 12, 16, 20, 24, 28]), (0.1, [0])]
)
def test_sample_frames_takes_the_frame_at_each_multiple_of_the_period(videos, fps, expected):
    """Frame k is the one on display at k / fps."""
    result = sampled(videos.numbered(fps=10, num_frames=30), fps=fps)
    assert read_numbers(result.frames) == expected
    assert result.missing == ""


def test_sample_frames_of_a_variable_rate_follows_the_timestamps(videos):
    """A frame stays on display until the next one's timestamp, however long that is."""
    times_s = [0.0, 0.1, 0.2, 2.5, 2.6, 2.7, 5.0, 5.05]
    path = videos.numbered("clip.mkv", num_frames=8, times_s=times_s, codec_options={"bf": "2"})
    expected = [max(index for index, time in enumerate(times_s) if time <= k) for k in range(6)]
    assert read_numbers(sampled(path).frames) == expected == [0, 2, 2, 5, 5, 6]


def test_sample_frames_of_29_97_fps_is_not_misled_by_rounding(videos):
    """Frame 30 of an NTSC clip starts at 1.001 s, so frame 29 is on display at 1 s."""
    path = videos.numbered(num_frames=65, fps=Fraction(30000, 1001))
    assert read_numbers(sampled(path).frames) == [0, 29, 59]


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
@pytest.mark.parametrize("rotation_deg", [90, 180, 270])
def test_a_turned_recording_equals_its_upright_copy(videos, codec, rotation_deg):
    """A camera held on its side stores turned frames with a flag; they are sampled as an upright
    copy is."""
    numbers = [numbered_frame(number, width_px=128, height_px=96) for number in range(20)]
    upright = write_video(videos.folder / "upright.mp4", numbers, codec=codec)
    turned = [np.ascontiguousarray(np.rot90(frame, k=-rotation_deg // 90)) for frame in numbers]
    path = write_video(videos.folder / "turned.mp4", turned, rotation_deg=rotation_deg, codec=codec)
    expected = sampled(upright, fps=5, short_side_px=64)
    actual = sampled(path, fps=5, short_side_px=64)
    assert actual.frames.shape == expected.frames.shape
    assert np.abs(actual.frames.astype(int) - expected.frames).mean() < 4
    assert (probe_video(path).width_px, probe_video(path).height_px) == (128, 96)


@pytest.mark.parametrize(
    ("matrix", "shown"),
    [
        (
            (0, 0, 0, 0),
            lambda picture: picture,
        ),  # FFmpeg says NaN of its angle, and PyAV some integer
        ((-1, 0, 0, 1), lambda picture: picture[:, ::-1]),
        ((1, 0, 0, -1), lambda picture: picture[::-1]),
        ((0, -1, -1, 0), lambda picture: picture[::-1, ::-1].transpose(1, 0, 2)),
    ],
)
def test_frames_are_shown_as_a_matrix_says(videos, matrix, shown):
    """(a, b, c, d): (x, y) is shown at (ax + cy, bx + dy)."""
    path = videos.corner()
    (before,) = sampled(path).frames
    data = bytearray(path.read_bytes())
    place = data.index(b"tkhd") + 44
    a, b, c, d = np.array(matrix) * 2**16
    data[place : place + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 2**30 * any(matrix))
    path.write_bytes(data)
    assert np.abs(sampled(path).frames[0].astype(int) - shown(before)).mean() < 1


def test_sample_frames_have_square_pixels(videos):
    """A clip stored with pixels twice as wide as high is shown twice as wide."""
    path = videos.corner(pixel_aspect=Fraction(2, 1))
    assert sampled(path).frames.shape == (1, 96, 256, 3)
    assert sampled(path, short_side_px=48).frames.shape == (1, 48, 128, 3)


@pytest.mark.parametrize(
    ("name", "codec", "pixel_format"),
    [
        ("clip.mp4", "libx265", "yuv420p10le"),
        ("clip.avi", "mpeg4", "yuv420p"),
        ("clip.wmv", "libx264", "yuv420p"),
        ("clip.mpg", "libx264", "yuv420p"),
        ("clip.mov", "png", "gray"),
        ("clip.webm", "libvpx-vp9", "yuv420p"),
        ("clip.ts", "libx264", "yuv420p"),
        ("clip.h264", "libx264", "yuv420p"),
    ],
)
def test_sample_frames_reads_formats_alike(videos, name, codec, pixel_format):
    """Containers, codecs, bit depths and grey make no difference to which frames are taken."""
    options = {"x265-params": "log-level=none"} if codec == "libx265" else {}
    path = videos.numbered(
        name, num_frames=50, fps=25, codec=codec, pixel_format=pixel_format, codec_options=options
    )
    assert read_numbers(sampled(path, fps=2).frames) == pytest.approx([0, 13, 25, 38], abs=1)


def test_sample_frames_of_streams_that_change_size_have_the_first_size(videos):
    """Two streams of different size in one file become frames of one size, none of them
    stretched."""
    first = videos.corner("first.ts").read_bytes()
    square = videos.numbered("second.ts", num_frames=30, width_px=96, height_px=96).read_bytes()
    path = videos.folder / "both.ts"
    path.write_bytes(first + square)
    result = sampled(path, fps=5, short_side_px=48)
    assert result.frames.shape == (20, 48, 64, 3)


def test_sample_frames_goes_on_after_timestamps_that_run_back(videos):
    """A file made of two recordings whose clocks both start at zero is sampled through to its
    end."""
    recording = videos.numbered("one.ts", num_frames=30).read_bytes()
    (videos.folder / "two.ts").write_bytes(recording + recording)
    assert read_numbers(sampled(videos.folder / "two.ts").frames) == [0, 10, 20, 0, 10, 20]


@pytest.mark.parametrize("part", [0.35, 0.6, 0.9])
def test_sample_frames_of_a_cut_file_gives_what_is_there_and_says_so(videos, part):
    """A download that broke off is used as far as it goes."""
    path = videos.noise(num_frames=80, container_options={"movflags": "faststart"})
    whole = sampled(path, fps=2)
    data = path.read_bytes()
    path.write_bytes(data[: int(part * len(data))])
    result = sampled(path, fps=2)
    count = len(result.frames)
    assert count == pytest.approx(part * len(whole.frames), abs=1.5)
    assert (result.frames[: count - 1] == whole.frames[: count - 1]).all()
    assert "of the 8.0 s that the file declares" in result.missing


def test_sample_frames_stops_at_the_limits(videos, monkeypatch):
    """max_frames ends sampling; frames above MAX_PIXELS are refused before they are decoded."""
    path = videos.numbered(num_frames=30)
    assert read_numbers((part := sampled(path, max_frames=2)).frames) == [0, 10]
    assert part.missing == "the first 2 s were read; see sampling.max_frames"
    assert sampled(path, max_frames=3).missing == ""
    monkeypatch.setattr(probe, "MAX_PIXELS", 1000)
    with pytest.raises(VideoError, match="128 x 96") as caught:
        sampled(path)
    assert caught.value.reason == "too_large"


@pytest.mark.parametrize("name", ["quo'te\" 動画.mp4", "-a%d:b?c# $(x);&.mp4"])
def test_sample_frames_opens_any_name(videos, name):
    """Names are never read as patterns, options, protocols or shell words."""
    path = videos.folder / name
    videos.numbered("plain.mp4").rename(path)
    assert len(sampled(path).frames) == 3


@pytest.mark.parametrize(
    ("name", "codec"), [("a.mp4", "libx264"), ("a.webm", "libvpx-vp9"), ("old.webm", "libvpx")]
)
def test_frames_equal_those_of_another_reader(videos, name, codec):
    """decord finds the frames by counting them, and shows the same pixels, also behind a cut."""
    decord = pytest.importorskip("decord")
    small = np.random.default_rng(3).integers(0, 255, (6, 30, 3), dtype=np.uint8)
    wide = np.kron(small, np.ones((16, 16, 1), np.uint8))
    moving = [np.ascontiguousarray(wide[:, 5 * k : 5 * k + 128]) for k in range(30)]
    path = write_video(videos.folder / name, [*moving, *reversed(moving)], codec=codec)
    ours = sampled(path, fps=2).frames
    np.testing.assert_array_equal(
        ours, decord.VideoReader(str(path)).get_batch(range(0, 60, 5)).asnumpy()
    )
