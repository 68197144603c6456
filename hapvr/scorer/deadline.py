"""The moment by which a request must be done."""

from __future__ import annotations

import time

from hapvr.errors import VideoError

LONGEST_WAIT_S = 24 * 3600.0


class Deadline:
    """limit_s from now on; None: never."""

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._end_s = None if limit_s is None else time.monotonic() + limit_s

    def wait_s(self) -> float:
        """How long something may still be waited for, above 0."""
        return LONGEST_WAIT_S if self._end_s is None else max(self._end_s - time.monotonic(), 0.001)

    def passed(self) -> bool:
        return self._end_s is not None and time.monotonic() >= self._end_s

    def error(self) -> VideoError:
        """What a row says that was not done in time."""
        return VideoError("timeout", f"request: not done after {self._limit_s:g} s; send fewer pairs")
