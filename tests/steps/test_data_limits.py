"""Full disks, locks of other processes: a clear refusal, and nothing lost."""

import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

from hapvr.data.filesystem import DataRoot
from hapvr.errors import DataError
from hapvr.steps.frames import make_frames
from hapvr.steps.project import Project
from hapvr.steps.video_manifest import make_manifest
from hapvr.steps.videos import make_videos
from tests.conftest import CHECKOUT, write_clip
from tests.steps.data_projects import digests, folder_settings, open_project, small_disk


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Two clips, looked at."""
    for number in range(2):
        write_clip(tmp_path / "in" / f"{number}.mp4", seed=number, seconds=3)
    opened = open_project(tmp_path, folder_settings(tmp_path / "in", tmp_path / "data"))
    make_manifest(opened)
    make_videos(opened, "in-00000")
    return opened


def test_a_full_disk_loses_nothing(project: Project, tmp_path: Path) -> None:
    """The stage fails with what to do, what was there stays readable, and a later run ends as if
    nothing had happened."""
    make_frames(project, "in-00000")
    calm = digests(tmp_path / "data")
    write_clip(tmp_path / "in" / "0.mp4", seed=7, seconds=3)
    make_videos(project, "in-00000")
    before = digests(tmp_path / "data")
    with (
        small_disk(4000),
        pytest.raises(DataError, match=r"cannot write frames/in-00000/data.parquet .* Free space"),
    ):
        make_frames(project, "in-00000")

    assert digests(tmp_path / "data") == before
    assert make_frames(project, "in-00000").num_ok == 2
    assert (
        digests(tmp_path / "data")["frames/in-00000/data.parquet"]
        != calm["frames/in-00000/data.parquet"]
    )


def test_locks(tmp_path: Path) -> None:
    """A second process waits for the first, and says so; that of a killed process, its time years
    ahead, holds nobody."""
    code = (
        "import sys, time\nfrom hapvr.data.filesystem import DataRoot\n"
        "with DataRoot(sys.argv[1]).lock('features/in-00000'):\n    print('held', "
        "flush=True)\n    time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(CHECKOUT)}
    )
    assert process.stdout.readline() == b"held\n"
    threading.Timer(0.3, process.kill).start()
    lock = DataRoot(tmp_path).lock("features/in-00000")
    with (
        pytest.warns(UserWarning, match="features/in-00000 is being made by another process"),
        lock,
    ):
        assert process.wait() < 0

    (left,) = (tmp_path / ".locks").iterdir()
    os.utime(left, (4e9, 4e9))
    with warnings.catch_warnings(action="error"), DataRoot(tmp_path).lock("features/in-00000"):
        pass
