"""Pictures of the collection's videos, from the frames that were sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby, islice
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from hapvr.data.frames import STAGE, THUMBNAIL_PX, FrameFile, VideoFrames, thumbnail
from hapvr.errors import DataError
from hapvr.search.duplicates import DuplicatePair, GroupMember
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project

if TYPE_CHECKING:
    from torch import Tensor

KEPT_VIDEOS = 16
"""Videos whose frames are in memory; at 256 px a frame has about 15 kB."""
FLAT = 8.0
"""Standard deviation of brightness, of 255, below which a frame counts as one colour: black, a fade."""
LOOKED_AT = 60
"""Frames at most among which the first that shows something is looked for."""
GAP_PX = 4
NUM_ROWS = 8
NUM_MEMBERS = 6
STEPS_S = (0.0, 1.0, 2.0)
"""Seconds after the beginning of the common part that a pair's pictures show."""

SIDE_PX = 96
NUM_FRAMES = 6

Sheet = tuple[Image.Image, list[str]]
"""A picture of rows, and what each row shows; no row where there are no frames."""


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


def pairs_sheet(pictures: StoredPictures, pairs: Sequence[DuplicatePair]) -> Sheet:
    """A row per pair, the surest first: three frames of each video from where the common part begins."""
    rows, names = [], []
    for pair in sorted(pairs, key=lambda one: -one.probability)[:NUM_ROWS]:
        places = ((pair.first, pair.first_start_s), (pair.second, pair.second_start_s))
        shown = [pictures.at(video_id, start + step) for video_id, start in places for step in STEPS_S]
        rows.append([thumbnail(jpeg) for jpeg in shown if jpeg is not None])
        names.append(f"{pair.kind}, {100 * pair.probability:.1f} %: {pair.first} - {pair.second}")
    return picture_grid(rows, cell_px=THUMBNAIL_PX), names if any(rows) else []


def groups_sheet(pictures: StoredPictures, members: Sequence[GroupMember]) -> Sheet:
    """A row per group, as they come: the middle frame of the copy to keep, then of the others."""
    rows, names = [], []
    for name, found in islice(groupby(members, key=lambda member: member.group), NUM_ROWS):
        group = list(found)
        shown = [pictures.at(member.video_id) for member in group[:NUM_MEMBERS]]
        rows.append([thumbnail(jpeg) for jpeg in shown if jpeg is not None])
        names.append(f"group {name}, {len(group)} videos, {'keep' if group[0].keep else 'with'} {group[0].video_id}")
    return picture_grid(rows, cell_px=THUMBNAIL_PX), names if any(rows) else []


def picture_grid(rows: Sequence[Sequence[Image.Image]], *, cell_px: tuple[int, int]) -> Image.Image:
    """Rows of pictures that are no larger than a cell of (width, height), with a gap between them."""
    width, height = cell_px[0] + GAP_PX, cell_px[1] + GAP_PX
    grid = Image.new("RGB", (width * max([1, *map(len, rows)]), height * max(1, len(rows))), "white")
    for row, pictures in enumerate(rows):
        for column, picture in enumerate(pictures):
            grid.paste(picture, (column * width, row * height))
    return grid


def views_sheet(project: Project, key: str, *, num_videos: int = 2) -> Sheet:
    """A row per cached view of a shard's first videos: NUM_FRAMES evenly spaced frames, as the networks get them.

    The views are drawn again, as they were for the shard. Returns the picture and what each row shows.
    """
    from hapvr.networks.views import ViewDrawer, plan_cached_views  # with torch, which serving does without

    config, shard = project.config.views, project.shard(STAGE, key)
    rows: list[list[Image.Image]] = []
    names: list[str] = []
    if shard.provenance() is not None:
        frames = FrameFile(shard)
        drawer = ViewDrawer(frames.read, config=config, size_px=project.config.backbone.crop_px)
        for video_id, plans in list(plan_cached_views(frames.video_ids, config).items())[:num_videos]:
            for plan in plans:
                described, view = drawer.draw(plan)
                chosen = np.linspace(0, len(view.frames) - 1, NUM_FRAMES).round().astype(int)
                rows.append([_picture(view.frames[index]) for index in chosen])
                names.append(f"{video_id}: {described.strength} view, {', '.join(described.operations) or 'as it is'}")
    return picture_grid(rows, cell_px=(SIDE_PX, SIDE_PX)), names


def _picture(frame: Tensor) -> Image.Image:
    """frame: [3, H, W] uint8."""
    return Image.fromarray(frame.permute(1, 2, 0).numpy()).resize((SIDE_PX, SIDE_PX))
