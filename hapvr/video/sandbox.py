"""A process for one untrusted file: it can read that file and Python's libraries and answer through
a pipe, no more.

It is a copy of the process that asks, closed in by `hapvr.video.confinement`. Its answer may be a
lie, and its readers know that.
"""

import contextlib
import ctypes
import fcntl
import gc
import itertools
import math
import os
import selectors
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from hapvr.video.confinement import LIBC, confine

_KEPT_MEMORY = ((-1, 1 << 30), (-2, 1 << 24), (-3, 1 << 25))
"""Options of glibc's mallopt, by which freed memory is used again: each new page costs a fault,
which does not pay in a process that ends soon."""

_ANSWER_FILE = 3
_REPORT_FILE = 4
"""Numbers of the two pipes in a copy."""
_REPORT = "=d"
_REPORT_BYTES = struct.calcsize(_REPORT)
_LOOK_EVERY_S = 0.5
"""How often to look at the number of bytes that a silent copy has read."""
_READ_SLACK_BYTES = 1 << 26
"""What a copy may read besides its file: libraries, and the heads of files once more."""

_SET_DEATH_SIGNAL = 1


def call_confined(
    function: Callable[[], bytes],
    *,
    readable: Path,
    alive: Callable[[float | None], None] = lambda _: None,
) -> bytes:
    """The result of `function`, called in a copy of this process that `confine` has closed in, and
    that dies with this one.

    The copy has no open files but two pipes, no environment variables, and no other threads: a lock
    that one of them held stays locked, so processes with threads at work ask a worker of
    `hapvr.video.pool` to call this.

    alive: called whenever the copy gets on, with the seconds that it passed to `report`, or with
        None where it answered or read bytes

    Raises: RuntimeError with the reason if the function raises or the copy dies.
    """
    own_pid = os.getpid()
    file_bytes = os.stat(readable).st_size
    receiving, sending = os.pipe()
    reported, reporting = os.pipe()
    pid = os.fork()
    if pid == 0:
        _answer_confined(function, readable, (sending, reporting), own_pid)
    os.close(sending)
    os.close(reporting)
    try:
        answer = _await_answer(pid, receiving, reported, file_bytes, alive)
    finally:
        os.close(receiving)
        os.close(reported)

    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        if status < 0:
            raise RuntimeError(f"the decoding process died of signal {-status}")
        raise RuntimeError(answer.decode(errors="backslashreplace"))

    return answer


def report(seconds: float) -> None:
    """Tell the process that called `call_confined` how far this copy of it is. Elsewhere it does
    nothing."""
    if _copy.reporting is None:
        return
    with contextlib.suppress(OSError):  # the reader is slow, or gone: this report is dropped
        os.write(_copy.reporting, struct.pack(_REPORT, seconds))


class _Copy:
    """Whether this process is a copy that `call_confined` made."""

    reporting: int | None = None


_copy = _Copy()


def _answer_confined(
    function: Callable[[], bytes], readable: Path, pipes: tuple[int, int], parent_pid: int
) -> NoReturn:
    """The life of the copy."""
    failed = True
    answer = b""
    try:
        LIBC.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        _keep_pipes(*pipes)
        # a collection would touch, and so copy, most of the memory that is shared with the worker
        gc.disable()
        _forget_environment()
        for option in _KEPT_MEMORY if hasattr(LIBC, "mallopt") else ():
            LIBC.mallopt(*option)
        if os.getppid() == parent_pid:
            confine(readable)
            answer = function()
            failed = False
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}".encode(errors="backslashreplace")
    finally:
        with contextlib.suppress(BaseException), open(_ANSWER_FILE, "wb") as pipe:
            pipe.write(answer)
        os._exit(failed)


def _keep_pipes(sending: int, reporting: int) -> None:
    """Close all files of the copy but its two pipes, which get fixed numbers."""
    # first away from the numbers that are filled next
    sending = fcntl.fcntl(sending, fcntl.F_DUPFD, _REPORT_FILE + 1)
    reporting = fcntl.fcntl(reporting, fcntl.F_DUPFD, _REPORT_FILE + 1)
    os.dup2(sending, _ANSWER_FILE)
    os.dup2(reporting, _REPORT_FILE)
    os.set_blocking(_REPORT_FILE, False)
    _copy.reporting = _REPORT_FILE
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    os.closerange(_REPORT_FILE + 1, os.sysconf("SC_OPEN_MAX"))


def _await_answer(
    pid: int,
    receiving: int,
    reported: int,
    file_bytes: int,
    alive: Callable[[float | None], None],
) -> bytes:
    """Everything that a copy sends until it closes its pipe."""
    parts: list[bytes] = []
    read_before = read_at_report = 0
    with selectors.DefaultSelector() as pipes:
        pipes.register(receiving, selectors.EVENT_READ)
        pipes.register(reported, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in pipes.select(timeout=_LOOK_EVERY_S)}
            if reported in ready:
                data = os.read(reported, _REPORT_BYTES * 4096)
                if data:
                    alive(_last_report(data))
                    read_at_report = read_before
                else:
                    pipes.unregister(reported)

            if receiving in ready:
                data = os.read(receiving, 1 << 20)
                if not data:
                    return b"".join(parts)
                parts.append(data)
                alive(None)

            if not ready:
                read = _bytes_read(pid)
                # reading the file twice without a picture is not progress
                if read_before < read <= read_at_report + 2 * file_bytes + _READ_SLACK_BYTES:
                    alive(None)
                read_before = read


def _last_report(data: bytes) -> float | None:
    """The newest seconds of a report, None for none. The copy may lie: anything but a number counts
    as none."""
    if len(data) < _REPORT_BYTES:
        return None
    (seconds,) = struct.unpack(_REPORT, data[-_REPORT_BYTES:])
    return float(seconds) if math.isfinite(seconds) else None


def _bytes_read(pid: int) -> int:
    """How much a process has read from files so far; 0 where the system does not say."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/io", "rb") as counts:
        for line in counts:
            if line.startswith(b"rchar:"):
                return int(line.split()[1])
    return 0


def _forget_environment() -> None:
    """Overwrite the environment variables, which may be passwords, where Python and the C library
    keep them."""
    block = ctypes.POINTER(ctypes.c_void_p).in_dll(LIBC, "environ")
    for address in itertools.takewhile(bool, map(block.__getitem__, itertools.count())):
        ctypes.memset(address, 0, len(ctypes.string_at(address)))
    for value in os.environb.values():
        if len(value) > 1:  # shorter ones are shared with other uses
            ctypes.memset(id(value) + bytes.__basicsize__ - 1, 0, len(value))

    os.environ.clear()
