"""The processes that answer the searches of the service: each is started anew where it ends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from queue import Empty, SimpleQueue

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
"""A process that goes on for longer with a search that nobody waits for is killed."""

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
        self._process = start_process(serve_searches, theirs, plan)
        theirs.close()
        self._has_ended = threading.Event()

    @property
    def has_ended(self) -> bool:
        return self._has_ended.is_set()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def wait_until_ready(self) -> bool:
        """Whether it has opened the index, or said why it cannot, before it ended."""
        try:
            return bool(self._connection.recv() == READY)
        except (EOFError, OSError):
            return False

    def wait(self) -> None:
        """Wait for its end."""
        self._process.join()
        self._has_ended.set()

    def kill(self) -> None:
        """End it at once."""
        self._has_ended.set()
        self._process.kill()

    def answer(
        self, wanted: Wanted, job: Job, *, took: Callable[[str, float], None]
    ) -> SearchAnswer:
        """The answer of a search. Raises what the search does, and _ProcessEndedError."""
        try:
            self._connection.send(wanted)
            ended = self._follow(job, took)
        except (EOFError, OSError) as error:
            self._has_ended.set()
            raise _ProcessEndedError from error

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
                self.kill()
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
        self._free: SimpleQueue[SearchProcess] = SimpleQueue()
        self._closing = threading.Event()
        self._guard = threading.Lock()
        self._present: set[SearchProcess] = set()
        self._keepers = [
            threading.Thread(target=self._keep, name=f"search process {number}")
            for number in range(1, count + 1)
        ]
        self.has_opened = threading.Event()
        """That one of them is ready to answer, or was."""
        self.num_replaced = 0
        """Processes that were started in the place of one that had ended."""

    @property
    def pids(self) -> list[int]:
        """Of the processes that answer or wait."""
        with self._guard:
            return [process.pid for process in self._present if not process.has_ended]

    def start(self) -> None:
        """Start all; searches wait for the first that is ready."""
        for keeper in self._keepers:
            keeper.start()

    def close(self) -> None:
        """End all processes and wait for that. No search may run any more."""
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
        wanted = Wanted(
            job=job.id,
            name=job.name,
            options=job.options,
            source=source,
            state=self._state(),
        )
        for _ in range(TRIES):
            process = self._take(job.deadline)
            try:
                return process.answer(wanted, job, took=self._took)
            except _ProcessEndedError:
                _LOG.warning("process %d ended while it searched", process.pid)
            finally:
                self._free.put(process)

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

    def _take(self, deadline: Deadline) -> SearchProcess:
        """A process that does nothing. Raises VideoError where the deadline passes before."""
        while True:
            deadline.check()
            with suppress(Empty):
                process = self._free.get(timeout=LOOK_EVERY_S)
                if not process.has_ended:
                    return process

    def _keep(self) -> None:
        """Keep one process running, whatever becomes of it."""
        while not self._closing.is_set():
            try:
                self._run_once()
            except OSError as error:
                _LOG.warning("no process can be started: %s", error)

            if not self._closing.wait(PAUSE_S):
                with self._guard:
                    self.num_replaced += 1

    def _run_once(self) -> None:
        """Start a process, offer it to searches, and wait for its end. Raises OSError where the
        system has no room for it."""
        with self._guard:
            if self._closing.is_set():
                return
            process = SearchProcess(self._plan)
            self._present.add(process)

        if process.wait_until_ready():
            self.has_opened.set()
            self._free.put(process)

        process.wait()
        with self._guard:
            self._present.remove(process)
        if not self._closing.is_set():
            _LOG.warning("process %d has ended; another one takes its place", process.pid)
