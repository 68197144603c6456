"""Step 3: sampled frames as JPEG rows (asset `frames`)."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence

from hapvr.data.frames import FIELDS, INDEX_COLUMNS, STAGE, FrameFile, VideoFrames
from hapvr.data.manifest import VIDEOS_STAGE
from hapvr.data.shard_build import IndexRow, ShardRecipe, StageResult, VideoEntry, build_shard, failed_rows
from hapvr.data.shards import STATUS_OK, frame_columns, index_row
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance
from hapvr.steps.project import Project
from hapvr.video.pool import RETRYABLE, sample_videos
from hapvr.video.sources import path_of_text

CHANGED = "changed_file"


def make_frames(
    project: Project, key: str, *, retry_failed: bool = False, progress: Progress = no_progress
) -> StageResult:
    """Decode and sample the shard's videos in killable workers; a video that fails is a row with its reason.

    Videos whose bytes and sampling are those of an earlier run are not decoded again; with retry_failed, those that
    timed out or crashed are.
    """
    sampling = project.config.sampling
    shard = project.shard(STAGE, key)
    videos = project.shard(VIDEOS_STAGE, key).rows()
    good = [row for row in videos if row["status"] == STATUS_OK]
    digests = {row["video_id"]: row["sha256"] for row in good}
    paths = {row["video_id"]: row["path"] for row in good}

    def make(video_ids: Sequence[str]) -> Generator[VideoEntry, None, None]:
        pending = [(video_id, path_of_text(paths[video_id])) for video_id in video_ids]
        for video in sample_videos(pending, config=sampling):
            recorded = digests[video.video_id]
            reason, message = video.reason, video.message
            if video.file_sha256 not in ("", recorded):
                reason = CHANGED
                message = (
                    f"the file is not the one that the step videos read: its SHA-256 is {video.file_sha256[:16]}..., "
                    f"recorded is {recorded[:16]}...; run the steps videos and frames again"
                )
            known = {"reason": reason, "message": message, "file_sha256": recorded, "frames_sha256": ""}
            row = index_row(video.video_id, 0, **known)
            if reason:
                yield row, None
                continue
            sha256 = VideoFrames(video.jpegs, video.timestamps_s).sha256
            row |= {"num_rows": len(video.jpegs), "frames_sha256": sha256}
            yield row, frame_columns(video.video_id, video.timestamps_s, video.jpegs)

    def reuse(row: IndexRow, _: Provenance) -> bool:
        passing = row["reason"] in {*RETRYABLE, "missing_file", CHANGED}
        return digests.get(row["video_id"]) == row["file_sha256"] and not (retry_failed and passing)

    recipe = ShardRecipe(
        shard=shard,
        settings={"sampling": sampling.identity_fields()},
        inputs={"videos": content_digest(videos)},
        columns=FIELDS,
        index_columns=INDEX_COLUMNS,
    )
    return build_shard(
        recipe,
        video_ids=list(digests),
        make=make,
        lost=failed_rows(videos, file_sha256="", frames_sha256=""),
        reuse=reuse,
        retry=retry_failed,
        progress=progress,
    )


def open_frames(project: Project, key: str) -> FrameFile:
    """The frames of a finished shard. Raises DataError where they are missing or of another sampling."""
    shard = project.shard(STAGE, key)
    shard.require({"sampling": project.config.sampling.identity_fields()})
    return FrameFile(shard)


def content_digest(videos: Sequence[IndexRow]) -> str:
    """Changes when a video's bytes or fate do, not when a file is only touched or moved."""
    rows = [(row["video_id"], row["status"], row["sha256"], row["reason"]) for row in videos]
    return hashlib.sha256(repr(rows).encode()).hexdigest()
