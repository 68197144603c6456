"""Worker processes: hangs, crashes and greed cost one row; order and memory are kept."""

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

from hapvr.errors import VideoError
from hapvr.video.decode import sample_frames
from hapvr.video.pool import in_workers, killed_workers, sample_videos
from hapvr.video.settings import SamplingConfig
from tests.conftest import write_sound

ALONE = SamplingConfig(workers=1)


def reasons(results):
    return [result.reason if isinstance(result, VideoError) else result for _, result in results]


def test_in_workers_kills_a_worker_that_hangs():
    """An item over the time limit becomes a timeout; the others are done."""
    started = time.monotonic()
    results = list(
        in_workers(time.sleep, [0, 600, 0], config=SamplingConfig(timeout_s=2, workers=1))
    )
    assert reasons(results) == [None, "timeout", None]
    assert "2 s" in str(results[1][1])
    assert time.monotonic() - started < 20


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
