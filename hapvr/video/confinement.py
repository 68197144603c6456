"""Closing in a process for good, so that it can read one file and the libraries of Python, no more.

Landlock (Linux 5.13) takes away every other file and all writing. A seccomp filter takes away
sockets, programs, other processes and whatever is younger than Linux 5.0, for which libraries have
an older way. Both need no privilege and cannot be undone. What is left: names, sizes and dates of
files can be looked up.
"""

import ctypes
import errno
import os
import struct
import sysconfig
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
_LIBRARIES = frozenset(
    map(Path, map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
)
"""Folders of Python and its packages, parts of which are loaded when they are first needed."""

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
    if os.uname().machine != _MACHINE or LIBC.prctl(_GET_SECCOMP, 0, 0, 0, 0) < 0:
        missing.append("seccomp (Linux on x86-64), so it could use the network and start programs")
    return " and ".join(missing)


def confine(readable: Path) -> None:
    """Take away from this process, for good, all that it does not need to read one file, as far as
    the system can do so. Raises OSError if the system refuses what it offers."""
    _checked(LIBC.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    abi = _landlock_abi()
    if abi >= 1:
        _close_other_files(readable, abi)
    if os.uname().machine == _MACHINE:
        _filter_calls()


def _close_other_files(readable: Path, abi: int) -> None:
    """Leave one file and the libraries readable, by Landlock."""
    num_rights, size = _RULESETS[min(abi, len(_RULESETS)) - 1]
    everything = struct.pack("=QQQ", (1 << num_rights) - 1, 3, 3)[:size]
    rules = _checked(LIBC.syscall(_CREATE_RULESET, everything, ctypes.c_size_t(size), 0))
    for path in (readable, *_LIBRARIES):
        place = os.open(path, os.O_PATH)
        access = _READ_FILE | (_READ_FOLDER if path in _LIBRARIES else 0)
        rule = struct.pack("=Qi", access, place)
        _checked(LIBC.syscall(_ADD_RULE, rules, _PATH_BENEATH, rule, 0))
        os.close(place)

    _checked(LIBC.syscall(_RESTRICT_SELF, rules, 0))
    os.close(rules)


def _filter_calls() -> None:
    """Refuse system calls by seccomp."""
    program = _filter_program()
    buffer = ctypes.create_string_buffer(program)
    head = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    _checked(LIBC.prctl(_SET_SECCOMP, _FILTER_MODE, head, 0, 0))


def _filter_program() -> bytes:
    """The filter: instructions (code, steps if true, steps if false, operand) of the classic BPF,
    of 8 bytes each."""
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IF_EQUAL, 1, 0, _MACHINE_NUMBER),
        (_RETURN, 0, 0, _DIE),
        (_LOAD, 0, 0, _NUMBER),
    ]
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
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _landlock_abi() -> int:
    return int(LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ABI_OF_KERNEL))


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(
            ctypes.get_errno(), f"cannot confine this process: {os.strerror(ctypes.get_errno())}"
        )
    return result
