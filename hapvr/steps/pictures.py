"""Pictures of the collection's videos, from the frames that were sampled: by id and second, and in rows."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from hapvr.data.frames import VideoFrames
from hapvr.errors import DataError
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project

GAP_PX = 4
KEPT_VIDEOS = 16
"""Videos whose frames are in memory; at 256 px a frame has about 15 kB."""


class StoredPictures:
    """Frames of the videos that were asked for last. Any thread may ask."""

    def __init__(self, project: Project, shards: Mapping[str, str]) -> None:
        """shards: video id -> shard."""
        self._project = project
        self._shards = shards
        self._kept: OrderedDict[str, VideoFrames | None] = OrderedDict()
        self._guard = threading.Lock()

    def at(self, video_id: str, second: float) -> bytes | None:
        """The JPEG of the sampled frame that is nearest to a second; None where there are no frames of the video."""
        with self._guard:
            if video_id in self._kept:
                self._kept.move_to_end(video_id)
                return nearest(self._kept[video_id], second)
        frames = self._read(video_id)
        with self._guard:
            self._kept[video_id] = frames
            while len(self._kept) > KEPT_VIDEOS:
                self._kept.popitem(last=False)
        return nearest(frames, second)

    def _read(self, video_id: str) -> VideoFrames | None:
        if video_id not in self._shards:
            return None
        try:
            return open_frames(self._project, self._shards[video_id]).read(video_id)
        except DataError:  # imported features have none
            return None


def nearest(frames: VideoFrames | None, second: float) -> bytes | None:
    """The JPEG that is nearest to a second."""
    if frames is None or not frames.jpegs:
        return None
    return frames.jpegs[int(np.abs(np.asarray(frames.timestamps_s) - second).argmin())]


def picture_grid(rows: Sequence[Sequence[Image.Image]], *, cell_px: tuple[int, int]) -> Image.Image:
    """Rows of pictures that are no larger than a cell of (width, height), with a gap between them."""
    width, height = cell_px[0] + GAP_PX, cell_px[1] + GAP_PX
    grid = Image.new("RGB", (width * max([1, *map(len, rows)]), height * max(1, len(rows))), "white")
    for row, pictures in enumerate(rows):
        for column, picture in enumerate(pictures):
            grid.paste(picture, (column * width, row * height))
    return grid
