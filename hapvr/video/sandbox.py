"""A process for one untrusted file: it can read that file and Python's libraries and answer through
a pipe, no more.

Landlock (Linux 5.13) takes away every other file and all writing. A seccomp filter takes away
sockets, programs, other processes and whatever is younger than Linux 5.0, for which libraries have
an older way. Both need no privilege and cannot be undone. What is left: names, sizes and dates of
files can be looked up, and the answer can be a lie.
"""

import contextlib
import ctypes
import errno
import fcntl
import gc
import itertools
import math
import os
import selectors
import signal
import struct
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBRARIES = frozenset(
    map(Path, map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
)
"""Folders of Python and its packages, parts of which are loaded when they are first needed."""

_KEPT_MEMORY = ((-1, 1 << 30), (-2, 1 << 24), (-3, 1 << 25))
"""Options of glibc's mallopt: freed memory is used again, as each new page costs a process that
ends soon a fault."""

_ANSWER_FILE = 3
_REPORT_FILE = 4
"""Numbers of the two pipes in a copy."""
_REPORT = "=d"
_REPORT_BYTES = struct.calcsize(_REPORT)
_LOOK_EVERY_S = 0.5
"""How often the bytes that a silent copy reads are looked at."""
_READ_SLACK_BYTES = 1 << 26
"""Libraries that are loaded, and heads of files that are read again."""

# linux/landlock.h, linux/prctl.h
_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_ABI_OF_KERNEL = 1
_PATH_BENEATH = 1
_READ_FILE = 1 << 2
_READ_FOLDER = 1 << 3
_RULESETS = ((13, 8), (14, 8), (15, 8), (15, 16), (16, 16), (16, 24))
"""Of ABI 1, 2, ...: kinds of access to files, and size of the head, which from 4 on has TCP and
from 6 on signals to others."""
_SET_DEATH_SIGNAL = 1
_GET_SECCOMP = 21
_SET_SECCOMP = 22
_SET_NO_NEW_PRIVILEGES = 38

# linux/filter.h, linux/seccomp.h
_LOAD = 0x20
_IF_EQUAL = 0x15
_IF_ABOVE = 0x25
_IF_AT_LEAST = 0x35
_IF_ANY_BIT = 0x45
_RETURN = 0x06
_NUMBER = 0
_ARCHITECTURE = 4
_FLAGS = 16
_FILTER_MODE = 2
_CLONE_THREAD = 0x10000
_ALLOW = 0x7FFF0000
_DIE = 0x80000000
_REFUSE = 0x00050000 | errno.ENOSYS
"""Libraries then try older calls."""

_MACHINE = "x86_64"
"""The machine whose system calls are listed here."""
_MACHINE_NUMBER = 0xC000003E
"""Its number in linux/audit.h."""
_CLONE = 56
"""It may make threads only."""
_REFUSED_CALLS = (
    # shared memory; sockets; fork, execve; kill; semaphores
    (29, 31),
    (41, 55),
    (57, 59),
    (62, 62),
    (64, 71),
    # truncate; rename to symlink; chmod, chown; ptrace
    (76, 77),
    (82, 88),
    (90, 94),
    (101, 101),
    (103, 103),
    # signals; utime, mknod; mount; attributes; tkill
    (129, 129),
    (132, 136),
    (153, 156),
    (159, 185),
    (187, 200),
    # aio; clocks; tgkill, queues, keys; mkdirat ...
    (205, 210),
    (227, 227),
    (234, 256),
    (258, 261),
    (263, 266),
    # fchmodat; unshare; accept4; perf to setns
    (268, 268),
    (272, 272),
    (278, 280),
    (288, 288),
    (297, 308),
    # memory of other processes; memfd, bpf, execveat, userfaultfd; what is younger
    (310, 317),
    (319, 323),
    (424, 0xFFFFFFFF),
)


def missing_protection() -> str:
    """What this system lacks and what that allows, in words; "" if nothing is missing."""
    missing = []
    if _landlock_abi() < 1:
        missing.append("Landlock (Linux 5.13), so it could read and write files")
    if os.uname().machine != _MACHINE or _LIBC.prctl(_GET_SECCOMP, 0, 0, 0, 0) < 0:
        missing.append("seccomp (Linux on x86-64), so it could use the network and start programs")
    return " and ".join(missing)


def call_confined(
    function: Callable[[], bytes],
    *,
    readable: Path,
    alive: Callable[[float | None], None] = lambda _: None,
) -> bytes:
    """function(), called in a copy of this process that `confine` has closed in, and that dies with
    this one.

    The copy has no open files but two pipes, no environment variables, and no other threads: a lock
    that one of them held stays locked, so processes with threads at work ask a worker of
    `hapvr.video.pool` to call this. alive: is called whenever the copy gets on, with the seconds
    that it passed to `report`, or with None where it answered or read bytes. Raises RuntimeError
    with the reason if the function raises or the copy dies."""
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
        _LIBC.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        _keep_pipes(*pipes)
        # a collection would touch, and so copy, most of the memory that is shared with the worker
        gc.disable()
        _forget_environment()
        for option in _KEPT_MEMORY if hasattr(_LIBC, "mallopt") else ():
            _LIBC.mallopt(*option)
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
    """All that comes from a copy until it closes its pipe."""
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
    """The copy may lie: anything but a number counts as none."""
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


def confine(readable: Path) -> None:
    """Take away from this process, for good, all that it does not need to read one file, as far as
    the system can do so. Raises OSError if the system refuses what it offers."""
    _checked(_LIBC.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    if (abi := _landlock_abi()) >= 1:
        num_rights, size = _RULESETS[min(abi, len(_RULESETS)) - 1]
        everything = struct.pack("=QQQ", (1 << num_rights) - 1, 3, 3)[:size]
        rules = _checked(_LIBC.syscall(_CREATE_RULESET, everything, ctypes.c_size_t(size), 0))
        for path in (readable, *_LIBRARIES):
            place = os.open(path, os.O_PATH)
            access = _READ_FILE | (_READ_FOLDER if path in _LIBRARIES else 0)
            _checked(
                _LIBC.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", access, place), 0)
            )
            os.close(place)

        _checked(_LIBC.syscall(_RESTRICT_SELF, rules, 0))
        os.close(rules)

    if os.uname().machine == _MACHINE:
        # instructions (code, steps if true, steps if false, operand) of the classic BPF
        steps = [
            (_LOAD, 0, 0, _ARCHITECTURE),
            (_IF_EQUAL, 1, 0, _MACHINE_NUMBER),
            (_RETURN, 0, 0, _DIE),
        ]
        steps += [(_LOAD, 0, 0, _NUMBER)]
        for first, last in _REFUSED_CALLS:
            steps += [
                (_IF_AT_LEAST, 0, 2, first),
                (_IF_ABOVE, 1, 0, last),
                (_RETURN, 0, 0, _REFUSE),
            ]

        steps += [
            (_IF_EQUAL, 0, 3, _CLONE),
            (_LOAD, 0, 0, _FLAGS),
            (_IF_ANY_BIT, 1, 0, _CLONE_THREAD),
        ]
        steps += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
        program = b"".join(struct.pack("=HBBI", *step) for step in steps)
        buffer = ctypes.create_string_buffer(program)
        head = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
        _checked(_LIBC.prctl(_SET_SECCOMP, _FILTER_MODE, head, 0, 0))


def _forget_environment() -> None:
    """Overwrite the environment variables, which may be passwords, where Python and the C library
    keep them."""
    block = ctypes.POINTER(ctypes.c_void_p).in_dll(_LIBC, "environ")
    for address in itertools.takewhile(bool, map(block.__getitem__, itertools.count())):
        ctypes.memset(address, 0, len(ctypes.string_at(address)))
    for value in os.environb.values():
        if len(value) > 1:  # shorter ones are shared with other uses
            ctypes.memset(id(value) + bytes.__basicsize__ - 1, 0, len(value))

    os.environ.clear()


def _landlock_abi() -> int:
    return int(_LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ABI_OF_KERNEL))


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(
            ctypes.get_errno(), f"cannot confine this process: {os.strerror(ctypes.get_errno())}"
        )
    return result
