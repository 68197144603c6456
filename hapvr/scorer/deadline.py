"""How long a request may wait and work, and whose turn it is to compute."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from hapvr.errors import VideoError

LONGEST_WAIT_S = 24 * 3600.0


class Deadline:
    """A moment `limit_s` seconds from now; None: never. `cancel` brings it about at once, from any thread."""

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._end_s = None if limit_s is None else time.monotonic() + limit_s
        self._canceled = False

    def wait_s(self) -> float:
        """Seconds that are left, above 0."""
        return LONGEST_WAIT_S if self._end_s is None else max(self._end_s - time.monotonic(), 0.001)

    def passed(self) -> bool:
        return self._end_s is not None and time.monotonic() >= self._end_s

    def check(self) -> None:
        """Raise VideoError `timeout` if the moment has passed."""
        if self.passed():
            raise self.error()

    def cancel(self) -> None:
        """Make the moment pass now: nobody waits for the request any more."""
        self._canceled = True
        self._end_s = time.monotonic()

    def error(self) -> VideoError:
        """What a row says that was not done in time."""
        if self._canceled or self._limit_s is None:
            return VideoError("canceled", "request: it was canceled; send it again if it is still wanted")
        return VideoError("timeout", f"request: not done after {self._limit_s:g} s; ask for less in one request")


class ComputeLock:
    """A lock that threads get in the order in which they asked for it.

    Each thread holds it for one batch, so a short request waits for a batch of a long one and not for all of it. With
    `threading.Lock` the long one would usually take the lock again before the other thread wakes up.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Event] = deque()
        self._taken = False

    @contextmanager
    def hold(self, deadline: Deadline) -> Iterator[None]:
        """Hold the lock while the block runs. Raises VideoError `timeout` if the deadline passes before its turn comes."""
        deadline.check()
        if not self._acquire(deadline.wait_s()):
            raise deadline.error()
        try:
            yield
        finally:
            self._release()

    def _acquire(self, timeout_s: float) -> bool:
        with self._guard:
            if not self._taken:
                self._taken = True
                return True
            mine = threading.Event()
            self._waiting.append(mine)
        if mine.wait(timeout_s):
            return True
        with self._guard:
            if mine.is_set():  # the turn came in this moment
                return True
            self._waiting.remove(mine)
            return False

    def _release(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False
