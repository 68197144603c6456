"""How long work tells its caller how far it is, without knowing whether that is a terminal or a run's log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """Is told how far work is. total: 0 while it is unknown; num_frames: frames so far, where the work is on frames."""

    def __call__(self, done: int, total: int, num_frames: int = 0, /) -> None: ...


def no_progress(done: int, total: int, num_frames: int = 0) -> None:
    """Says nothing."""


def progress_lines(write: Callable[[str], object], what: str, *, every_s: float = 5.0) -> Progress:
    """Turns progress into lines of text at most every `every_s` seconds, e.g. for a run's log."""
    start = last = time.monotonic()

    def tell(done: int, total: int, num_frames: int = 0) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < every_s and done != total:
            return
        last, passed_s = now, max(now - start, 1e-9)
        rate = done / passed_s
        frames = f", {num_frames / passed_s:.1f} frames/s" if num_frames else ""
        left = f", {(total - done) / rate:.0f} s left" if total > done and rate > 0 else ""
        write(f"{what}: {done}/{total or '?'}, {rate:.1f}/s{frames}{left}")

    return tell
