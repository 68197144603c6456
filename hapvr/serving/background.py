"""Work in the background: taking in new files, and running the watch
lists. One kind at a time, each with how far it is."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime

from pydantic import BaseModel

from hapvr.progress import Progress, seconds_left
from hapvr.scorer.access import Deadline
from hapvr.serving.refusals import describe


class WorkState(BaseModel):
    """How far work is. doing: in words. done, total: files or queries of what is being done. file:
    which one is being read, and how far.

    left_s: estimated time left; None while there is no estimate. ended: when the last attempt
    did, ISO 8601, UTC. error: why it failed."""

    running: bool = False
    doing: str = ""
    done: int = 0
    total: int = 0
    file: str = ""
    left_s: float | None = None
    ended: str = ""
    error: str = ""


class _PartProgress:
    """The `Progress` of a part of the work."""

    def __init__(self, state: WorkState, end: Deadline, doing: str) -> None:
        self._state = state
        self._end = end
        self._begun_s = time.monotonic()
        state.doing = doing
        state.done = 0
        state.total = 0
        state.file = ""
        state.left_s = None

    def __call__(self, done: int, total: int) -> None:
        self._end.check()
        self._state.done = done
        self._state.total = total
        self._state.left_s = seconds_left(time.monotonic() - self._begun_s, done, total)

    def doing(self, words: str) -> None:
        """Show which file is being read, and how far it is."""
        self._state.file = words


class Work:
    """Runs one piece of work at a time, in a thread."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._end = Deadline(None)
        self._guard = threading.Lock()
        self._wanted_again = False
        self.state = WorkState()

    def start(self, work: Callable[["Work"], object], *, again: bool = False) -> WorkState:
        """Begin, unless it is under way. again: once more then, at its end: something came that it
        may have passed."""
        with self._guard:
            if self.state.running:
                self._wanted_again = self._wanted_again or again
                return self.state

            self.state = WorkState(running=True)

        self._pool.submit(self._run, work)
        return self.state

    @contextmanager
    def bar(self, doing: str) -> Iterator[Progress]:
        """Shows the progress of a part of the work."""
        self._end.check()
        yield _PartProgress(self.state, self._end, doing)

    def close(self) -> None:
        """End it and wait for that; what is finished stays."""
        self._end.cancel()
        self._pool.shutdown()

    def _run(self, work: Callable[["Work"], object]) -> None:
        while True:
            self.state.error = ""
            try:
                work(self)
            except BaseException as error:  # Rust's PanicException is not an Exception
                self.state.error = describe(error)[1]["error"]

            with self._guard:
                if not self._wanted_again:
                    self.state.ended = datetime.now(UTC).isoformat(timespec="seconds")
                    self.state.running = False
                    return

                self._wanted_again = False
