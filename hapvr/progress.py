"""How long work tells its caller how far it is, without knowing whether that is a terminal or a run's log."""

from __future__ import annotations

import time
from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Is told how much is done, and of how much; 0 while that is unknown."""


def no_progress(done: int, total: int) -> None:
    """Says nothing."""


def progress_lines(write: Callable[[str], object], what: str, *, every_s: float = 5.0) -> Progress:
    """Turns progress into lines of text at most every `every_s` seconds, e.g. for a run's log."""
    start = last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < every_s and done != total:
            return
        last = now
        rate = done / max(now - start, 1e-9)
        left = f", {(total - done) / rate:.0f} s left" if total > done and rate > 0 else ""
        write(f"{what}: {done}/{total or '?'}, {rate:.1f}/s{left}")

    return tell
