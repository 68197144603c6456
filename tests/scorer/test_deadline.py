"""ComputeLock at the compute lock, and deadlines."""

from __future__ import annotations

import threading
import time

import pytest

from hapvr.errors import VideoError
from hapvr.scorer.access import ComputeLock, Deadline


def test_turns_come_in_the_order_of_asking() -> None:
    """A thread that gives the lock back and asks again waits behind those that asked before."""
    lock, order = ComputeLock(), list[str]()
    first_has_it, others_wait = threading.Event(), threading.Event()

    def long_request() -> None:
        for batch in range(3):
            with lock.hold(Deadline(60)):
                order.append(f"long {batch}")
                first_has_it.set()
                others_wait.wait(60)

    def short_request() -> None:
        with lock.hold(Deadline(60)):
            order.append("short")

    threads = [threading.Thread(target=long_request), threading.Thread(target=short_request)]
    threads[0].start()
    assert first_has_it.wait(60)
    threads[1].start()
    while len(lock._waiting) < 2:
        time.sleep(0.01)
    others_wait.set()
    for thread in threads:
        thread.join(60)
    assert order == ["long 0", "short", "long 1", "long 2"]


def test_waiting_for_a_turn_ends_at_the_deadline() -> None:
    """The error says so; the lock is free for others afterwards."""
    lock = ComputeLock()
    with (
        lock.hold(Deadline(None)),
        pytest.raises(VideoError, match=r"not done after 0\.05 s") as caught,
        lock.hold(Deadline(0.05)),
    ):
        pytest.fail("two threads compute at once")
    assert caught.value.reason == "timeout"
    with lock.hold(Deadline(1)):
        pass


def test_a_passed_deadline_gets_no_turn() -> None:
    """Also where the lock is free."""
    deadline = Deadline(0.001)
    time.sleep(0.01)
    with pytest.raises(VideoError, match="not done"), ComputeLock().hold(deadline):
        pytest.fail("the deadline has passed")
