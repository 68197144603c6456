"""What a process that decodes a hostile file can still do once the file has taken it over: next to nothing."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from hapvr.video.decode import sample_frames
from hapvr.video.sandbox import call_confined, missing_protection
from tests.video.conftest import VideoWriter, read_numbers

pytestmark = pytest.mark.skipif(bool(missing_protection()), reason=f"this system lacks {missing_protection()}")

LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE_ATTACH = 16


def call(name: str, *arguments: object) -> None:
    """A function of the C library, which has no check of its own before the system call."""
    if getattr(LIBC, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


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


def test_a_confined_process_reads_its_file_alone(videos: VideoWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other file, no network, no other process, no program, no password; its own file decodes as ever."""
    monkeypatch.setenv("PASSWORD", "secret")
    path, other = videos.numbered(num_frames=30), videos.numbered("other.mp4", num_frames=3)
    listener = socket.create_server(("127.0.0.1", 0))
    sibling = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    memory = ctypes.create_string_buffer(16)
    here = ctypes.addressof(memory)
    attempts: dict[str, Callable[[], object]] = {
        "read a file of the system": partial(os.open, "/etc/passwd", os.O_RDONLY),
        "read another video": partial(os.open, other, os.O_RDONLY),
        "read another process": partial(os.open, f"/proc/{sibling.pid}/environ", os.O_RDONLY),
        "list a folder": lambda: os.listdir(path.parent),
        "write a new file": partial(os.open, path.with_suffix(".new"), os.O_WRONLY | os.O_CREAT),
        "write its file": partial(os.open, path, os.O_RDWR),
        "truncate its file": lambda: os.truncate(path, 0),
        "rename its file": lambda: os.rename(path, other),
        "remove its file": lambda: os.unlink(path),
        "change its file's mode": lambda: os.chmod(path, 0),
        "make a folder": lambda: os.mkdir(path.with_suffix("")),
        "connect to this machine": lambda: socket.create_connection(listener.getsockname(), timeout=5),
        "use a socket of files": lambda: socket.socket(socket.AF_UNIX),
        "send a datagram": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "start a program": lambda: os.execv(sys.executable, [sys.executable, "-c", ""]),
        "make a process": os.fork,
        "trace a process": partial(call, "ptrace", PTRACE_ATTACH, sibling.pid, None, None),
        "read a process's memory": partial(call, "process_vm_readv", sibling.pid, here, 1, here, 1, 0),
        "kill a process": lambda: os.kill(sibling.pid, signal.SIGKILL),
        "signal its parent": partial(os.kill, os.getpid(), 0),
        "see older descriptors": lambda: os.fstat(listener.fileno()),
    }
    before = path.read_bytes()
    try:
        refused = json.loads(call_confined(partial(outcomes, attempts), readable=path))
        assert [name for name in attempts if not refused[name]] == []
        assert sibling.poll() is None
    finally:
        sibling.communicate(b"\n", timeout=20)
        listener.close()
    assert path.read_bytes() == before
    assert json.loads(outcomes({name: attempts[name] for name in ("read a file of the system", "list a folder")})) == {
        "read a file of the system": False,
        "list a folder": False,
    }, "nothing is taken from the process that asks"
    LIBC.getenv.restype = ctypes.c_char_p
    environment = call_confined(lambda: repr((dict(os.environ), LIBC.getenv(b"PASSWORD"))).encode(), readable=path)
    assert environment == b"({}, None)"
    assert os.environ["PASSWORD"] == "secret"

    frames = call_confined(lambda: sample_frames(path, fps=1, short_side_px=None).frames.tobytes(), readable=path)
    expected = sample_frames(path, fps=1, short_side_px=None).frames
    assert read_numbers(expected) == [0, 10, 20]
    assert frames == expected.tobytes()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: ctypes.string_at(0), "signal 11"),
        (os.abort, "signal"),
        (lambda: sys.exit(0), "SystemExit"),
    ],
)
def test_a_confined_process_that_fails_says_why(
    videos: VideoWriter, function: Callable[[], bytes], reason: str
) -> None:
    """Exceptions, faults and exits are errors of the caller."""
    with pytest.raises(RuntimeError, match=reason):
        call_confined(function, readable=videos.numbered(num_frames=1))
