"""Stage 3: sampled frames as JPEG rows (asset `frames`)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import polars as pl

from hapvr.config import SamplingConfig
from hapvr.errors import DataError
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, environment
from hapvr.stages.project import Project, StageResult
from hapvr.stages.videos import RETRYABLE
from hapvr.storage.features import STAGE as FEATURES_STAGE
from hapvr.storage.frames import (
    FIELDS,
    INDEX_COLUMNS,
    ROW_GROUP_ROWS,
    STAGE,
    FrameFile,
    FrameReader,
    VideoFrames,
    write_frames,
)
from hapvr.storage.manifest import VIDEOS_STAGE
from hapvr.storage.shards import STATUS_OK, RowWriter, Shard, index_row
from hapvr.video.pool import SampledVideo, VideoSampler, sample_videos
from hapvr.video.sources import path_of_text

NO_FRAMES: dict[str, Any] = {"width_px": 0, "height_px": 0, "decoder": "", "frames_sha256": ""}


def make_frames(
    project: Project, key: str, *, retry_failed: bool = False, progress: Progress = no_progress
) -> StageResult:
    """Decode and sample the shard's videos in killable workers; a video that fails is a row with its reason.

    Videos whose bytes and sampling are those of an earlier run are not decoded again; with retry_failed, those that
    timed out or crashed are. Raises DataError where features of another sampling would be left behind.
    """
    shard = project.shard(STAGE, key)
    with shard.lock():
        videos = project.shard(VIDEOS_STAGE, key).index()
        sampling = project.config.sampling
        settings = {"sampling": sampling.content(), "stored": sampling.store_frames}
        provenance = Provenance(STAGE, settings, {"videos": _content_digest(videos)}, environment())
        known = _known(shard, settings, retry_failed=retry_failed)
        again = retry_failed and len(known) < len(videos.filter(pl.col("status") == STATUS_OK))
        if shard.is_finished(provenance) and not again:
            return StageResult.of(shard, done=False)
        _refuse_other_sampling(project, shard)
        rows = _sample(shard, videos, known, sampling, progress)
        shard.write_index(rows, provenance=provenance, fields=INDEX_COLUMNS)
        return StageResult.of(shard, done=True)


@contextmanager
def open_frames(project: Project, key: str) -> Iterator[FrameReader]:
    """The frames of a finished shard: read from disk, or decoded where they are not stored. Raises DataError."""
    shard = project.shard(STAGE, key)
    if shard.require({"sampling": project.config.sampling.content()}).settings.get("stored", True):
        yield FrameFile(shard)
        return
    rows = shard.index().filter(pl.col("status") == STATUS_OK)
    paths = dict(project.shard(VIDEOS_STAGE, key).index().select("video_id", "path").iter_rows())
    items = {video_id: path_of_text(paths[video_id]) for video_id in rows["video_id"]}
    with VideoSampler(items, config=project.config.sampling) as sampler:
        yield _DecodedFrames(sampler, dict(rows.select("video_id", "frames_sha256").iter_rows()))


class _DecodedFrames:
    """Frames that are decoded when they are read, and must be those that `make_frames` saw."""

    def __init__(self, sampler: VideoSampler, digests: dict[str, str]) -> None:
        self._sampler = sampler
        self._digests = digests
        self._turn = 0
        self._turns = {video_id: turn for turn, video_id in enumerate(digests)}

    @property
    def video_ids(self) -> list[str]:
        return list(self._digests)

    def read(self, video_id: str) -> VideoFrames:
        """Frames of a video. Raises DataError if its file changed or cannot be decoded any more."""
        in_turn = self._turns[video_id] in (self._turn, self._turn + 1)
        self._turn = self._turns[video_id] if in_turn else self._turn
        video = self._sampler.sample(video_id, ahead=in_turn)
        frames = VideoFrames(video_id, video.jpegs, video.timestamps_s)
        if frames.sha256 != self._digests[video_id]:
            raise DataError(
                f"frames: {video_id} does not decode as it did ({video.message or 'other frames'}); run the stages videos "
                f"and frames again, or set sampling.store_frames"
            )
        return frames


def _sample(
    shard: Shard, videos: pl.DataFrame, known: dict[str, dict[str, Any]], sampling: SamplingConfig, progress: Progress
) -> list[dict[str, Any]]:
    """Write the data file, if frames are stored, and return the index: in the order of the data, then lost videos."""
    good = videos.filter(pl.col("status") == STATUS_OK)
    digests = dict(good.select("video_id", "sha256").iter_rows())
    paths = dict(good.select("video_id", "path").iter_rows())
    kept = {video_id for video_id, row in known.items() if digests.get(video_id) == row["file_sha256"]}
    pending = [(video_id, path_of_text(path)) for video_id, path in paths.items() if video_id not in kept]
    sampled = sample_videos(pending, config=sampling)
    rows, num_frames = [], 0
    with ExitStack() as stack:
        writer: RowWriter | None = None
        earlier = FrameFile(shard) if kept and sampling.store_frames else None
        if sampling.store_frames:
            writer = stack.enter_context(shard.write_data(FIELDS, row_group_rows=ROW_GROUP_ROWS, compress=False))
        for video_id in paths:
            if video_id in kept:
                row = known[video_id]
                frames = earlier.read(video_id) if earlier is not None and row["status"] == STATUS_OK else None
            else:
                row, frames = _row(next(sampled), digests[video_id], sampling)
            if writer is not None and frames is not None:
                write_frames(writer, frames)
            rows.append(row)
            num_frames += row["num_rows"]
            progress(len(rows), len(paths), num_frames)
    if not sampling.store_frames:
        shard.delete_data()
    lost = [
        index_row(
            row["video_id"],
            0,
            status=row["status"],
            reason=row["reason"],
            message=row["message"],
            file_sha256="",
            **NO_FRAMES,
        )
        for row in videos.filter(pl.col("status") != STATUS_OK).iter_rows(named=True)
    ]
    return rows + lost


def _row(video: SampledVideo, file_sha256: str, sampling: SamplingConfig) -> tuple[dict[str, Any], VideoFrames | None]:
    reason, message = video.reason, video.message
    if not reason and len(video.jpegs) < sampling.min_frames:
        reason = "too_short"
        message = f"{len(video.jpegs)} frames at {sampling.fps:g} fps; sampling.min_frames is {sampling.min_frames}"
    if reason:
        columns = {"file_sha256": file_sha256, **NO_FRAMES}
        return index_row(video.video_id, 0, reason=reason, message=message, **columns), None
    frames = VideoFrames(video.video_id, video.jpegs, video.timestamps_s)
    columns = {
        "width_px": video.width_px,
        "height_px": video.height_px,
        "decoder": video.decoder,
        "file_sha256": file_sha256,
        "frames_sha256": frames.sha256,
    }
    return index_row(video.video_id, len(video.jpegs), message=message, **columns), frames


def _known(shard: Shard, settings: dict[str, Any], *, retry_failed: bool) -> dict[str, dict[str, Any]]:
    """Rows of an earlier run with the same settings that were decoded, or failed for good."""
    found = shard.provenance()
    if found is None or found.settings != settings:
        return {}
    return {
        row["video_id"]: row
        for row in shard.index().iter_rows(named=True)
        if row["file_sha256"] and not (retry_failed and row["reason"] in {*RETRYABLE, "missing_file"})
    }


def _refuse_other_sampling(project: Project, frames: Shard) -> None:
    features = project.shard(FEATURES_STAGE, frames.key)
    if frames.provenance() is None or features.provenance() is None:
        return
    try:
        frames.require({"sampling": project.config.sampling.content()})
    except DataError as error:
        raise DataError(
            f"{error}; or, to keep what is there, set another data_root. {features.index_name} was made from these frames: "
            f"delete it first if all of the shard is to be made anew"
        ) from error


def _content_digest(videos: pl.DataFrame) -> str:
    """Changes when a video's bytes or fate do, not when a file is only touched or moved."""
    rows = videos.select("video_id", "status", "sha256", "reason").rows()
    return hashlib.sha256(repr(rows).encode()).hexdigest()
