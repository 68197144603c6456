"""Pictures of the collection's videos, from the frames that were sampled."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from hapvr.data.frames import VideoFrames, thumbnail
from hapvr.errors import DataError
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project

KEPT_VIDEOS = 16
"""Videos whose frames are in memory; at 256 px a frame has about 15 kB."""
FLAT = 8.0
"""Standard deviation of brightness, of 255, below which a frame counts as one colour: black, a fade."""
LOOKED_AT = 60
"""Frames at most among which the first that shows something is looked for."""


class StoredPictures:
    """Frames of the videos that were asked for last. Any thread may ask."""

    def __init__(self, project: Project, shards: Mapping[str, str]) -> None:
        """shards: video id -> shard."""

        @lru_cache(KEPT_VIDEOS)
        def read(video_id: str) -> VideoFrames | None:
            if video_id not in shards:
                return None
            try:
                return open_frames(project, shards[video_id]).read(video_id)
            except DataError:  # imported features have none
                return None

        self._read = read

    def at(self, video_id: str, second: float | None) -> bytes | None:
        """The JPEG of the sampled frame that is nearest to a second, or of the first that shows something, the first of all
        where none does; None where there are no frames."""
        frames = self._read(video_id)
        if frames is None or not frames.jpegs:
            return None
        if second is None:
            return next(filter(_shows_something, frames.jpegs[:LOOKED_AT]), frames.jpegs[0])
        return frames.jpegs[int(np.abs(np.asarray(frames.timestamps_s) - second).argmin())]


def _shows_something(jpeg: bytes) -> bool:
    return float(np.asarray(thumbnail(jpeg, size_px=(32, 32)).convert("L"), np.float32).std()) >= FLAT
