"""Workers that stay for a while after their work: whose they are, and when they end."""

import gc
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hapvr.video.kept_workers import end_idle_workers
from hapvr.video.pool import in_workers
from hapvr.video.settings import SamplingConfig
from tests.conftest import run_python

# Each starts processes, and waits for them to end.
pytestmark = pytest.mark.slow

ALONE = SamplingConfig(workers=1)


@pytest.fixture(autouse=True)
def none_before() -> Iterator[None]:
    """No workers of other tests, and none for them."""
    end_idle_workers()
    yield
    end_idle_workers()


def worker_pid(_: int) -> int:
    return os.getpid()


def pid_of_worker(config: SamplingConfig = ALONE) -> int:
    """The worker that does a piece of work."""
    ((_, pid),) = in_workers(worker_pid, [0], config=config)
    assert isinstance(pid, int)
    return pid


def ends(pid: int) -> bool:
    """Whether a process is gone within some seconds."""
    end_s = time.monotonic() + 30
    while psutil.pid_exists(pid) and time.monotonic() < end_s:
        time.sleep(0.05)
    return not psutil.pid_exists(pid)


def test_a_worker_stays_for_the_work_that_comes_next() -> None:
    assert pid_of_worker() == pid_of_worker()


def test_work_at_the_same_time_has_workers_of_its_own() -> None:
    first = in_workers(worker_pid, [0, 1, 2, 3], config=ALONE)
    _, pid = next(first)
    assert pid_of_worker() != pid
    assert {later for _, later in first} == {pid}


def test_workers_of_work_that_nobody_ends_stay_as_well() -> None:
    """As an error keeps it alive with its traceback until it is collected as garbage, with all that
    only it refers to."""

    def unread() -> int:
        results = in_workers(worker_pid, [0], config=ALONE)
        _, pid = next(results)
        circle: list[object] = [results]
        circle.append(circle)
        assert isinstance(pid, int)
        return pid

    pid = unread()
    gc.collect()
    assert pid_of_worker() == pid


def test_work_within_other_limits_has_workers_of_its_own() -> None:
    assert pid_of_worker() != pid_of_worker(SamplingConfig(workers=1, max_memory_bytes=2 << 30))


def test_work_in_another_directory_has_workers_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths of files begin there."""
    pid = pid_of_worker()
    monkeypatch.chdir(tmp_path)
    assert pid_of_worker() != pid


def test_a_worker_that_died_while_it_was_idle_is_replaced() -> None:
    pid = pid_of_worker()
    os.kill(pid, signal.SIGKILL)
    assert ends(pid)
    time.sleep(0.5)  # its pool looks after its processes ten times a second
    assert pid_of_worker() != pid


def test_an_idle_worker_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hapvr.video.kept_workers.IDLE_S", 0.1)
    assert ends(pid_of_worker())


def test_few_groups_of_workers_are_idle_at_once() -> None:
    """The oldest makes room."""
    pids = [
        pid_of_worker(SamplingConfig(workers=1, max_memory_bytes=number << 30))
        for number in (2, 3, 4)
    ]
    assert ends(pids[0])
    assert all(map(psutil.pid_exists, pids[1:]))


PROGRAM = """
from tests.video.test_kept_workers import pid_of_worker
print(pid_of_worker())
"""


def test_a_program_ends_with_its_idle_workers() -> None:
    assert ends(int(run_python("-c", PROGRAM, timeout=60)))


FORKING = """
import os
from tests.video.test_kept_workers import pid_of_worker
pid = pid_of_worker()
child = os.fork()
if not child:
    os._exit(pid_of_worker() == pid)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert pid_of_worker() == pid
"""


def test_a_forked_process_leaves_those_of_its_parent_alone() -> None:
    run_python("-c", FORKING, timeout=60)
