"""How long work tells its caller how far it is, without knowing whether that is a terminal or a run's log."""

from __future__ import annotations

import time
from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Is told how much is done, and of how much; 0 while that is unknown."""


def no_progress(done: int, total: int) -> None:
    """Says nothing."""


class ProgressLines:
    """Turns progress into lines of text at most every `every_s` seconds, e.g. for a run's log."""

    def __init__(self, write: Callable[[str], object], what: str, *, every_s: float = 5.0) -> None:
        self._write = write
        self._what = what
        self._every_s = every_s
        self._start = self._last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last < self._every_s and done != total:
            return
        self._last = now
        rate = done / max(now - self._start, 1e-9)
        left = f", {(total - done) / rate:.0f} s left" if total > done and rate > 0 else ""
        self._write(f"{self._what}: {done}/{total or '?'}, {rate:.1f}/s{left}")
