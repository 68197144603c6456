"""Samples of key frames: what they show and when, and what is sampled thoroughly instead."""

from collections.abc import Callable, Sequence
from pathlib import Path

import av
import numpy as np
import pytest

from hapvr.errors import VideoError
from hapvr.video.sampling import Samples, sample_frames
from hapvr.video.settings import SamplingMode
from hapvr.video.sparse import MAX_GAP_S, MIN_GAP_S
from tests.conftest import write_sound
from tests.video.conftest import VideoWriter, read_numbers, write_film

Make = Callable[[VideoWriter], Path]
FIFTHS = [number / 5 for number in range(240)]
"""Times of 48 seconds."""


def sampled(path: Path, mode: SamplingMode) -> Samples:
    return sample_frames(path, fps=1, short_side_px=None, mode=mode)


def numbered(name: str = "a.mp4", **settings: object) -> Make:
    """A clip of 48 seconds whose frames show the fifth of a second that they begin at."""
    return lambda videos: videos.numbered(name, num_frames=240, fps=5, **settings)  # type: ignore[arg-type]


def with_keys(seconds: int, more: str = "", name: str = "a.mp4") -> Make:
    """A key frame in each so many seconds."""
    params = f"keyint={5 * seconds}:min-keyint={5 * seconds}:scenecut=0:{more}"
    return numbered(name, codec_options={"x264-params": params.rstrip(":")})


def film(times_s: Sequence[float], group: int = 10) -> Make:
    return lambda videos: write_film(videos.folder / "a.mp4", times_s, group=group)


def damaged(videos: VideoWriter) -> Path:
    """Zeros in the middle of its packets."""
    path = videos.noise(num_frames=240, fps=5, codec_options={"g": "10"})
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 4000] = bytes(4000)
    path.write_bytes(data)
    return path


def cut(videos: VideoWriter) -> Path:
    """The first half of a file, whose head names the end."""
    path = with_keys(2, name="a.mkv")(videos)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return path


def without_key_frames(videos: VideoWriter) -> Path:
    """The packets of a stream but for its key frames."""
    source_path = with_keys(100, more="bframes=0")(videos)
    path = videos.folder / "b.mkv"
    with av.open(str(source_path)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size and not packet.is_keyframe:
                packet.stream = stream
                target.mux(packet)

    return path


def without_index(videos: VideoWriter) -> Path:
    """A stream that has neither an index nor times."""
    return with_keys(2, name="a.h264")(videos)


def sound(videos: VideoWriter) -> Path:
    return write_sound(videos.folder / "a.mp4")


def jumping(videos: VideoWriter) -> Path:
    """The clock moves on by an hour where pictures go on, and comes back."""
    times_s = [*FIFTHS[:60], *(3600 + time_s for time_s in FIFTHS[60:120])]
    return write_film(videos.folder / "a.mp4", times_s, group=10)


GAPS = [*FIFTHS[:100], *(time_s + 25.0 for time_s in FIFTHS[100:])]
"""Times in which a picture stays for 25 seconds."""

CASES: dict[str, tuple[Make, SamplingMode]] = {
    "two seconds": (with_keys(2), "key_frames"),
    "four seconds": (with_keys(4), "key_frames"),
    "one key frame": (with_keys(100), "key_frames"),
    "open groups": (with_keys(4, "open-gop=1"), "key_frames"),
    "key frames that need others": (with_keys(4, "intra-refresh=1"), "thorough"),
    "no B-frames": (with_keys(4, "bframes=0"), "key_frames"),
    "transport stream": (with_keys(4, name="a.ts"), "key_frames"),
    "without times": (without_index, "thorough"),
    "all are key frames": (with_keys(1, "keyint=1"), "key_frames"),
    "motion JPEG": (numbered(codec="mjpeg", pixel_format="yuvj420p"), "key_frames"),
    "VP9": (numbered("a.webm", codec="libvpx-vp9", codec_options={"g": "20"}), "key_frames"),
    "MPEG-2": (numbered("a.mpg", codec="mpeg2video"), "key_frames"),
    "a picture that stays": (film(GAPS), "key_frames"),
    "short": (film(FIFTHS[:30]), "thorough"),
    "GIF": (numbered("a.gif", codec="gif", pixel_format="rgb8"), "thorough"),
    "cut": (cut, "key_frames"),
    "jumping clock": (jumping, "thorough"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_file_is_sampled_in_the_way_that_suits_it(videos: VideoWriter, case: str) -> None:
    """And what is missing of it is said as a thorough sample says it."""
    make, expected = CASES[case]
    path = make(videos)
    thorough = sampled(path, "thorough")
    samples = sampled(path, "key_frames")
    assert samples.mode == expected
    assert bool(samples.missing) == bool(thorough.missing)
    assert samples.times_s == sorted(set(samples.times_s))
    if samples.mode == "thorough":
        assert samples.times_s == thorough.times_s
    if samples.mode == "key_frames":
        assert max(np.diff(samples.times_s)) <= MAX_GAP_S + 0.5
        assert len(samples.frames) <= len(thorough.frames)


def test_damage_between_key_frames_is_seen_by_decoding_more(videos: VideoWriter) -> None:
    path = damaged(videos)
    samples = sampled(path, "key_frames")
    assert (samples.mode, samples.missing) == ("key_frames", "")
    assert "damaged" in sampled(path, "thorough").missing


@pytest.mark.parametrize("case", ["two seconds", "four seconds", "one key frame", "open groups"])
def test_a_frame_is_shown_at_its_time(videos: VideoWriter, case: str) -> None:
    """To the very frame."""
    samples = sampled(CASES[case][0](videos), "key_frames")
    numbers = read_numbers(np.stack(samples.frames))
    assert samples.times_s == pytest.approx([number / 5 for number in numbers])


def test_key_frames_that_follow_soon_are_left_out(videos: VideoWriter) -> None:
    times_s = sampled(with_keys(2)(videos), "key_frames").times_s
    assert min(np.diff(times_s)) >= MIN_GAP_S


def test_one_frame_a_second_is_kept_of_a_stream_of_key_frames(videos: VideoWriter) -> None:
    path = numbered(codec="mjpeg", pixel_format="yuvj420p")(videos)
    assert sampled(path, "key_frames").times_s == pytest.approx(list(range(48)))


@pytest.mark.parametrize("make", [sound, without_key_frames], ids=["sound", "no key frame"])
def test_a_file_without_pictures_is_refused_as_before(videos: VideoWriter, make: Make) -> None:
    path = make(videos)
    with pytest.raises(VideoError) as thorough:
        sampled(path, "thorough")
    with pytest.raises(VideoError) as refused:
        sampled(path, "key_frames")
    assert refused.value.reason == thorough.value.reason


def test_the_first_frames_are_read_alone(videos: VideoWriter) -> None:
    path = with_keys(4)(videos)
    samples = sample_frames(path, fps=1, short_side_px=None, mode="key_frames", max_frames=4)
    assert len(samples.frames) == 4
    assert samples.missing.endswith("see sampling.max_frames")
