"""When a video's pictures are shown: by the file's own clock, counted from the file's start as
players do, and repaired only where it is broken."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

LONG_STEP_S = 600.0
"""A longer step from one picture to the next is examined: either the picture stays so long, or the
clock is broken."""

NOTED_STEP_S = 1.0
"""A clock that runs back by less is inexact, not broken."""


class Jump(NamedTuple):
    """A step of a broken clock, in seconds from the file's start."""

    from_s: float
    to_s: float
    time_s: float
    """which the picture behind the step gets instead"""


@dataclass
class _Hand:
    """One of the two clocks of a file, that of display or that of decoding."""

    time_s: float = 0.0
    """of the last picture"""
    known_s: float = 0.0
    """time of the last picture that had a timestamp"""
    stamp_s: float | None = None
    """that timestamp"""
    backward_steps: int = 0
    jumps: list[Jump] = field(default_factory=list)


class PictureClock:
    """Gives each picture its time.

    start_s: the file's start on its own clock; None if the file has none
    interval_s: the nominal one, used where timestamps are missing or wrong
    is_broken: whether a step of more than LONG_STEP_S, from one timestamp to another, is an error
        of the clock
    """

    def __init__(
        self,
        *,
        start_s: float | None,
        interval_s: float,
        is_broken: Callable[[float, float], bool],
    ) -> None:
        self._start_s = start_s
        self._interval_s = interval_s
        self._is_broken = is_broken
        self._display = _Hand()
        self._decoding = _Hand()
        self._time_s: float | None = None
        self.last_stamp_s: float | None = None
        """the latest timestamp of display so far, from the file's start"""

    def time_of(self, display_s: float | None, decoding_s: float | None) -> float:
        """Seconds from the file's start at which the next picture is shown; they never run back.
        display_s, decoding_s: its timestamps, None where it has none."""
        is_first = self._time_s is None
        for hand, stamp_s in ((self._display, display_s), (self._decoding, decoding_s)):
            if is_first:
                self._begin(hand, stamp_s)
            else:
                self._advance(hand, stamp_s)

        self._time_s = max(self._time_s or 0.0, self._trusted.time_s)
        if display_s is not None:
            stamp_s = display_s - (self._start_s or 0.0)
            self.last_stamp_s = max(stamp_s, self.last_stamp_s or stamp_s)

        return self._time_s

    @property
    def jumps(self) -> list[Jump]:
        """Where the clock was broken, in order."""
        return self._trusted.jumps

    @property
    def _trusted(self) -> _Hand:
        """The display clock, unless it runs back more often than the decoding clock."""
        by_decoding = self._display.backward_steps > self._decoding.backward_steps
        return self._decoding if by_decoding else self._display

    def _begin(self, hand: _Hand, stamp_s: float | None) -> None:
        """Take the first picture."""
        if stamp_s is None:
            return
        hand.stamp_s = stamp_s
        if self._start_s is None:
            return
        late_s = stamp_s - self._start_s
        if late_s > LONG_STEP_S and self._is_broken(self._start_s, stamp_s):
            hand.jumps.append(Jump(0.0, late_s, 0.0))
        else:
            hand.time_s = hand.known_s = max(late_s, 0.0)

    def _advance(self, hand: _Hand, stamp_s: float | None) -> None:
        """Take any other picture."""
        if stamp_s is None or hand.stamp_s is None:
            hand.time_s += self._interval_s
        else:
            step_s = stamp_s - hand.stamp_s
            if self._is_usual(hand.stamp_s, stamp_s):
                hand.time_s = hand.known_s + step_s
            else:
                hand.time_s += self._interval_s
                if step_s > 0 or step_s <= -NOTED_STEP_S:
                    start_s = self._start_s or 0.0
                    jump = Jump(hand.stamp_s - start_s, stamp_s - start_s, hand.time_s)
                    hand.jumps.append(jump)

            hand.backward_steps += step_s < 0

        if stamp_s is not None:
            hand.stamp_s = stamp_s
            hand.known_s = hand.time_s

    def _is_usual(self, before_s: float, after_s: float) -> bool:
        step_s = after_s - before_s
        if step_s <= LONG_STEP_S:
            return step_s >= 0
        return not self._is_broken(before_s, after_s)


def jumps_said(jumps: list[Jump]) -> str:
    """A sentence on what the jumps mean for the times of the video; "" without jumps."""
    if not jumps:
        return ""
    first = jumps[0]
    others = f", and {len(jumps) - 1} more times" if len(jumps) > 1 else ""
    return (
        f"the file's clock jumps from {first.from_s:.1f} s to {first.to_s:.1f} s{others}; times "
        f"from {first.time_s:.1f} s on are counted as if it ran on"
    )
