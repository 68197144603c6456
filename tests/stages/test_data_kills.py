"""kill -9 at any moment of any data stage: the next run ends in the bytes of a run that nobody disturbed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hapvr.storage.availability import available_videos, read_availability
from hapvr.storage.filesystem import DataRoot
from tests.conftest import CHECKOUT, write_clip, write_settings
from tests.stages.data_projects import digests, folder_settings, run_elsewhere
from tests.video.site import serve

pytestmark = pytest.mark.slow

FOLDERS = {
    "manifest": ("manifest",),
    "videos": ("videos", "downloads", "availability"),
    "frames": ("frames",),
    "whitening": ("whitening",),
    "features": ("features",),
    "training_views": ("training_views",),
    "pseudo_labels": ("teacher_embeddings", "pseudo_labels"),
}
KILLS = 20
KILLS_IN_A_ROW = 5


@dataclass
class Stages:
    """A project whose stages run in a server's forks. calm: digests after each stage ran undisturbed; seconds: its time."""

    config: Path
    root: Path
    server: subprocess.Popen[str]
    calm: dict[str, dict[str, str]]
    seconds: dict[str, float]

    def start(self, stage: str) -> int:
        """Begin a stage; returns the process id."""
        return int(self._ask(json.dumps({"config": str(self.config), "stage": stage})))

    def status(self) -> int:
        """Wait for the end of the stage begun last: 0, or what `waitpid` says."""
        return int(self._ask(""))

    def finish(self, stage: str) -> None:
        """Run a stage to its end."""
        self.start(stage)
        assert self.status() == 0

    def listing(self) -> list[tuple[str, int]]:
        """Files of the data root with their sizes."""
        found = []
        for folder, _, names in os.walk(self.root):
            for name in names:
                try:
                    found.append((f"{folder}/{name}", os.stat(f"{folder}/{name}").st_size))
                except FileNotFoundError:
                    continue
        return sorted(found)

    def _ask(self, line: str) -> str:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(line + "\n")
        self.server.stdin.flush()
        return self.server.stdout.readline()


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    """Two clips in a folder and two on a site, a shard each, and every stage run once."""
    folder = tmp_path_factory.mktemp("kills")
    for number in range(2):
        write_clip(folder / "clips" / f"{number}.mp4", seed=number, seconds=2)
    served = write_clip(folder / "served.mp4", seed=99, seconds=2).read_bytes()
    with serve(served) as site:
        settings = folder_settings(folder / "clips", folder / "data", shard_videos=2)
        (folder / "list.csv").write_text("url\n" + "".join(f"{site.address}/{name}.mp4\n" for name in "ab"))
        settings["sources"] += [{"kind": "list", "name": "web", "path": str(folder / "list.csv")}]
        config = write_settings(folder / "config.yaml", settings)
        server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("stage_server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=CHECKOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT)},
        )
        made = Stages(config, folder / "data", server, {}, {})
        for stage in FOLDERS:
            made.start(stage)
            started = time.monotonic()
            assert made.status() == 0
            made.seconds[stage] = time.monotonic() - started
            made.calm[stage] = content(made.root, stage)
        yield made
        assert server.stdin is not None
        server.stdin.close()
        assert server.wait(timeout=60) == 0


def content(root: Path, stage: str) -> dict[str, str]:
    """Digests of what a stage wrote; of the availability, which holds the time of day, only the videos."""
    files = digests(root, without=("availability",))
    files = {name: digest for name, digest in files.items() if name.split("/")[0] in FOLDERS[stage]}
    if stage == "videos":
        found = [sorted(available_videos(read_availability(DataRoot(root), source))) for source in ("in", "web")]
        files["availability"] = str(found)
    return files


@pytest.mark.parametrize("stage", FOLDERS)
def test_a_killed_stage_ends_in_the_same_bytes(stages: Stages, stage: str) -> None:
    """Twenty kills, at random times and at random changes of the files; whenever a run gets to its end, the bytes are right."""
    rng = random.Random(stage)
    assert stages.calm[stage]
    clear(stages, stage)
    kills = number = 0
    most_changes = 8
    while kills < KILLS:
        number += 1
        pid = stages.start(stage)
        if number % 2:
            most_changes = max(2, kill_at_change(stages, pid, rng.randint(1, most_changes)))
        else:
            time.sleep(rng.uniform(0, stages.seconds[stage]))
            os.kill(pid, signal.SIGKILL)
        ended = stages.status()
        kills += ended == signal.SIGKILL
        if ended == 0 or kills % KILLS_IN_A_ROW == 0:
            stages.finish(stage)
            assert content(stages.root, stage) == stages.calm[stage]
            clear(stages, stage)
    stages.finish(stage)


def clear(stages: Stages, stage: str) -> None:
    """Take away what a stage wrote, as if it had never run."""
    for name in FOLDERS[stage]:
        shutil.rmtree(stages.root / name, ignore_errors=True)


def kill_at_change(stages: Stages, pid: int, wanted: int) -> int:
    """Kill the process when the data root has changed `wanted` times, or soon after it ended; returns the changes seen."""
    before, seen = stages.listing(), 0
    while seen < wanted and is_running(pid):
        time.sleep(0.002)
        now = stages.listing()
        seen, before = seen + (now != before), now
    os.kill(pid, signal.SIGKILL)
    return seen + 1


def is_running(pid: int) -> bool:
    """Whether a fork that the server still holds has not ended."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("stage", ["frames", "features"])
def test_two_runs_at_once_make_a_shard_once(stages: Stages, stage: str) -> None:
    """The second waits for the first and finds the shard finished; the bytes are those of one run alone."""
    shutil.rmtree(stages.root / stage)
    lines: list[int] = []
    thread = threading.Thread(target=lambda: lines.extend(run_elsewhere(stages.config, stage)))
    thread.start()
    while not (stages.root / ".locks" / f"{stage}-in-00000.lock").exists():
        time.sleep(0.01)
    stages.finish(stage)
    thread.join()
    assert lines[1] == 0
    assert content(stages.root, stage) == stages.calm[stage]
