"""kill -9 at any moment of any data stage: the next run ends in the bytes of a run that nobody
disturbed."""

import os
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from hapvr.data.filesystem import LOCKS_FOLDER
from tests.conftest import write_clip, write_settings
from tests.steps.data_projects import digests, folder_settings
from tests.steps.kills import finish, kill_after, kill_often
from tests.video.site import serve

pytestmark = pytest.mark.slow

FOLDERS = {
    "manifest": ("manifest",),
    "videos": ("videos", "downloads"),
    "frames": ("frames",),
    "whitening": ("whitening",),
    "features": ("features",),
}


@dataclass
class Stages:
    """calm: digests after each stage of a project ran undisturbed; seconds: its time."""

    config: Path
    root: Path
    calm: dict[str, dict[str, str]]
    seconds: dict[str, float]

    def listing(self, stage: str) -> list[tuple[str, int]]:
        """Files that a stage writes, with their sizes, and locks."""
        file_sizes = []
        for top in (*FOLDERS[stage], LOCKS_FOLDER):
            for folder, _, names in os.walk(self.root / top):
                for name in names:
                    try:
                        file_sizes.append((f"{folder}/{name}", os.stat(f"{folder}/{name}").st_size))
                    except FileNotFoundError:
                        continue

        return sorted(file_sizes)


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    """Two clips in a folder and two on a site, a shard each, and every stage run once."""
    folder = tmp_path_factory.mktemp("kills")
    for number in range(2):
        write_clip(folder / "clips" / f"{number}.mp4", seed=number, seconds=2)
    served = write_clip(folder / "served.mp4", seed=99, seconds=2).read_bytes()
    with serve(served) as site:
        settings = folder_settings(folder / "clips", folder / "data", shard_videos=2)
        (folder / "list.csv").write_text(
            "url\n" + "".join(f"{site.address}/{name}.mp4\n" for name in "ab")
        )
        settings["sources"] += [{"kind": "list", "name": "web", "path": str(folder / "list.csv")}]
        config = write_settings(folder / "config.yaml", settings)
        finished_stages = Stages(config, folder / "data", {}, {})
        for stage in ("manifest", *FOLDERS):  # the first one waits for the server of forks
            finished_stages.seconds[stage] = finish(config, stage)
            finished_stages.calm[stage] = content(finished_stages.root, stage)

        yield finished_stages


def content(root: Path, stage: str) -> dict[str, str]:
    """Digests of what a stage wrote."""
    return {
        name: digest
        for name, digest in digests(root).items()
        if name.split("/")[0] in FOLDERS[stage]
    }


@pytest.mark.parametrize("stage", ["manifest", "videos", "whitening", "features"])
def test_a_killed_stage_ends_in_the_same_bytes(stages: Stages, stage: str) -> None:
    """Kills at random times and at random changes of the files; whenever a run gets to its end, the
    bytes are right."""
    rng = random.Random(stage)
    assert stages.calm[stage]
    clear(stages, stage)
    most_changes = 8

    def kill(process: BaseProcess, number: int) -> None:
        nonlocal most_changes
        if number % 2:
            most_changes = max(
                2, kill_at_change(stages, stage, process, rng.randint(1, most_changes))
            )
        else:
            kill_after(process, rng.uniform(0, stages.seconds[stage]))

    def after_end() -> None:
        assert content(stages.root, stage) == stages.calm[stage]
        clear(stages, stage)

    kill_often(lambda: (stages.config, stage), kill=kill, after_end=after_end)


def clear(stages: Stages, stage: str) -> None:
    """Take away what a stage wrote, as if it had never run; files whose manifest is lost would be
    refused."""
    for name in (*FOLDERS[stage], *["videos"] * (stage == "manifest")):
        shutil.rmtree(stages.root / name, ignore_errors=True)


def kill_at_change(stages: Stages, stage: str, process: BaseProcess, wanted: int) -> int:
    """Kill the process when the stage's files have changed `wanted` times, if it has not ended;
    returns the changes seen."""
    before = stages.listing(stage)
    seen = 0
    while seen < wanted and process.is_alive():
        time.sleep(0.002)
        now = stages.listing(stage)
        seen = seen + (now != before)
        before = now

    process.kill()
    return seen + 1
