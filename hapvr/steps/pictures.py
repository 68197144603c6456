"""Pictures of the collection's videos, from the frames that were sampled."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hapvr.data.frames import STAGE, FrameFile, VideoFrames, thumbnail
from hapvr.errors import DataError
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project

KEPT_VIDEOS = 16
"""Videos whose frames are in memory; at 256 px a frame has about 15 kB."""
FLAT = 8.0
"""Standard deviation of brightness, of 255, below which a frame counts as one colour: black, a fade."""
LOOKED_AT = 60
"""Frames at most among which the first that shows something is looked for."""
SIDE_PX = 96
NUM_FRAMES = 6


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

    def at(self, video_id: str, second: float | None = None) -> bytes | None:
        """The JPEG of the sampled frame that is nearest to a second, by default the middle one; None where there are none."""
        frames = self._read(video_id)
        if frames is None or not frames.jpegs:
            return None
        if second is None:
            return frames.jpegs[len(frames.jpegs) // 2]
        return frames.jpegs[int(np.abs(np.asarray(frames.timestamps_s) - second).argmin())]

    def first(self, video_id: str) -> bytes | None:
        """The JPEG of the first sampled frame that shows something; the first of all where none does."""
        frames = self._read(video_id)
        if frames is None or not frames.jpegs:
            return None
        return next(filter(_shows_something, frames.jpegs[:LOOKED_AT]), frames.jpegs[0])


def _shows_something(jpeg: bytes) -> bool:
    return float(np.asarray(thumbnail(jpeg, size_px=(32, 32)).convert("L"), np.float32).std()) >= FLAT


def views_sheet(project: Project, key: str, *, num_videos: int = 2) -> tuple[Image.Image, list[str]] | None:
    """A row per cached view of a shard's first videos: NUM_FRAMES evenly spaced frames, as the networks get them.

    The views are drawn again, as they were for the shard. Returns the picture and what each row shows; None without frames.
    """
    from hapvr.networks.views import ViewDrawer, plan_cached_views  # with torch, which serving does without

    config, shard = project.config.views, project.shard(STAGE, key)
    rows: list[NDArray[np.uint8]] = []
    names: list[str] = []
    if shard.provenance() is not None:
        frames = FrameFile(shard)
        drawer = ViewDrawer(frames.read, config=config, size_px=project.config.backbone.crop_px)
        for video_id, plans in list(plan_cached_views(frames.video_ids, config).items())[:num_videos]:
            for plan in plans:
                view = drawer.draw(plan)
                chosen = np.linspace(0, len(view.frames) - 1, NUM_FRAMES).round().astype(int)
                # [n, 3, S, S] to one row [S, n * S, 3]
                rows.append(view.frames[chosen].permute(2, 0, 3, 1).flatten(1, 2).numpy())
                names.append(f"{video_id}: {plan.strength} view, {', '.join(view.operations)}")
    if not rows:
        return None
    picture = Image.fromarray(np.concatenate(rows))
    return picture.resize((NUM_FRAMES * SIDE_PX, len(rows) * SIDE_PX)), names
