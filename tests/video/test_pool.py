"""Worker processes: hangs, crashes and greed cost one row; order and memory are kept."""

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from hapvr.errors import VideoError
from hapvr.video import sandbox
from hapvr.video.heartbeat import beat
from hapvr.video.pool import in_workers, killed_workers, sample_videos
from hapvr.video.sampling import Reading, sample_frames
from hapvr.video.sandbox import call_confined
from hapvr.video.settings import SamplingConfig
from tests.conftest import write_sound

ALONE = SamplingConfig(workers=1)


def reasons(results):
    return [result.reason if isinstance(result, VideoError) else result for _, result in results]


@pytest.mark.slow
def test_in_workers_kills_a_worker_that_hangs():
    """An item over the time limit becomes a timeout; the others are done."""
    started = time.monotonic()
    results = list(
        in_workers(time.sleep, [0, 600, 0], config=SamplingConfig(timeout_s=2, workers=1))
    )
    assert reasons(results) == [None, "timeout", None]
    assert "2 s" in str(results[1][1])
    assert time.monotonic() - started < 20


def beats_for(seconds):
    """Get on with something for so long."""
    for _ in range(round(seconds * 10)):
        beat(f"{seconds:g}: at work")
        time.sleep(0.1)
    return seconds


@pytest.mark.slow
def test_what_gets_on_may_take_any_time():
    """Work that shows that it goes on is not killed, and its words are passed on; in the time of a
    request it has to be done all the same."""
    messages = []
    config = SamplingConfig(timeout_s=1, workers=1)
    results = in_workers(beats_for, [3.0, 0.1], config=config, doing=messages.append)
    assert reasons(results) == [3.0, 0.1]
    assert "3: at work" in messages
    hurried = in_workers(beats_for, [600.0], config=config, left_s=lambda: 2.0)
    assert reasons(hurried) == ["timeout"]


@pytest.mark.slow
def test_reading_a_large_file_is_no_standstill(videos):
    """A clip with a hole that takes longer to read than `timeout_s` is decoded; one whose decoder
    reads on behind the pictures as well."""
    items = []
    for name in ("clip.mp4", "clip.ts"):
        path = videos.numbered(name)
        os.truncate(path, 400 * 2**20)
        items.append((name, path))

    sampled_videos = list(sample_videos(items, config=SamplingConfig(timeout_s=0.7, workers=1)))
    assert [(video.reason, len(video.jpegs)) for video in sampled_videos] == [("", 3), ("", 3)]


@pytest.mark.slow
def test_a_decoder_that_reads_without_end_stands_still(tmp_path, monkeypatch):
    """Bytes count until the file has been read twice; a copy that reads it again and again gets
    on with nothing."""
    path = tmp_path / "file.bin"
    path.write_bytes(bytes(2**20))
    told = []

    def reads_for_good():
        end_s = time.monotonic() + 4
        while time.monotonic() < end_s:
            path.read_bytes()
        return b"done"

    monkeypatch.setattr(sandbox, "_READ_SLACK_BYTES", 0)
    monkeypatch.setattr(sandbox, "_LOOK_EVERY_S", 0.1)
    assert call_confined(reads_for_good, readable=path, alive=told.append) == b"done"
    assert told == [None] * len(told)
    assert len(told) <= 3


def test_several_threads_decode_the_same_frames(videos):
    """A whole file and a damaged one."""
    path = videos.noise(num_frames=60)
    for _ in range(2):
        expected = sample_frames(path, fps=5, short_side_px=64, reading=Reading(threads=1))
        several = sample_frames(path, fps=5, short_side_px=64, reading=Reading(threads=4))
        assert np.array_equal(expected.frames, several.frames)
        assert expected.times_s == several.times_s
        assert expected.missing == several.missing
        data = bytearray(path.read_bytes())
        data[len(data) // 2 : len(data) // 2 + 3000] = bytes(3000)
        path.write_bytes(data)


@pytest.mark.slow
def test_in_workers_survives_workers_that_die():
    """Death by signal, exit and exception cost their own item only, whatever is beside them; deaths
    are counted."""
    before = killed_workers["crashed"]
    commands = [
        "true",
        "kill -ABRT $PPID",
        "true",
        "kill -SEGV $PPID",
        "true",
        "kill -KILL $PPID",
        "true",
    ]
    results = in_workers(os.system, commands, config=SamplingConfig())
    assert reasons(results) == [0, "crashed", 0, "crashed", 0, "crashed", 0]
    assert reasons(in_workers(int, ["1", "one", "2"], config=ALONE)) == [1, "crashed", 2]
    assert killed_workers["crashed"] - before == 3


def test_in_workers_bounds_memory():
    """A worker that wants more than the limit fails alone."""
    results = in_workers(
        bytearray, [10, 8 * 2**30, 10], config=SamplingConfig(max_memory_bytes=2 * 2**30, workers=1)
    )
    kept = reasons(results)
    assert kept[1] == "crashed"
    assert kept[0] == kept[2] == bytearray(10)


def test_in_workers_leaves_no_process_behind_when_abandoned():
    """A caller that stops early takes the workers with it, busy ones included."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    results = in_workers(time.sleep, [0, 600, 600], config=SamplingConfig(timeout_s=900, workers=1))
    next(results)
    results.close()
    after = {
        child.pid
        for child in psutil.Process().children(recursive=True)
        if child.status() != "zombie"
    }
    workers = {
        pid
        for pid in after - before
        if "resource_tracker" not in " ".join(psutil.Process(pid).cmdline())
    }
    assert workers == set()


@pytest.mark.slow
def test_workers_die_with_a_killed_parent(tmp_path):
    """No worker outlives a parent that is killed, not even a hung one."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import time\nfrom hapvr.config import SamplingConfig\nfrom hapvr.video.pool import "
        "in_workers\n"
        "if __name__ == '__main__':\n    list(in_workers(time.sleep, [600, 600], "
        "config=SamplingConfig(timeout_s=900)))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    parent = subprocess.Popen([sys.executable, str(script)], env=environment)
    deadline = time.monotonic() + 30
    workers = []
    while len(workers) < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
        children = psutil.Process(parent.pid).children()
        workers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]

    time.sleep(1)  # for the workers to get busy
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert len(workers) == 2
    assert alive == []


def test_sample_videos_gives_a_row_for_every_file(videos):
    """Good, damaged and missing files come back in order, each with its frames or its reason."""
    good = videos.numbered("good 好.mp4", num_frames=30)
    text = videos.folder / "text.mp4"
    text.write_text("text")
    single = videos.numbered("single.mp4", num_frames=1)
    items = [
        ("s/good", good),
        ("s/text", text),
        ("s/sound", write_sound(videos.folder / "sound.mp4")),
        ("s/none", videos.folder / "none.mp4"),
    ]
    rows = list(
        sample_videos([*items, ("s/single", single)], config=SamplingConfig(short_side_px=64))
    )
    assert [(row.video_id, row.reason, len(row.jpegs)) for row in rows] == [
        ("s/good", "", 3),
        ("s/text", "not_video", 0),
        ("s/sound", "no_video_stream", 0),
        ("s/none", "missing_file", 0),
        ("s/single", "", 1),
    ]
    assert rows[0].timestamps_s == (0.0, 1.0, 2.0)
    frame = np.asarray(Image.open(io.BytesIO(rows[0].jpegs[1])))
    expected = np.stack(sample_frames(good, fps=1, short_side_px=64)[1])[1]
    assert frame.shape == (64, 85, 3)
    assert np.abs(frame.astype(int) - expected).mean() < 2
    assert all(row.message and row.probe is None for row in rows[1:4])
