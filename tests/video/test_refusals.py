"""Files that are no usable video: each is refused with its reason, silently."""

import io
import os

import pytest
from PIL import Image

from hapvr.errors import VideoError
from hapvr.video.decode import probe_video
from hapvr.video.sampling import sample_frames
from tests.conftest import write_sound


def sampled(path):
    return sample_frames(path, fps=1, short_side_px=None)


def written(videos, content):
    """A file with this content, beside a video that it may name."""
    videos.numbered("target.mp4")
    path = videos.folder / "written.mp4"
    path.write_bytes(content)
    return path


def picture():
    stream = io.BytesIO()
    Image.new("RGB", (64, 48)).save(stream, format="PNG")
    return stream.getvalue()


def index_emptied(path):
    """No stream is found in it, though the file begins as any MP4 does."""
    path.write_bytes(path.read_bytes().replace(b"trak", b"free"))
    return path


def pipe(folder):
    os.mkfifo(folder / "pipe.mp4")
    return folder / "pipe.mp4"


def grown(path, num_bytes):
    """A file that says that it has so many bytes, most of which were never written."""
    os.truncate(path, num_bytes)
    return path


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda videos: written(videos, picture()), "not_video"),
        (lambda videos: written(videos, b"ffconcat version 1.0\nfile target.mp4\n"), "not_video"),
        (
            lambda videos: written(videos, b"#EXTM3U\n#EXTINF:3,\ntarget.mp4\n#EXT-X-ENDLIST\n"),
            "not_video",
        ),
        (lambda videos: videos.song(), "no_video_stream"),
        (lambda videos: index_emptied(videos.numbered("index.mp4")), "not_video"),
        (
            lambda videos: videos.numbered("rare.avi", codec="magicyuv", pixel_format="gbrp"),
            "unsupported_codec",
        ),
        (lambda videos: written(videos, b"no video at all"), "not_video"),
        (lambda videos: written(videos, b""), "empty_file"),
        (lambda videos: grown(written(videos, b""), 1 << 40), "unwritten_file"),
        (lambda videos: grown(videos.numbered("head.mp4"), 1 << 40), "unwritten_file"),
        (lambda videos: pipe(videos.folder), "not_video"),
        (lambda videos: videos.folder, "not_video"),
        (lambda videos: videos.folder / "gone.mp4", "missing_file"),
        (lambda videos: videos.folder / ("x" * 300), "missing_file"),
        (lambda videos: write_sound(videos.folder / "sound.mp4"), "no_video_stream"),
    ],
)
@pytest.mark.parametrize(
    "read", [lambda path: probe_video(path), lambda path: sampled(path)], ids=["probe", "sampling"]
)
def test_probe_and_sampling_name_the_reason(videos, make, reason, read):
    """What is no usable video is refused with a code, by both entry points."""
    path = make(videos)
    with pytest.raises(VideoError) as caught:
        read(path)
    assert caught.value.reason == reason
    assert reason != "unsupported_codec" or "magicyuv" in str(caught.value)


def test_sample_frames_refuses_headers_without_frames(videos):
    """A file whose index is whole but whose pictures are zeros has no frame to show."""
    path = videos.noise(num_frames=10, container_options={"movflags": "faststart"})
    data = bytearray(path.read_bytes())
    start = data.index(b"mdat") + 4
    data[start:] = bytes(len(data) - start)
    path.write_bytes(data)
    with pytest.raises(VideoError) as caught:
        sampled(path)
    assert caught.value.reason in {"no_frames", "decode_error"}


def test_a_film_before_a_hole_that_is_read_in_time_is_sampled(videos):
    """As of a file whose place was reserved, or that holds more than its film."""
    path = videos.numbered("head.mp4")
    whole = sampled(path)
    assert sampled(grown(path, 1 << 33)).times_s == whole.times_s
