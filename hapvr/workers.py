"""Worker processes with limits."""

import contextlib
import importlib
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from pickle import PicklingError
from typing import Any, TypeVar

from pebble import ProcessExpired, ProcessPool

from hapvr.errors import DataError
from hapvr.processors import prepare_program, use_processors

Result = TypeVar("Result")


@contextlib.contextmanager
def open_pool(
    *, workers: int, limits: Mapping[int, int], prepare: Callable[[], None] | None = None
) -> Iterator[ProcessPool]:
    """Worker processes with limits, which end with this block and with this process; they start
    when work comes.

    limits: kind of resource (resource.RLIMIT_...) -> most that a worker may take of it. prepare:
    called first in each worker. Workers do not import the program's main module: a script that
    decodes videos needs no `__main__` guard, and a program that loads networks does not load them
    in each worker.

    Raises:
        DataError: where this account may not run the interpreter.
    """
    _require_interpreter()
    with ProcessPool(
        max_workers=workers,
        initializer=_prepare_worker,
        initargs=({**limits, resource.RLIMIT_CORE: 0}, os.getpid(), prepare),
        context=_WorkerContext(),
    ) as pool:
        try:
            yield pool
        finally:
            pool.stop()  # type: ignore[no-untyped-call]


def _require_interpreter() -> None:
    """Raise DataError where no process can be started: its end before it has begun is not told to
    who waits for it."""
    if not os.access(sys.executable, os.X_OK):
        raise DataError(
            f"processes: this account may not run {sys.executable}, which decodes videos; install "
            "Python and this program where the account may read and run them"
        )


MAX_BYTECODE_BYTES = 1 << 24
"""More than the bytecode of any module: a worker whose limit of file size is below that writes
none, as other processes would read what is left of it."""
LIMIT_ERRORS = (ProcessExpired, TimeoutError, MemoryError, PicklingError)
"""What a pool raises where a process ended or reached a limit; Rust panics cannot be pickled."""


def call_limited(
    function: Callable[[Path], Result], path: Path, *, memory_bytes: int, timeout_s: float
) -> Result:
    """function(path) in a process with these limits, which prints nothing to standard error. Raises
    what the function raises, and ValueError where the process needs more or ends."""
    with open_pool(workers=1, limits={resource.RLIMIT_AS: memory_bytes}, prepare=_mute) as pool:
        try:
            return pool.schedule(function, args=(path,), timeout=timeout_s).result()
        except LIMIT_ERRORS as error:
            raise ValueError(
                f"it takes more than {memory_bytes} bytes of memory or {timeout_s:g} s, "
                "or ends its process"
            ) from error


def _mute() -> None:
    """Rust reports on standard error that memory is exhausted."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def start_process(
    function: Callable[[Connection], None], connection: Connection, *, num_processors: int
) -> SpawnProcess:
    """A process that calls a function of a module, and ends with this one at the latest. Only this
    process ends it: what a terminal or an init system sends to all processes at once is passed
    over.

    connection: what else the function needs comes through it
    num_processors: how many it computes with
    """
    _require_interpreter()
    place = (function.__module__, function.__name__)
    process = _WorkerProcess(target=_call, args=(os.getpid(), num_processors, place, connection))
    process.start()
    return process


def _call(
    parent_pid: int, num_processors: int, place: tuple[str, str], connection: Connection
) -> None:
    """Runs in a process of `start_process`, in which nothing heavy was imported yet.

    place: module and name of the function
    """
    # Not SIG_IGN, which processes that this one starts would inherit.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: None)
    _prepare_worker({resource.RLIMIT_CORE: 0}, parent_pid, None)
    use_processors(num_processors)
    module, name = place
    getattr(importlib.import_module(module), name)(connection)


class _WorkerProcess(SpawnProcess):
    """A fresh Python that does not run the program's main module again."""

    _starting = threading.Lock()

    def start(self) -> None:
        main = sys.modules["__main__"]
        with _WorkerProcess._starting:
            # what `multiprocessing` tells a new process to run
            hidden = {name: main.__dict__.pop(name, None) for name in ("__spec__", "__file__")}
            main.__spec__ = None
            try:
                super().start()
            finally:
                main.__dict__.update(
                    {name: value for name, value in hidden.items() if name == "__spec__" or value}
                )


class _WorkerContext(SpawnContext):
    """Starts `_WorkerProcess` and keeps its locks until the last process has ended. A pool gives up
    its locks before it ends its processes; one that was still starting would not find them and
    complain."""

    Process = _WorkerProcess

    def __init__(self) -> None:
        self._locks: list[Any] = []

    def RLock(self) -> Any:
        lock = super().RLock()
        self._locks.append(lock)
        return lock


def _prepare_worker(
    limits: Mapping[int, int], parent_pid: int, prepare: Callable[[], None] | None
) -> None:
    prepare_program()
    for kind, wanted in limits.items():
        given = [value for value in resource.getrlimit(kind) if value != resource.RLIM_INFINITY]
        resource.setrlimit(kind, (min([wanted, *given]), min([wanted, *given])))

    most_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if most_bytes != resource.RLIM_INFINITY and most_bytes < MAX_BYTECODE_BYTES:
        sys.dont_write_bytecode = True

    def die_with_parent() -> (
        None
    ):  # a worker that is stuck in a decoder never reads its closed pipe
        while os.getppid() == parent_pid:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=die_with_parent, daemon=True).start()
    if prepare is not None:
        prepare()
