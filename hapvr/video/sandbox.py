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
import gc
import itertools
import os
import signal
import struct
import sysconfig
from collections.abc import Callable
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBRARIES = frozenset(
    map(Path, map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
)
"""Folders of Python and its packages, parts of which are loaded when they are first needed."""

_KEPT_MEMORY = ((-1, 1 << 30), (-2, 1 << 24), (-3, 1 << 25))
"""Options of glibc's mallopt: freed memory is used again, as each new page costs a process that
ends soon a fault."""

# linux/landlock.h, linux/prctl.h
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ABI_OF_KERNEL, _PATH_BENEATH, _READ_FILE, _READ_FOLDER = 1, 1, 1 << 2, 1 << 3
_RULESETS = ((13, 8), (14, 8), (15, 8), (15, 16), (16, 16), (16, 24))
"""Of ABI 1, 2, ...: kinds of access to files, and size of the head, which from 4 on has TCP and
from 6 on signals to others."""
_SET_DEATH_SIGNAL, _GET_SECCOMP, _SET_SECCOMP, _SET_NO_NEW_PRIVILEGES = 1, 21, 22, 38

# linux/filter.h, linux/seccomp.h
_LOAD, _IF_EQUAL, _IF_ABOVE, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FLAGS, _FILTER_MODE, _CLONE_THREAD = 0, 4, 16, 2, 0x10000
_ALLOW, _DIE, _REFUSE = (
    0x7FFF0000,
    0x80000000,
    0x00050000 | errno.ENOSYS,
)  # libraries then try older calls

_MACHINE, _MACHINE_NUMBER, _CLONE = "x86_64", 0xC000003E, 56
"""The machine whose system calls are listed here, its number in linux/audit.h, and its clone, which
may make threads only."""
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


def call_confined(function: Callable[[], bytes], *, readable: Path) -> bytes:
    """function(), called in a copy of this process that `confine` has closed in, and that dies with
    this one.

    The copy has no open files but one pipe, no environment variables, and no other threads: a lock
    that one of them held stays locked, so processes with threads at work ask a worker of
    `hapvr.video.pool` to call this. Raises RuntimeError with the reason if the function raises or
    the copy dies."""
    own_pid = os.getpid()
    receiving, sending = os.pipe()
    if (pid := os.fork()) == 0:
        failed, answer = True, b""
        try:
            _LIBC.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
            os.dup2(sending, 3)
            nothing = os.open(os.devnull, os.O_RDWR)
            for standard in range(3):
                os.dup2(nothing, standard)
            # a collection would touch, and so copy, most of the memory that is shared with the
            # worker
            gc.disable()
            os.closerange(4, os.sysconf("SC_OPEN_MAX"))
            _forget_environment()
            for option in _KEPT_MEMORY if hasattr(_LIBC, "mallopt") else ():
                _LIBC.mallopt(*option)
            if os.getppid() == own_pid:
                confine(readable)
                answer, failed = function(), False
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}".encode(errors="backslashreplace")
        finally:
            with contextlib.suppress(BaseException), open(3, "wb") as pipe:
                pipe.write(answer)
            os._exit(failed)
    os.close(sending)
    with open(receiving, "rb") as pipe:
        answer = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        said = answer.decode(errors="backslashreplace")
        raise RuntimeError(said if status > 0 else f"the decoding process died of signal {-status}")
    return answer


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
