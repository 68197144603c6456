"""ComputeLock at the compute lock, and deadlines."""

from __future__ import annotations

import time

import pytest

from hapvr.errors import VideoError
from hapvr.scorer.access import ComputeLock, Deadline


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
