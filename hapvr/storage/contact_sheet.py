"""A look at a frame shard: some frames of its first videos in one picture."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from hapvr.storage.frames import FrameReader

THUMBNAIL_PX = (160, 90)


def contact_sheet(frames: FrameReader, *, num_videos: int = 8, num_frames: int = 6) -> Image.Image:
    """A row per video, `num_frames` evenly spaced frames in each, padded to thumbnails of 160 x 90 px."""
    video_ids = frames.video_ids[:num_videos]
    width, height = THUMBNAIL_PX
    sheet = Image.new("RGB", (width * num_frames, height * max(1, len(video_ids))), "black")
    for row, video_id in enumerate(video_ids):
        jpegs = frames.read(video_id).jpegs
        for column, index in enumerate(np.linspace(0, len(jpegs) - 1, num_frames).round().astype(int)):
            with Image.open(io.BytesIO(jpegs[index])) as frame:
                frame.thumbnail(THUMBNAIL_PX)
                left = column * width + (width - frame.width) // 2
                sheet.paste(frame, (left, row * height + (height - frame.height) // 2))
    return sheet
