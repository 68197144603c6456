"""Searches whose process ends, breaks off or cannot open the index that counts, and what ends with
the service."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from hapvr.errors import DamagedError
from hapvr.scorer.access import access_from_environment, limits_from_environment
from hapvr.search.current import CURRENT
from hapvr.serving.collection import Collection
from hapvr.serving.jobs import Job
from hapvr.serving.search_process import ProcessPlan
from hapvr.serving.search_processes import SearchProcesses
from hapvr.serving.search_work import QuerySource
from hapvr.steps.project import Project
from hapvr.steps.searcher import SearchOptions
from hapvr.video.kept_workers import end_idle_workers
from tests.scorer.bundles import write_scenes
from tests.serving.served import serving
from tests.serving.test_search_processes import is_gone, pids, soon
from tests.steps.search_projects import copied

# Each starts a process that opens the models.
pytestmark = pytest.mark.slow

SHORT = "in/short.mp4"
BEST = "in/long.mp4"


def processes_of(
    project: Project, took: Callable[[str, float], None] = lambda *_: None
) -> SearchProcesses:
    """One process that searches; it is not started yet."""
    plan = ProcessPlan(
        config=project.config,
        root=project.root.url,
        folder=project.folder,
        model=None,
        access=access_from_environment(),
        limits=limits_from_environment(project.config.serving),
        num_processors=1,
    )
    return SearchProcesses(plan, 1, collection=Collection(project), took=took)


@contextmanager
def one_process(
    project: Project, took: Callable[[str, float], None] = lambda *_: None
) -> Iterator[SearchProcesses]:
    """A process that searches, ready."""
    processes = processes_of(project, took)
    processes.start()
    try:
        assert soon(lambda: processes.num_ready == 1)
        yield processes
    finally:
        processes.close()


def query_id(processes: SearchProcesses, video_id: str) -> str:
    """What the answer of a search for a video says that it was for."""
    job = Job(video_id, SearchOptions())
    return processes.answer(QuerySource(video_id=video_id), job).query_id


def test_a_state_that_cannot_be_opened_is_not_answered_from_an_older_one(
    collection: Path, tmp_path: Path
) -> None:
    """The service may have opened it in the moment before."""
    project = copied(collection, tmp_path)
    opened = Collection(project)
    state = opened.current().state
    (Path(project.root.url) / CURRENT).write_bytes(b"damaged")
    opened.reach(state)
    with pytest.raises(DamagedError):
        opened.reach("a newer state")


def test_a_search_that_breaks_off_leaves_nothing_to_the_next_one(project: Project) -> None:
    """Its process has more to say of it, which would be taken for another answer."""
    parts: list[str] = []

    def took(part: str, _: float) -> None:
        parts.append(part)
        if len(parts) == 1:
            raise RuntimeError("broken off")

    with one_process(project, took) as processes:
        with pytest.raises(RuntimeError, match="broken off"):
            query_id(processes, SHORT)
        assert query_id(processes, BEST) == BEST


def test_processes_that_died_while_nobody_asked_cost_a_search_no_try(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do they stay open."""
    monkeypatch.setattr("hapvr.serving.search_processes.TRIES", 1)
    with one_process(project) as processes:
        num_files = psutil.Process().num_fds()
        for number in range(1, 3):
            (pid,) = processes.pids
            os.kill(pid, signal.SIGKILL)
            assert soon(partial(is_gone, pid))
            assert query_id(processes, SHORT) == SHORT
            assert processes.num_replaced == number

        assert psutil.Process().num_fds() <= num_files + 1


def test_a_service_whose_processes_have_all_died_is_not_ready(
    collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until one of those that take their places is."""
    monkeypatch.setattr("hapvr.serving.search_processes.PAUSE_S", 5.0)
    with serving(copied(collection, tmp_path), workers=2) as client:
        assert soon(lambda: client.get("/ready").status == 200)
        for pid in pids(client):
            os.kill(pid, signal.SIGKILL)
        assert soon(lambda: client.get("/ready").status == 503)
        assert soon(lambda: client.get("/ready").status == 200)


def test_a_process_that_cannot_be_started_replaces_none(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the system has no room for one."""
    failed: list[None] = []

    def start_process(*_: object, num_processors: int) -> None:
        failed.append(None)
        raise OSError("no room")

    monkeypatch.setattr("hapvr.serving.search_processes.start_process", start_process)
    monkeypatch.setattr("hapvr.serving.search_processes.PAUSE_S", 0.01)
    processes = processes_of(project)
    processes.start()
    assert soon(lambda: len(failed) > 2)
    processes.close()
    assert processes.num_replaced == 0


def decoders() -> set[int]:
    """Processes of this one that decode videos, or wait for more of them."""
    return {
        child.pid
        for child in psutil.Process().children()
        if any("spawn_main" in argument for argument in child.cmdline())
    }


def test_no_decoder_waits_for_work_after_the_service_has_ended(
    project: Project, tmp_path: Path
) -> None:
    """A signal ends its process before Python would end them, and Python complains of them."""
    end_idle_workers()  # those of other tests would decode this film, too
    before = decoders()
    with serving(project) as client:
        client.upload(write_scenes(tmp_path / "query.mp4", [1, 2, 3]))
        started = decoders() - before
        assert started
    assert soon(lambda: all(map(is_gone, started)))
