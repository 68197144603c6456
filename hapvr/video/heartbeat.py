"""How a worker shows its progress with a file, so that only a worker without progress is killed.

The work calls `beat` whenever it got on. A thread of the same worker ends the process if no beat
comes for too long. The process that waits for the worker can show the words of the beats.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection

from hapvr.progress import clock_text

SILENT_EXIT = 75
"""Exit code of a worker whose work came to a halt."""

MAX_WORDS_BYTES = 400
"""The longest words of a beat: a pipe takes so few bytes whole or not at all."""
LEAST_PAUSE_S = 0.2
"""The shortest pause between two beats whose words are passed on."""


class BeatReader:
    """The end of the pipe that the waiting process keeps. As a context manager it closes both
    ends."""

    def __init__(self) -> None:
        self._receiving, self.sending = get_context("spawn").Pipe(duplex=False)
        os.set_blocking(self._receiving.fileno(), False)
        os.set_blocking(self.sending.fileno(), False)

    def __enter__(self) -> "BeatReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._receiving.close()
        self.sending.close()

    def words(self) -> list[str]:
        """What the workers reported since the last call, each beat once."""
        try:
            data = os.read(self._receiving.fileno(), 1 << 16)
        except BlockingIOError:
            return []
        return data.decode(errors="replace").splitlines()


class _Work:
    """What this process, a worker, is doing now."""

    def __init__(self) -> None:
        self.sending: Connection | None = None
        self.beaten_s = time.monotonic()
        self.passed_on_s = 0.0


_work = _Work()


def connect(sending: Connection) -> None:
    """Pass the words of this process's beats on to a pipe."""
    _work.sending = sending


def beat(words: str = "") -> None:
    """Report that the work of this process got on. words: which file, and how far it is."""
    _work.beaten_s = time.monotonic()
    if not words or _work.sending is None:
        return
    if _work.beaten_s - _work.passed_on_s < LEAST_PAUSE_S:
        return
    _work.passed_on_s = _work.beaten_s
    line = " ".join(words.split()).encode(errors="backslashreplace")
    with contextlib.suppress(OSError):  # nobody reads, or not so fast: these words are dropped
        os.write(_work.sending.fileno(), line[:MAX_WORDS_BYTES] + b"\n")


class FileBeats:
    """Beats for the work of a confined process on a file: they say how far it was by its last
    report."""

    def __init__(self, name: str, work: str) -> None:
        """name: of the file; work: what is done, as in "decoding"."""
        self._work = f"{name}: {work}"
        self._place = ""

    def __call__(self, seconds: float | None) -> None:
        """As `alive` of `hapvr.video.sandbox.call_confined`."""
        if seconds is not None:
            self._place = f", at {clock_text(seconds)}"
        beat(self._work + self._place)


@contextlib.contextmanager
def ended_when_silent(limit_s: float) -> Iterator[None]:
    """End this process with SILENT_EXIT if the block goes on without a beat for `limit_s`."""
    ended = threading.Event()
    beat()

    def watch() -> None:
        while not ended.wait(min(limit_s / 4, 0.5)):
            if time.monotonic() - _work.beaten_s > limit_s:
                os._exit(SILENT_EXIT)

    threading.Thread(target=watch, name="silence", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
