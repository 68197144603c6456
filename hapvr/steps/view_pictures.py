"""What training sees, as pictures: the drawn clips of some videos, and the pseudo labels between them."""

from __future__ import annotations

import numpy as np
from PIL import Image
from torch import Tensor

from hapvr.data.frames import STAGE, FrameFile
from hapvr.data.shards import Shard
from hapvr.data.views import LabelFile
from hapvr.networks.views import ViewDrawer, plan_cached_views
from hapvr.steps.pictures import picture_grid
from hapvr.steps.project import Project

SIDE_PX = 96
NUM_FRAMES = 6
POSITIVE, IGNORED, NEGATIVE = (46, 139, 87), (225, 225, 225), (217, 118, 26)


def views_sheet(project: Project, key: str, *, num_videos: int = 2) -> tuple[Image.Image, list[str]]:
    """A row per cached view of a shard's first videos: NUM_FRAMES evenly spaced frames, as the networks get them.

    The views are drawn again, as they were for the shard. Returns the picture and what each row shows.
    """
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


def labels_sheet(shard: Shard, *, num_videos: int = 4) -> tuple[Image.Image, list[str]]:
    """A row per video: the label matrices [T, T] of its first view against its other views.

    Green frame pairs are positives, orange ones negatives, grey ones take no part. Returns the picture and the rows' videos.
    """
    file = LabelFile(shard)
    video_ids = list(file.video_ids)[:num_videos]
    colors = np.array([NEGATIVE, IGNORED, POSITIVE], dtype=np.uint8)
    rows = []
    for video_id in video_ids:
        first = file.read(video_id)[0, 1:]
        pictures = [Image.fromarray(colors[labels.numpy().astype(int) + 1]) for labels in first]
        rows.append([picture.resize((SIDE_PX, SIDE_PX), Image.Resampling.NEAREST) for picture in pictures])
    return picture_grid(rows, cell_px=(SIDE_PX, SIDE_PX)), [
        f"{video_id}: its first view against each of its other views" for video_id in video_ids
    ]


def _picture(frame: Tensor) -> Image.Image:
    """frame: [3, H, W] uint8."""
    return Image.fromarray(frame.permute(1, 2, 0).numpy()).resize((SIDE_PX, SIDE_PX))
