"""When sampled frames are shown: the file's own clock, from the file's start, as players count; and
how long the last picture stays."""

import numpy as np
import pytest
from PIL import Image

from hapvr.video.picture_clock import LONG_STEP_S, PictureClock, jumps_said
from hapvr.video.pictures import PAUSE_S
from hapvr.video.sampling import sample_frames
from tests.video.conftest import read_numbers, write_film

TENTHS = [number / 10 for number in range(40)]
GAP_S = 610.0
CODECS = {"avi": "mpeg4", "wmv": "mpeg4", "webm": "libvpx"}


def film(folder, name, times_s, **settings):
    """Pictures that show 0, 1, 2 ... at these times, in a file of this name."""
    codec = CODECS.get(name.rpartition(".")[2], "libx264")
    return write_film(folder / name, times_s, codec=codec, **settings)


def sampled(path, **settings):
    return sample_frames(path, fps=1, short_side_px=None, **settings)


def shown(found):
    """Second -> the number of the frame that is sampled there."""
    numbers = read_numbers(np.stack(found.frames))
    return {round(time_s): number for time_s, number in zip(found.times_s, numbers, strict=True)}


@pytest.mark.parametrize("container", ["mp4", "mkv", "mov", "ts", "avi", "flv"])
@pytest.mark.parametrize(
    "sound_s", [[], [(0, 4), (GAP_S + 4, GAP_S + 8)], [(0, GAP_S + 8)]], ids=str
)
def test_a_gap_between_pictures_is_as_long_as_the_file_says(tmp_path, container, sound_s):
    """A camera that records what moves pauses for ten minutes: what follows is at 10:14. The
    picture before the gap is sampled for as long as sound runs on beside it, else for a while."""
    times_s = [*TENTHS, *(4 + GAP_S + time_s for time_s in TENTHS)]
    samples = sampled(film(tmp_path, f"clip.{container}", times_s, sound_s=sound_s))
    seconds = shown(samples)
    behind_gap = {second: seconds[second] for second in (614, 615, 616, 617) if second in seconds}
    expected = {614: 40, 615: 50, 616: 60, 617: 70}
    assert {second: expected[second] for second in behind_gap} == pytest.approx(behind_gap, abs=2)
    assert len(behind_gap) >= 3
    stays_s = LONG_STEP_S if sound_s == [(0, GAP_S + 8)] else PAUSE_S
    last_s = max(second for second, number in seconds.items() if number <= 39)
    assert last_s == pytest.approx(3 + stays_s, abs=1.5)
    assert samples.missing == ""
    assert samples.clock_note == ""


def test_many_pauses_do_not_use_up_the_frames(tmp_path):
    """Of a night with forty pauses of half an hour, the last second is found."""
    times_s = [1800 * pause + time_s for pause in range(41) for time_s in (0.0, 0.5)]
    samples = sampled(film(tmp_path, "night.mp4", times_s), max_frames=3600)
    assert shown(samples)[40 * 1800] == 80
    assert samples.missing == ""


def test_a_broken_clock_is_counted_on_and_said(tmp_path):
    """Sound that runs on beside pictures whose clock jumps shows that it is broken, as do a step
    of more than a day and a clock that starts again."""
    first = film(tmp_path, "1.ts", TENTHS, sound_s=[(0, 4)]).read_bytes()
    later_s = [904 + time_s for time_s in TENTHS]
    second = film(tmp_path, "2.ts", later_s, sound_s=[(4, 8)]).read_bytes()
    (tmp_path / "jumps.ts").write_bytes(first + second)
    (tmp_path / "again.ts").write_bytes(first + first)
    days_s = [time_s + 100_000 * (time_s >= 2) for time_s in TENTHS]
    film(tmp_path, "days.mkv", days_s)
    for name, numbers, jump in (
        ("jumps.ts", [0, 10, 20, 30, 0, 10, 20, 30], "from 4.0 s to 904.0 s"),
        ("again.ts", [0, 10, 20, 30, 0, 10, 20, 30], "from 4.0 s to 0.1 s"),
        ("days.mkv", [0, 10, 20, 30], "from 1.9 s to 100002.0 s"),
    ):
        samples = sampled(tmp_path / name)
        assert list(shown(samples)) == list(range(len(numbers))), name
        assert read_numbers(np.stack(samples.frames)) == pytest.approx(numbers, abs=1), name
        assert jump in samples.clock_note, name
        assert samples.missing == "", name


@pytest.mark.parametrize(
    ("stamps_s", "times_s", "num_jumps"),
    [
        ([5.0, 6.0, 7.0], [1.0, 2.0, 3.0], 0),
        ([None, None, 6.0, 7.0], [0.0, 0.5, 1.0, 2.0], 0),
        ([4.0, None, 5.0], [0.0, 0.5, 1.0], 0),
        ([4.0, 5.0, 4.9, 5.9], [0.0, 1.0, 1.5, 2.5], 0),
        ([4.0, 5.0, 1.0, 2.0], [0.0, 1.0, 1.5, 2.5], 1),
        ([4.0, 5.0, 1605.0, 1606.0], [0.0, 1.0, 1601.0, 1602.0], 0),
        ([4.0, 5.0, 9005.0, 6.0], [0.0, 1.0, 1.5, 2.0], 2),
        ([3.0, 4.0], [0.0, 1.0], 0),
        ([9004.0, 9005.0], [0.0, 1.0], 1),
        ([1004.0, 1005.0], [1000.0, 1001.0], 0),
    ],
)
def test_times_follow_the_clock_unless_it_is_broken(stamps_s, times_s, num_jumps):
    """Timestamps of a file that starts at 4 s, and the times of its pictures."""
    clock = PictureClock(
        start_s=4.0, interval_s=0.5, is_broken=lambda before_s, after_s: after_s > 9000
    )
    assert [clock.time_of(stamp_s, stamp_s) for stamp_s in stamps_s] == times_s
    assert len(clock.jumps) == num_jumps
    assert bool(jumps_said(clock.jumps)) == bool(num_jumps)


