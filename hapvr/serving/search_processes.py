"""The processes that answer the searches of the service: one that ends is replaced."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Pipe

from hapvr.errors import DamagedError, VideoError
from hapvr.scorer.access import Deadline
from hapvr.search.match import SearchAnswer
from hapvr.serving.collection import Collection
from hapvr.serving.jobs import Job
from hapvr.serving.search_process import (
    CANCEL,
    READY,
    Ended,
    ProcessPlan,
    Read,
    Took,
    Wanted,
    serve_searches,
)
from hapvr.serving.search_work import QuerySource
from hapvr.video.pool import killed_workers
from hapvr.workers import start_process

LOOK_EVERY_S = 0.1
"""How often it is looked whether a search is still wanted, and its process there."""

CANCEL_WITHIN_S = 30.0
"""A process that continues a canceled search for longer than this is killed."""

TRIES = 2
"""Of one search whose process ends."""

PAUSE_S = 1.0
"""Before a process is started in the place of one that has ended."""

_LOG = logging.getLogger(__name__)


class _ProcessEndedError(Exception):
    """A process has ended before its search had."""


class SearchProcess:
    """One process. A thread asks it, another waits for its end."""

    def __init__(self, plan: ProcessPlan) -> None:
        self._connection, theirs = Pipe()
        self._plan = plan
        self._process = start_process(serve_searches, theirs, num_processors=plan.num_processors)
        theirs.close()
        self._has_ended = threading.Event()
        self._has_opened = threading.Event()

    @property
    def is_ready(self) -> bool:
        """Whether it answers searches."""
        return self._has_opened.is_set() and not self.has_ended

    @property
    def has_ended(self) -> bool:
        return self._has_ended.is_set()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def wait_until_ready(self) -> bool:
        """Whether it has opened the index, or said why it cannot, before it ended."""
        try:
            self._connection.send(self._plan)
            if self._connection.recv() == READY:
                self._has_opened.set()
        except (EOFError, OSError):
            self._has_ended.set()

        return self.is_ready

    def is_idle(self) -> bool:
        """Whether it waits for a search: one that has ended can be heard, by the end of its
        connection."""
        return self.is_ready and not self._connection.poll()

    def wait(self) -> None:
        """Wait for its end."""
        self._process.join()
        self._has_ended.set()

    def kill(self) -> None:
        """End it at once."""
        self._has_ended.set()
        self._process.kill()

    def close(self) -> None:
        """Give its connection back, once it has ended and nobody asks it."""
        self._connection.close()

    def send(self, wanted: Wanted) -> bool:
        """Give it a search; False where it has ended."""
        try:
            self._connection.send(wanted)
        except OSError:
            self.kill()
            return False

        return True

    def answer(self, job: Job, *, took: Callable[[str, float], None]) -> SearchAnswer:
        """The answer of the search that it was sent. Raises what the search does, and
        _ProcessEndedError."""
        try:
            ended = self._follow(job, took)
        except (EOFError, OSError) as error:
            self.kill()
            raise _ProcessEndedError from error
        except BaseException:
            self.kill()  # the next search would take what it has still to say for its own answer
            raise

        killed_workers.update(ended.killed)
        if ended.answer is not None:
            return ended.answer
        job.deadline.check()  # it was told to cancel what took too long
        assert ended.error is not None
        raise ended.error

    def _follow(self, job: Job, took: Callable[[str, float], None]) -> Ended:
        """What it says at last of the search that it was sent."""
        kill_at_s: float | None = None
        while True:
            if self._connection.poll(LOOK_EVERY_S):
                message = self._connection.recv()
                if isinstance(message, Ended):
                    return message
                if isinstance(message, Read):
                    job.query = message.query
                elif isinstance(message, Took):
                    took(message.part, message.seconds)
            elif self.has_ended:
                raise EOFError

            if kill_at_s is None:
                if job.deadline.passed():
                    self._connection.send(CANCEL)
                    kill_at_s = time.monotonic() + CANCEL_WITHIN_S
            elif time.monotonic() >= kill_at_s:
                raise job.deadline.error()


class SearchProcesses:
    """Some processes, of which each answers one search at a time. Any thread may ask."""

    def __init__(
        self,
        plan: ProcessPlan,
        count: int,
        *,
        collection: Collection,
        took: Callable[[str, float], None],
    ) -> None:
        """plan: of each process.
        collection: of the service: what it knows to be damaged is not searched.
        took: is told how many seconds a part of a search took.
        """
        self._plan = plan
        self._collection = collection
        self._took = took
        self._closing = threading.Event()
        self._guard = threading.Lock()
        self._freed = threading.Condition(self._guard)
        self._present: set[SearchProcess] = set()
        self._free: deque[SearchProcess] = deque()
        self._asked: set[SearchProcess] = set()
        self._keepers = [
            threading.Thread(target=self._keep, name=f"search process {number}")
            for number in range(1, count + 1)
        ]
        self.num_replaced = 0
        """Processes that were started in the place of one that had ended."""

    @property
    def pids(self) -> list[int]:
        """Of the processes that answer or wait."""
        with self._guard:
            return [process.pid for process in self._present if not process.has_ended]

    @property
    def num_ready(self) -> int:
        """How many have opened the index, and are still there."""
        with self._guard:
            return sum(process.is_ready for process in self._present)

    def start(self) -> None:
        """Start all; searches wait for the first that is ready."""
        for keeper in self._keepers:
            keeper.start()

    def close(self) -> None:
        """End all processes and wait for that. A search that runs is canceled."""
        self._closing.set()
        with self._guard:
            for process in self._present:
                process.kill()

        for keeper in self._keepers:
            keeper.join()

    def answer(self, source: QuerySource, job: Job) -> SearchAnswer:
        """Answer a search in one of the processes, and in another one where that ends.

        Raises: what the search does, and VideoError `crashed` where the second ends as well.
        """
        num_ended = 0
        while num_ended < TRIES:
            with self._taken(job.deadline) as process:
                wanted = Wanted(
                    job=job.id,
                    name=job.name,
                    options=job.options,
                    source=source,
                    state=self._state(),  # of this moment: the search has waited for a process
                )
                if not process.send(wanted):
                    continue
                try:
                    return process.answer(job, took=self._took)
                except _ProcessEndedError:
                    _LOG.warning("process %d ended while it searched", process.pid)
                    num_ended += 1

        raise VideoError(
            "crashed",
            "search: the process that searched has ended, twice; it may need more memory than "
            "there is",
        )

    def _state(self) -> str:
        """Which version of the index counts. Raises DataError where it is damaged."""
        index = self._collection.current()
        if index.searcher.damage:
            index = self._collection.current(look=True)
        if index.searcher.damage:
            raise DamagedError(index.searcher.damage[0])
        return index.state

    @contextmanager
    def _taken(self, deadline: Deadline) -> Iterator[SearchProcess]:
        """A process for this search alone. Raises VideoError where the deadline passes
        before there is one."""
        with self._freed:
            process = self._next_idle()
            while process is None:
                if self._closing.is_set():
                    deadline.cancel()
                deadline.check()
                self._freed.wait(LOOK_EVERY_S)
                process = self._next_idle()

            self._asked.add(process)

        try:
            deadline.check()
            yield process
        finally:
            with self._freed:
                self._asked.remove(process)
                if process in self._present:
                    self._free.append(process)
                    self._freed.notify()
                else:
                    process.close()

    def _next_idle(self) -> SearchProcess | None:
        """A process that waits for a search; None where there is none. Those that have ended are
        passed over. Call it under the guard."""
        while self._free:
            process = self._free.popleft()
            if process.is_idle():
                return process
            process.kill()

        return None

    def _keep(self) -> None:
        """Keep one process running, whatever becomes of it."""
        replaces = False
        while not self._closing.is_set():
            try:
                self._run_once(replaces=replaces)
                replaces = True
            except OSError as error:
                _LOG.warning("no process can be started: %s", error)

            self._closing.wait(PAUSE_S)

    def _run_once(self, *, replaces: bool) -> None:
        """Start a process, offer it to searches, and wait for its end.

        replaces: whether it takes the place of one that has ended

        Raises: OSError where the system has no room for it.
        """
        with self._guard:
            if self._closing.is_set():
                return
            process = SearchProcess(self._plan)
            self._present.add(process)
            self.num_replaced += replaces

        if process.wait_until_ready():
            with self._freed:
                self._free.append(process)
                self._freed.notify()

        process.wait()
        self._remove(process)
        if not self._closing.is_set():
            _LOG.warning("process %d has ended; another one takes its place", process.pid)

    def _remove(self, process: SearchProcess) -> None:
        """Pass over a process that has ended."""
        with self._guard:
            self._present.remove(process)
            if process in self._free:
                self._free.remove(process)
            if process not in self._asked:
                process.close()
