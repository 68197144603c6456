"""Stage 3: sampled frames as JPEG rows (asset `frames`)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import polars as pl

from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, environment
from hapvr.stages.project import Project, StageResult
from hapvr.storage.frames import FIELDS, INDEX_COLUMNS, ROW_GROUP_ROWS, STAGE, VideoFrames, write_frames
from hapvr.storage.manifest import VIDEOS_STAGE
from hapvr.storage.shards import STATUS_OK, index_row
from hapvr.video.pool import sample_videos

NO_FRAMES: dict[str, Any] = {"width_px": 0, "height_px": 0, "decoder": ""}


def make_frames(project: Project, key: str, *, progress: Progress = no_progress) -> StageResult:
    """Decode and sample the shard's videos in killable workers; a video that fails is a row with its reason."""
    videos = project.shard(VIDEOS_STAGE, key).index()
    shard = project.shard(STAGE, key)
    sampling = project.config.sampling
    settings = sampling.content()
    provenance = Provenance(STAGE, {"sampling": settings}, {"videos": _content_digest(videos)}, environment())
    if shard.is_finished(provenance):
        return StageResult.of(shard, done=False)
    good = videos.filter(pl.col("status") == STATUS_OK)
    items = [(row["video_id"], Path(row["path"])) for row in good.iter_rows(named=True)]
    rows = {}
    with shard.write_data(FIELDS, row_group_rows=ROW_GROUP_ROWS, compress=False) as writer:
        for done, video in enumerate(sample_videos(items, config=sampling), start=1):
            reason, message = video.reason, video.message
            if not reason and len(video.jpegs) < sampling.min_frames:
                reason = "too_short"
                message = (
                    f"{len(video.jpegs)} frames at {sampling.fps:g} fps; sampling.min_frames is {sampling.min_frames}"
                )
            if reason:
                rows[video.video_id] = index_row(video.video_id, 0, reason=reason, message=message, **NO_FRAMES)
            else:
                write_frames(writer, VideoFrames(video.video_id, video.jpegs, video.timestamps_s))
                columns: dict[str, Any] = {
                    "width_px": video.width_px,
                    "height_px": video.height_px,
                    "decoder": video.decoder,
                }
                rows[video.video_id] = index_row(video.video_id, len(video.jpegs), message=message, **columns)
            progress(done, len(items))
    for row in videos.filter(pl.col("status") != STATUS_OK).iter_rows(named=True):
        rows[row["video_id"]] = index_row(row["video_id"], 0, reason=row["reason"], message=row["message"], **NO_FRAMES)
    # The index lists videos in the order of the data file, then those that have no rows.
    shard.write_index(rows.values(), provenance=provenance, fields=INDEX_COLUMNS)
    return StageResult.of(shard, done=True)


def _content_digest(videos: pl.DataFrame) -> str:
    """Changes when a video's bytes or fate do, not when a file is only touched or moved."""
    rows = videos.select("video_id", "status", "sha256", "reason").rows()
    return hashlib.sha256(repr(rows).encode()).hexdigest()
