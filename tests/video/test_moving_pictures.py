"""Pictures with several frames are films, still pictures beside a film are not it, and every suffix
of a video can be decoded."""

import av
import numpy as np
import pytest
from PIL import Image

from hapvr.errors import VideoError
from hapvr.video.decode import probe_video
from hapvr.video.moving_pictures import is_moving_picture
from hapvr.video.pool import sample_videos
from hapvr.video.sampling import Reading, sample_frames
from hapvr.video.settings import SamplingConfig
from hapvr.video.sources import scan_folder
from tests.video.conftest import numbered_frame, read_numbers

LOSSLESS = {"webp": {"lossless": True}, "avif": {"quality": 90}}


def save_numbered(path, numbers):
    """A picture with these frames, half a second each."""
    frames = [
        Image.fromarray(numbered_frame(number, width_px=128, height_px=96)) for number in numbers
    ]
    options = {"save_all": True, "append_images": frames[1:], "duration": 500, "loop": 0}
    kind = path.suffix.removeprefix(".")
    frames[0].save(path, **(options if len(frames) > 1 else {}), **LOSSLESS.get(kind, {}))
    return path


def outcome(path):
    """ "frames", or the reason why there are none."""
    try:
        frames = sample_frames(path, fps=1, short_side_px=None).frames
    except VideoError as error:
        return error.reason
    return "frames" if frames else "nothing"


@pytest.mark.parametrize("kind", ["gif", "png", "webp", "avif"])
def test_a_picture_with_several_frames_is_a_film(tmp_path, kind):
    """Each frame stays as long as it says; a loop for good is read once."""
    path = save_numbered(tmp_path / f"film.{kind}", range(12))
    samples = sample_frames(path, fps=1, short_side_px=None)
    assert read_numbers(np.stack(samples.frames)) == [0, 2, 4, 6, 8, 10]
    assert samples.times_s == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert samples.missing == ""
    assert (samples.probe.width_px, samples.probe.height_px) == (128, 96)
    config = SamplingConfig(short_side_px=96, workers=1)
    (video,) = sample_videos([("a/film", path)], config=config, pictures=True)
    assert video.reason == ""
    assert len(video.jpegs) == 6


def test_moving_pictures_of_a_folder_are_videos(tmp_path):
    """Still pictures are not, whatever they are called."""
    for kind in ("png", "webp", "avif", "gif"):
        save_numbered(tmp_path / f"film.{kind}", range(3))
    for kind in ("png", "webp", "avif"):
        save_numbered(tmp_path / f"still.{kind}", [1])
    (tmp_path / "text.webp").write_text("RIFF")
    (tmp_path / "empty.png").write_bytes(b"")
    entries = scan_folder(tmp_path, source="a")
    assert [entry.video_id for entry in entries] == [
        f"a/film.{kind}" for kind in ("avif", "gif", "png", "webp")
    ]


@pytest.mark.parametrize("kind", ["png", "webp"])
@pytest.mark.parametrize("share", [0.2, 0.6])
def test_a_damaged_moving_picture_has_a_reason_or_its_first_frames(tmp_path, kind, share):
    path = save_numbered(tmp_path / f"film.{kind}", range(12))
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    assert is_moving_picture(path)
    assert outcome(path) in ("frames", "decode_error", "no_frames", "not_video")


@pytest.mark.parametrize(
    ("name", "codec", "pixel_format"),
    [
        ("film.mkv", "ffv1", "yuv420p"),
        ("film.mxf", "jpeg2000", "yuv420p"),
        ("film.mov", "v210", "yuv422p10le"),
        ("film.mov", "cfhd", "yuv422p10le"),
        ("film.rm", "rv10", "yuv420p"),
        ("film.rm", "rv20", "yuv420p"),
    ],
)
def test_archive_codecs_are_a_setting(videos, name, codec, pixel_format):
    """Without it the reason names it; with it the film is read, in the same process."""
    path = videos.numbered(name, codec=codec, pixel_format=pixel_format, fps=25, num_frames=60)
    with pytest.raises(VideoError, match=r"sampling\.archive_codecs") as refused:
        sample_frames(path, fps=1, short_side_px=None)
    assert refused.value.reason == "unsupported_codec"
    samples = sample_frames(path, fps=1, short_side_px=None, reading=Reading(archive_codecs=True))
    assert read_numbers(np.stack(samples.frames)) == [0, 25, 50]
    if codec == "ffv1":
        config = SamplingConfig(short_side_px=96, workers=1, archive_codecs=True)
        (video,) = sample_videos([("a/film", path)], config=config)
        assert video.reason == ""
        assert len(video.jpegs) == 3


@pytest.mark.parametrize("container", ["mp4", "mkv", "mov"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_large_cover_that_is_not_marked_is_not_the_video(tmp_path, container, is_first):
    """The film is, though it is smaller."""
    path = tmp_path / f"clip.{container}"
    with av.open(str(path), "w") as file:
        film = file.add_stream("libx264", rate=10)
        film.width = 128
        film.height = 96
        film.pix_fmt = "yuv420p"
        cover = file.add_stream("mjpeg", rate=1)
        cover.width = 640
        cover.height = 480
        cover.pix_fmt = "yuvj420p"
        white = av.VideoFrame.from_ndarray(np.full((480, 640, 3), 255, np.uint8), format="rgb24")
        packets = []
        for number in range(30):
            picture = numbered_frame(number, width_px=128, height_px=96)
            packets += film.encode(av.VideoFrame.from_ndarray(picture, format="rgb24"))

        packets += film.encode()
        still = [*cover.encode(white), *cover.encode()]
        for packet in [*still, *packets] if is_first else [*packets, *still]:
            file.mux(packet)

    samples = sample_frames(path, fps=1, short_side_px=None)
    assert read_numbers(np.stack(samples.frames)) == [0, 10, 20]
    assert probe_video(path).width_px == 128
