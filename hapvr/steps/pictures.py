"""Pictures of the collection's videos, from the frames that were sampled."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from hapvr.data.frames import VideoFrames
from hapvr.errors import DataError
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project

KEPT_VIDEOS = 16
"""Videos whose frames are in memory; at 256 px a frame has about 15 kB."""


class StoredPictures:
    """Frames of the videos that were asked for last. Any thread may ask."""

    def __init__(self, project: Project, shards: Mapping[str, str]) -> None:
        """shards: video id -> shard."""

        @lru_cache(KEPT_VIDEOS)
        def read(video_id: str) -> VideoFrames | None:
            if video_id not in shards:
                return None
            try:
                with open_frames(project, shards[video_id]) as frames:
                    return frames.read(video_id)
            except DataError:  # imported features have none, and the file may be gone
                return None

        self._read = read

    def at(self, video_id: str, second: float) -> bytes | None:
        """The JPEG of the sampled frame that is nearest to a second; None where there are no frames of the video."""
        frames = self._read(video_id)
        if frames is None or not frames.jpegs:
            return None
        return frames.jpegs[int(np.abs(np.asarray(frames.timestamps_s) - second).argmin())]
