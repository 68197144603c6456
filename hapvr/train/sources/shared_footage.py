"""Which parts of two videos show the footage that they share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hapvr.train.pair_labels import CopiedSegment, video_length_s

Pair = tuple[str, str]
"""Ids of the query and the reference."""


def segments_by_pair(
    copies: Iterable[CopiedSegment], *, min_length_s: float
) -> dict[Pair, list[CopiedSegment]]:
    """The segments of each pair of videos, whichever of them is the query, that are long enough."""
    segments = defaultdict[Pair, list[CopiedSegment]](list)
    for copy in copies:
        if copy.shorter_s < min_length_s:
            continue
        pair = (copy.query, copy.reference)
        turned = (copy.reference, copy.query)
        if turned in segments:
            segments[turned].append(copy.swapped())
        else:
            segments[pair].append(copy)

    return dict(segments)


@dataclass(frozen=True)
class WindowDraw:
    """Draws where clips of a labelled pair begin, so that both show the shared footage."""

    num_frames: int
    """The number of frames of a clip."""
    min_overlap_s: float
    """How much of the footage both show, unless a clip or the footage is shorter."""

    def starts(
        self,
        segment: CopiedSegment,
        query_times: Any,
        reference_times: Any,
        rng: np.random.Generator,
    ) -> tuple[int, int]:
        """The first frames of the clips of query and reference.

        query_times, reference_times: seconds [T] of all frames of the videos."""
        shared = frames_between(query_times, segment.query_start_s, segment.query_end_s)
        frames_per_s = len(query_times) / video_length_s(query_times)
        least = max(1, round(self.min_overlap_s * frames_per_s))
        query_start = self._draw(shared, least, len(query_times), rng)

        query_end = query_start + self.num_frames
        shown = shared[(shared >= query_start) & (shared < query_end)]
        copies = copied_frames(segment, query_times[shown], reference_times)
        return query_start, self._draw(copies, least, len(reference_times), rng)

    def _draw(self, frames: Any, least: int, total: int, rng: np.random.Generator) -> int:
        """The start of a clip that shows `least` of these frames, in order, or all of them where
        they are fewer.

        total: frames of the video."""
        least = min(least, self.num_frames, len(frames))
        longest = max(total - self.num_frames, 0)
        first = min(max(int(frames[least - 1]) - self.num_frames + 1, 0), longest)
        last = min(int(frames[-least]), longest)
        return int(rng.integers(first, max(last, first) + 1))


def frames_between(times: Any, start_s: float, end_s: float) -> Any:
    """int64: the frames at these times [T] that are between two moments, at least the nearest."""
    inside = np.flatnonzero((times >= start_s) & (times < end_s))
    return inside if len(inside) else np.array([np.abs(times - start_s).argmin()])


def copied_frames(segment: CopiedSegment, query_times: Any, reference_times: Any) -> Any:
    """int64: the frames of the reference [T] that show what the query shows at the given times."""
    query_s = segment.query_end_s - segment.query_start_s
    reference_s = segment.reference_end_s - segment.reference_start_s
    rate = reference_s / query_s
    copied_s = segment.reference_start_s + rate * (query_times - segment.query_start_s)
    return np.unique(np.abs(reference_times[:, None] - copied_s[None]).argmin(0))