def test_the_clock_of_decoding_counts_where_that_of_display_runs_back():
    """Some writers store the order of decoding as times of display."""
    clock = PictureClock(start_s=0.0, interval_s=0.5, is_broken=lambda before_s, after_s: False)
    stamps_s = [(0.0, 0.0), (3.0, 1.0), (1.0, 2.0), (2.0, 3.0), (6.0, 4.0), (4.0, 5.0)]
    assert [clock.time_of(*both) for both in stamps_s][-1] == 5.0


@pytest.mark.parametrize("container", ["mp4", "mkv", "ts", "flv"])
@pytest.mark.parametrize("late_s", [4, 700])
def test_times_count_from_the_start_of_the_file(tmp_path, container, late_s):
    """Where sound starts first, the first picture is where players show it."""
    times_s = [late_s + time_s for time_s in TENTHS]
    sound_s = [(0, late_s + 4)]
    samples = sampled(film(tmp_path, f"clip.{container}", times_s, sound_s=sound_s))
    expected = {late_s + number: 10 * number for number in range(4)}
    assert shown(samples) == expected
    # sound of 8 kHz is one packet of 0.128 s late, and its encoder begins so much earlier
    assert samples.times_s[0] == pytest.approx(late_s, abs=0.13)
    assert samples.probe.duration_s == pytest.approx(late_s + 4, abs=0.25)


def test_a_stream_that_is_cut_inside_a_group_keeps_its_times(tmp_path):
    """The first pictures of a recording that began between two key frames cannot be decoded; the
    others are where players show them."""
    path = film(tmp_path, "whole.ts", TENTHS, sound_s=[(0, 4)], group=20)
    data = path.read_bytes()
    packets = [data[start : start + 188] for start in range(0, len(data), 188)]
    tables = packets[:3]
    middle = len(packets) // 4
    (tmp_path / "cut.ts").write_bytes(b"".join([*tables, *packets[middle:]]))
    whole = shown(sampled(path))
    cut = shown(sampled(tmp_path / "cut.ts"))
    number_of_first = min(cut.values())
    assert number_of_first == 20
    assert len(whole) == 4
    # the file starts at its first sound or picture, about a second into the recording
    assert 0.5 <= min(cut) <= 1.5


@pytest.mark.parametrize("container", ["mp4", "mov", "mkv", "webm", "flv", "avi", "wmv"])
def test_the_last_picture_stays_as_long_as_the_file_says(tmp_path, container):
    """A slide that stays for twelve seconds at the end is sampled as in a copy with a constant
    rate, and nothing is missing."""
    times_s = [*TENTHS, 4.0]
    samples = sampled(film(tmp_path, f"slides.{container}", times_s, lasts_s=12))
    assert shown(samples)[4] == shown(samples)[15] == 40
    assert len(samples.frames) == 16
    assert samples.missing == ""


def test_the_last_picture_of_a_gif_stays(tmp_path):
    pictures = [Image.new("RGB", (64, 48), (60 * number, 0, 0)) for number in range(3)]
    path = tmp_path / "pause.gif"
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=[500, 500, 6000])
    samples = sampled(path)
    assert len(samples.frames) == 7
    assert samples.missing == ""


@pytest.mark.parametrize("container", ["mp4", "mkv", "flv", "avi", "wmv"])
@pytest.mark.parametrize("ends_in_zeros", [False, True], ids=["broke off", "ends in zeros"])
def test_what_is_missing_at_the_end_is_no_picture_that_stays(videos, container, ends_in_zeros):
    """Such a download is partly readable."""
    codec = CODECS.get(container, "libx264")
    options = {"movflags": "faststart"} if container == "mp4" else {}
    path = videos.noise(f"noise.{container}", num_frames=80, codec=codec, container_options=options)
    data = path.read_bytes()
    part = int(0.6 * len(data))
    zeros = bytes(len(data) - part) if ends_in_zeros else b""
    path.write_bytes(data[:part] + zeros)
    samples = sampled(path)
    assert samples.missing
    assert len(samples.frames) <= 6


def test_a_clock_that_stands_still_ends_the_reading(videos, monkeypatch):
    """A stream without an end, all of whose pictures are shown at once, is not read for good."""
    monkeypatch.setattr("hapvr.video.sampler.MAX_UNUSED", 20)
    monkeypatch.setattr("hapvr.video.sampler.MAX_UNUSED_PER_S", 20)
    path = videos.numbered("still.mp4", num_frames=60, fps=30)
    samples = sampled(path)
    assert samples.missing == "the clock stands still at 0.7 s; the rest is not read"
    assert len(samples.frames) == 1
