"""Workers that are kept for a while after their work, since starting one takes half a second of
processor time.

A caller gets idle workers or new ones, which nobody else uses meanwhile. Workers that are given
back with unfinished work, as by a caller that stopped early, end at once.
"""

import atexit
import contextlib
import functools
import os
import resource
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pebble import ProcessFuture

from hapvr.video.heartbeat import BeatReader, connect
from hapvr.workers import open_pool

IDLE_S = 60.0
"""Workers that have had no work for so long are ended."""
MAX_IDLE = 2
"""How many groups of workers may be idle at once; if there are more, the oldest is ended."""


def _working_directory() -> str:
    """The working directory of this process; "" where it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


@dataclass(frozen=True)
class WorkerKind:
    """What workers must have in common to replace each other."""

    num_workers: int
    memory_bytes: int
    file_limit: tuple[int, int] = field(
        default_factory=functools.partial(resource.getrlimit, resource.RLIMIT_FSIZE)
    )
    """the largest file that this process may write, in bytes; its workers inherit this"""
    directory: str = field(default_factory=_working_directory)
    """where relative paths start from; its workers inherit this"""


class Workers:
    """Processes with limited memory, and their reports."""

    def __init__(self, kind: WorkerKind) -> None:
        self.kind = kind
        self._stack = contextlib.ExitStack()
        self.beats = self._stack.enter_context(BeatReader())
        self._pool = self._stack.enter_context(
            open_pool(
                workers=kind.num_workers,
                limits={resource.RLIMIT_AS: kind.memory_bytes},
                prepare=functools.partial(connect, self.beats.sending),
            )
        )
        # Weak references: the results of what is done may be large.
        self._futures = weakref.WeakSet[ProcessFuture[Any]]()

    def schedule(self, function: Callable[[Any], Any], item: Any) -> ProcessFuture[Any]:
        future = self._pool.schedule(function, args=(item,))
        self._futures.add(future)
        return future

    def are_idle(self) -> bool:
        """Whether they are alive and have nothing to do."""
        return self._pool.active and all(future.done() for future in self._futures)

    def end(self) -> None:
        self._stack.close()


class _Shelf:
    """Idle workers of this process, in the order in which they became idle."""

    def __init__(self) -> None:
        # Iterators that are not read to their end give back their workers when they are garbage
        # collected, which may be while this thread holds the lock.
        self._lock = threading.RLock()
        self._timers: dict[Workers, threading.Timer] = {}
        # Workers must not be garbage themselves then: their pipes would be closed before.
        self._lent: set[Workers] = set()

    def lend(self, kind: WorkerKind) -> Workers:
        """Workers of this kind, idle ones or new ones."""
        workers = self._take(kind) or Workers(kind)
        self._lent.add(workers)
        return workers

    def give_back(self, workers: Workers) -> None:
        """Keep idle workers, and end those with unfinished work."""
        self._lent.discard(workers)
        if workers.are_idle():
            self._keep(workers)
        else:
            workers.end()

    def _take(self, kind: WorkerKind) -> Workers | None:
        with self._lock:
            workers = next((each for each in reversed(self._timers) if each.kind == kind), None)
            if workers is None:
                return None
            self._timers.pop(workers).cancel()

        if workers.are_idle():
            return workers
        workers.end()  # one of them was killed meanwhile
        return None

    def _keep(self, workers: Workers) -> None:
        """Let workers wait for more work, for IDLE_S."""
        timer = threading.Timer(IDLE_S, self._end, (workers,))
        timer.daemon = True
        with self._lock:
            self._timers[workers] = timer
            oldest = next(iter(self._timers)) if len(self._timers) > MAX_IDLE else None

        timer.start()
        if oldest is not None:
            self._end(oldest)

    def end_all(self) -> None:
        """End all workers that are idle."""
        for workers in list(self._timers):
            self._end(workers)

    def _end(self, workers: Workers) -> None:
        with self._lock:
            timer = self._timers.pop(workers, None)
        if timer is not None:  # if not, somebody else took them or ended them
            timer.cancel()
            workers.end()


_shelves = [_Shelf()]
"""The last shelf is that of this process. A forked process keeps the shelves of its parent, whose
workers are not its own: it neither uses nor ends them."""
os.register_at_fork(after_in_child=lambda: _shelves.append(_Shelf()))


@atexit.register
def end_idle_workers() -> None:
    """End the workers that wait for work; this process does so by itself when it ends."""
    _shelves[-1].end_all()


@contextlib.contextmanager
def borrowed_workers(kind: WorkerKind) -> Iterator[Workers]:
    """Workers that nobody else has. They are ended with the block if it leaves them with unfinished
    work."""
    shelf = _shelves[-1]
    workers = shelf.lend(kind)
    workers.beats.words()  # those of the work before
    try:
        yield workers
    finally:
        shelf.give_back(workers)
