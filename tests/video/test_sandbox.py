"""What a process that decodes a hostile file can still do once the file has taken it over: next to
nothing."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from hapvr.errors import VideoError
from hapvr.video.confinement import missing_protection
from hapvr.video.kept_workers import end_idle_workers
from hapvr.video.pool import in_workers
from hapvr.video.sampling import sample_frames
from hapvr.video.sandbox import call_confined
from hapvr.video.settings import SamplingConfig
from tests.video.conftest import VideoWriter, read_numbers

pytestmark = pytest.mark.skipif(
    bool(missing_protection()), reason=f"this system lacks {missing_protection()}"
)

Result = TypeVar("Result")
LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE_ATTACH = 16


def call(name: str, *arguments: object) -> None:
    """A function of the C library, which has no check of its own before the system call."""
    if getattr(LIBC, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def in_worker(function: Callable[[Path], Result], path: Path) -> Result:
    """function(path) in a worker, which has no threads that hold locks: a copy of this process
    could wait for one for ever."""
    ((_, result),) = in_workers(function, [path], config=SamplingConfig(workers=1))
    if isinstance(result, VideoError):
        raise result
    return result


def outcomes(attempts: dict[str, Callable[[], object]]) -> bytes:
    """Name of each attempt -> whether it was refused."""
    refused = {}
    for name, attempt in attempts.items():
        try:
            attempt()
            refused[name] = False
        except OSError:
            refused[name] = True

    return json.dumps(refused).encode()


def attempts_on(
    path: Path, *, other: Path, port: int, sibling_pid: int
) -> dict[str, Callable[[], object]]:
    memory = ctypes.create_string_buffer(16)
    here = ctypes.addressof(memory)
    older = os.open(other, os.O_RDONLY)
    return {
        "read a file of the system": partial(os.open, "/etc/passwd", os.O_RDONLY),
        "read another video": partial(os.open, other, os.O_RDONLY),
        "read another process": partial(os.open, f"/proc/{sibling_pid}/environ", os.O_RDONLY),
        "list a folder": lambda: os.listdir(path.parent),
        "write a new file": partial(os.open, path.with_suffix(".new"), os.O_WRONLY | os.O_CREAT),
        "write its file": partial(os.open, path, os.O_RDWR),
        "truncate its file": lambda: os.truncate(path, 0),
        "rename its file": lambda: os.rename(path, other),
        "remove its file": lambda: os.unlink(path),
        "change its file's mode": lambda: os.chmod(path, 0),
        "make a folder": lambda: os.mkdir(path.with_suffix("")),
        "connect to this machine": lambda: socket.create_connection(("127.0.0.1", port), timeout=5),
        "use a socket of files": lambda: socket.socket(socket.AF_UNIX),
        "send a datagram": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "start a program": lambda: os.execv(sys.executable, [sys.executable, "-c", ""]),
        "make a process": os.fork,
        "trace a process": partial(call, "ptrace", PTRACE_ATTACH, sibling_pid, None, None),
        "read a process's memory": partial(
            call, "process_vm_readv", sibling_pid, here, 1, here, 1, 0
        ),
        "kill a process": lambda: os.kill(sibling_pid, signal.SIGKILL),
        "signal its parent": partial(os.kill, os.getppid(), 0),
        "see older descriptors": lambda: os.fstat(older),
    }


def confined_attempts(
    path: Path, *, other: Path, port: int, sibling_pid: int
) -> tuple[bytes, bytes]:
    """Of a confined process, and then of the one that asked for it."""
    attempts = attempts_on(path, other=other, port=port, sibling_pid=sibling_pid)
    confined = call_confined(partial(outcomes, attempts), readable=path)
    harmless = (
        "read a file of the system",
        "list a folder",
        "connect to this machine",
        "see older descriptors",
    )
    return confined, outcomes({name: attempts[name] for name in harmless})


def confined_frames(path: Path) -> tuple[bytes, bytes]:
    """The environment that a confined process sees, and the frames that it decodes."""
    LIBC.getenv.restype = ctypes.c_char_p
    environment = call_confined(
        lambda: repr((dict(os.environ), LIBC.getenv(b"PASSWORD"))).encode(), readable=path
    )
    assert os.environ["PASSWORD"] == "secret", "the process that asks has lost it"
    frames = call_confined(
        lambda: np.stack(sample_frames(path, fps=1, short_side_px=None)[1]).tobytes(), readable=path
    )
    return environment, frames


def test_a_confined_process_reads_its_file_alone(
    videos: VideoWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other file, no network, no other process, no program, no password; its own file decodes as
    ever."""
    monkeypatch.setenv("PASSWORD", "secret")
    end_idle_workers()  # those that are started now have it
    path = videos.numbered(num_frames=30)
    other_file = videos.numbered("other.mp4", num_frames=3)
    listener = socket.create_server(("127.0.0.1", 0))
    sibling = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    before = path.read_bytes()
    try:
        attempt = partial(
            confined_attempts,
            other=other_file,
            port=listener.getsockname()[1],
            sibling_pid=sibling.pid,
        )
        confined, asking = map(json.loads, in_worker(attempt, path))
        assert [name for name, refused in confined.items() if not refused] == []
        assert [name for name, refused in asking.items() if refused] == [], (
            "the process that asks has lost it"
        )
        assert sibling.poll() is None
    finally:
        sibling.communicate(b"\n", timeout=20)
        listener.close()

    assert path.read_bytes() == before

    environment, frames = in_worker(confined_frames, path)
    assert environment == b"({}, None)"
    expected = np.stack(sample_frames(path, fps=1, short_side_px=None)[1])
    assert read_numbers(expected) == [0, 10, 20]
    assert frames == expected.tobytes()


FAILURES: dict[str, Callable[[], bytes]] = {
    "ZeroDivisionError": lambda: bytes(1 // 0),
    "signal 11": lambda: ctypes.string_at(0),
    "signal": os.abort,
    "SystemExit": lambda: sys.exit(0),
}
"""What the error says -> what fails."""


def failures_said(path: Path) -> dict[str, str]:
    messages = {}
    for reason, function in FAILURES.items():
        with pytest.raises(RuntimeError) as error:
            call_confined(function, readable=path)
        messages[reason] = str(error.value)
    return messages


def test_a_confined_process_that_fails_says_why(videos: VideoWriter) -> None:
    """Exceptions, faults and exits are errors of the caller."""
    messages = in_worker(failures_said, videos.numbered(num_frames=1))
    assert [reason for reason in FAILURES if reason not in messages[reason]] == []
