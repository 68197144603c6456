"""Two processes that repair one data root at the same time, and what a killed repair has left."""

import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hapvr.care.repair import repair
from hapvr.care.verify import verify_root
from hapvr.data import set_aside
from hapvr.data.filesystem import DataRoot
from hapvr.errors import DataError
from hapvr.steps.frames import make_frames
from hapvr.steps.project import Project
from hapvr.steps.video_manifest import make_manifest
from hapvr.steps.videos import make_videos
from hapvr.video.kept_workers import end_idle_workers
from tests.conftest import write_clip
from tests.forked import forking
from tests.steps.data_projects import digests, folder_settings, open_project
from tests.steps.test_data_download import KEY, web_project
from tests.video.site import Site, serve

ROUNDS = 3
"""How often both begin at the same moment; without a lock, each time the file was lost."""


def verify_and_repair(config: Path, barrier: Any, states: Any) -> None:
    """What `hapvr verify --repair` does; the states of all downloads go into the queue."""
    project = Project.open(config, folder=config.parent)
    barrier.wait()
    checks = repair(project, verify_root(project.root))
    states.put([check.state for check in checks if check.kind == "downloads"])
    end_idle_workers()  # which a process of `multiprocessing` would wait for, a minute long


def repair_twice_at_once(config: Path) -> list[str]:
    """The states that two processes report, which began at the same moment."""
    forks = forking()
    barrier = forks.Barrier(2)
    states = forks.SimpleQueue()
    processes = [
        forks.Process(target=verify_and_repair, args=(config, barrier, states)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    return [state for _ in processes for state in states.get()]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with serve(write_clip(tmp_path / "served.mp4", seed=5, seconds=2).read_bytes()) as site:
        yield site


def fetched_project(folder: Path, site: Site, *, videos: int) -> tuple[Project, list[Path]]:
    """A project with so many fetched videos, and their files."""
    project = web_project(folder, site, [f"flaky-{number}.mp4" for number in range(videos)])
    make_videos(project, KEY)
    files = [Path(row["path"]) for row in project.shard("videos", KEY).rows()]
    return project, files


def flip(path: Path) -> bytes:
    """Change one bit; returns what the file then holds."""
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    return bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("answers", [False, True], ids=["site has it no more", "site answers"])
def test_two_repairs_at_once_lose_no_fetched_video(
    site: Site, tmp_path: Path, answers: bool
) -> None:
    """Both report what is true, and the file is repaired, or is left as it was."""
    project, (file,) = fetched_project(tmp_path, site, videos=1)
    whole = file.read_bytes()
    site.failures = 0 if answers else 10**9
    for _ in range(ROUNDS):
        damaged = flip(file)
        states = repair_twice_at_once(tmp_path / "config.yaml")
        left = file.read_bytes() if file.exists() else b"it is lost"
        assert left == (whole if answers else damaged)
        assert set(states) <= ({"repaired", "ok"} if answers else {"damaged"})
        assert set_aside.is_empty(project.root)
        file.write_bytes(whole)


@pytest.mark.slow
def test_a_fetched_video_that_is_lost_is_damage(site: Site, tmp_path: Path) -> None:
    """Also without the record of its download; it is fetched again, or stays damage."""
    project, (file,) = fetched_project(tmp_path, site, videos=1)
    whole = file.read_bytes()
    file.unlink()
    file.with_suffix(".json").unlink()
    (damage,) = [check for check in verify_root(project.root) if check.state != "ok"]
    assert f"{file.name} is missing" in damage.message
    site.failures = 10**9
    (left,) = repair(project, [damage])
    assert left.state == "damaged"
    assert "cannot be fetched or generated again" in left.message
    site.failures = 0
    assert [check.state for check in repair(project, [damage])] == ["repaired"]
    assert file.read_bytes() == whole
    file.with_suffix(".json").unlink()
    flip(file)
    (damage,) = [check for check in verify_root(project.root) if check.state != "ok"]
    assert f"{file.name} changed since" in damage.message


@pytest.mark.slow
@pytest.mark.parametrize("replaced", [False, True])
def test_what_a_killed_repair_had_set_aside(site: Site, tmp_path: Path, replaced: bool) -> None:
    """It goes back where nothing took its place, and goes away only once all is whole."""
    project, (file,) = fetched_project(tmp_path, site, videos=1)
    whole = file.read_bytes()
    name = file.relative_to(project.root.local).as_posix()
    aside = project.root.local_path(f"{set_aside.FOLDER}/1/{name}")
    aside.parent.mkdir(parents=True)
    damaged = flip(file)
    file.rename(aside)
    if replaced:
        file.write_bytes(whole)
    site.failures = 10**9
    (after,) = [
        check for check in repair(project, verify_root(project.root)) if check.kind == "downloads"
    ]
    assert after.state == ("ok" if replaced else "damaged")
    assert file.read_bytes() == (whole if replaced else damaged)
    assert set_aside.is_empty(project.root)


def test_nothing_is_set_aside_over_what_an_earlier_repair_left(tmp_path: Path) -> None:
    """Nor is anything deleted while its replacement is not whole."""
    root = DataRoot(tmp_path)
    place = tmp_path / "frames" / "a-00000" / "data.parquet"
    place.parent.mkdir(parents=True)
    older = tmp_path / set_aside.FOLDER / "1" / "frames" / "a-00000" / "data.parquet"
    older.parent.mkdir(parents=True)
    older.write_text("older")
    place.write_text("damaged")

    name = "frames/a-00000/data.parquet"

    def refuse() -> None:
        raise DataError("the replacement is damaged")

    def replace(text: str, verify: Callable[[], None]) -> None:
        with set_aside.set_aside(root, name, verify=verify):
            assert not place.exists()
            place.write_text(text)

    with pytest.raises(DataError, match="the replacement is damaged"):
        replace("not whole", refuse)
    assert place.read_text() == "damaged"
    replace("whole", lambda: None)
    assert place.read_text() == "whole"
    assert older.read_text() == "older"


def damaged_frames(folder: Path) -> tuple[Path, dict[str, str]]:
    """The configuration of a project whose frames have a flipped bit, and its digests without."""
    write_clip(folder / "in" / "0.mp4", seed=0, seconds=2)
    project = open_project(folder, folder_settings(folder / "in", folder / "data"))
    make_manifest(project)
    make_videos(project, "in-00000")
    make_frames(project, "in-00000")
    whole = digests(folder / "data")
    flip(folder / "data" / "frames" / "in-00000" / "data.parquet")
    return folder / "config.yaml", whole


@pytest.mark.slow
def test_a_killed_repair_is_finished_by_the_next(tmp_path: Path) -> None:
    """Killed at random moments: the next one ends as if none had been."""
    forks = forking()
    config, whole = damaged_frames(tmp_path)
    root = tmp_path / "data"
    shutil.copytree(root, tmp_path / "damaged")
    rng = random.Random(0)
    longest_s = 1.0
    kills = 0
    while kills < 20:
        shutil.rmtree(root)
        shutil.copytree(tmp_path / "damaged", root)
        states = forks.SimpleQueue()
        process = forks.Process(target=verify_and_repair, args=(config, forks.Barrier(1), states))
        began_s = time.monotonic()
        process.start()
        process.join(rng.uniform(0, longest_s))
        process.kill()
        process.join()
        if process.exitcode == 0:
            longest_s = time.monotonic() - began_s
            assert digests(root) == whole
            continue

        longest_s *= 1.1
        kills += 1
        project = Project.open(config, folder=tmp_path)
        checks = repair(project, verify_root(project.root))
        assert {check.state for check in checks} <= {"ok", "repaired"}
        assert digests(root) == whole
        assert set_aside.is_empty(project.root)
