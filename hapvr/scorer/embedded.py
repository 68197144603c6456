"""A video in the form in which it is compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hapvr.scorer.segments import FrameTimes
from hapvr.video.frames import Hashes


@dataclass(frozen=True, eq=False)
class EmbeddedVideo:
    """An embedding with its times and hashes."""

    regions: Any
    """[T, r, d], a numpy array or a tensor on the device of the networks."""
    clock: FrameTimes
    """Times of the T sampled frames."""
    hashes: Hashes
    """[T], perceptual hashes of their pictures."""

    def __len__(self) -> int:
        return len(self.regions)

    def part(self, first: int, last: int) -> EmbeddedVideo:
        """The frames from `first` to `last` - 1, with their own times."""
        clock = replace(self.clock, times_s=self.clock.times_s[first:last])
        return replace(
            self, regions=self.regions[first:last], clock=clock, hashes=self.hashes[first:last]
        )

    def take(self, rows: Sequence[int]) -> EmbeddedVideo:
        """Some frames, with their own times."""
        times_s = tuple(self.clock.times_s[row] for row in rows)
        clock = replace(self.clock, times_s=times_s)
        chosen = list(rows)
        return replace(self, regions=self.regions[chosen], clock=clock, hashes=self.hashes[chosen])
