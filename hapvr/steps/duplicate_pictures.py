"""What pairs and groups look like: stored frames next to each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice

import numpy as np
from PIL import Image

from hapvr.data.frames import STAGE, THUMBNAIL_PX, FrameFile, thumbnail
from hapvr.search.duplicates import DuplicatePair, GroupMember
from hapvr.steps.pictures import picture_grid
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher

NUM_ROWS = 8
NUM_MEMBERS = 6
STEPS_S = (0.0, 1.0, 2.0)
"""Seconds after the beginning of the common part that a pair's pictures show."""

Sheet = tuple[Image.Image, list[str]]


def pairs_sheet(project: Project, searcher: Searcher, pairs: Sequence[DuplicatePair]) -> Sheet:
    """A row per pair, the surest first: three frames of each video from where the common part begins.

    Returns the picture and what each row shows, which is nothing where frames are not stored.
    """
    frames = _Frames(project, searcher)
    rows, names = [], []
    for pair in sorted(pairs, key=lambda one: -one.probability):
        first = list(frames.at(pair.first, [pair.first_start_s + step for step in STEPS_S]))
        second = list(frames.at(pair.second, [pair.second_start_s + step for step in STEPS_S]))
        if first and second:
            rows.append([*first, *second])
            names.append(f"{pair.kind}, {100 * pair.probability:.1f} %: {pair.first} - {pair.second}")
        if len(rows) == NUM_ROWS:
            break
    return picture_grid(rows, cell_px=THUMBNAIL_PX), names


def groups_sheet(project: Project, searcher: Searcher, members: Sequence[GroupMember]) -> Sheet:
    """A row per group, as they come: the middle frame of the copy to keep, then of the others. Returns as `pairs_sheet`."""
    frames = _Frames(project, searcher)
    rows, names = [], []
    for name, found in islice(groupby(members, key=lambda member: member.group), NUM_ROWS):
        group = list(found)
        pictures = [picture for member in group[:NUM_MEMBERS] for picture in frames.middle(member.video_id)]
        if pictures:
            rows.append(pictures)
            names.append(f"group {name}, {len(group)} videos, keep {group[0].video_id}")
    return picture_grid(rows, cell_px=THUMBNAIL_PX), names


class _Frames:
    """Thumbnails of stored frames; none where a shard has no frames."""

    def __init__(self, project: Project, searcher: Searcher) -> None:
        self._project = project
        self._searcher = searcher

    def at(self, video_id: str, seconds: Sequence[float]) -> Iterator[Image.Image]:
        """The frames nearest to these seconds."""
        shard = self._project.shard(STAGE, self._searcher.collection.shard_of[video_id])
        if shard.provenance() is not None:
            frames = FrameFile(shard).read(video_id)
            times = np.asarray(frames.timestamps_s)
            for second in seconds:
                yield thumbnail(frames.jpegs[int(np.abs(times - second).argmin())])

    def middle(self, video_id: str) -> Iterator[Image.Image]:
        return self.at(video_id, [self._searcher.seconds_of(video_id) / 2])
