"""Step 3: sampled frames of the videos of a shard (asset `frames`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

from hapvr.data import frames
from hapvr.data.manifest import VIDEOS_STAGE, source_of
from hapvr.data.shard_build import (
    IndexRow,
    ShardRecipe,
    StageResult,
    VideoEntry,
    build_shard,
    failed_rows,
)
from hapvr.data.shards import STATUS_OK, frame_columns, index_row
from hapvr.errors import DataError
from hapvr.progress import Progress, no_progress, shows_work
from hapvr.provenance import Provenance
from hapvr.steps.project import Project
from hapvr.steps.source_listing import is_away
from hapvr.steps.videos import MISSING, content_digest
from hapvr.video.pool import RETRYABLE, SampledVideo, reader_state, sample_videos
from hapvr.video.settings import SamplingConfig, SamplingMode
from hapvr.video.sources import path_of_text

CHANGED = "changed_file"
CHANGEABLE = RETRYABLE | {CHANGED, MISSING, "decode_error", "no_frames"}
"""Reasons of the machine, of a drive or of a file that was replaced: another try may end
otherwise."""


def make_frames(
    project: Project,
    key: str,
    *,
    retry_failed: bool = False,
    retry_changeable: bool = False,
    progress: Progress = no_progress,
) -> StageResult:
    """Decode and sample the shard's videos in killable workers; a video that fails is a row with
    its reason. Videos whose bytes and sampling are those of an earlier run are not decoded again,
    but for those whose file was not there and is now, and those that were sampled by key frames
    where `sampling.mode` is `thorough` now; thorough frames stay.

    retry_failed: those that failed are tried again
    retry_changeable: those of them for which another try may end otherwise, as the reason is one of
    CHANGEABLE, or this program or its limits are others than then
    """
    sampling = project.config.sampling
    videos = project.shard(VIDEOS_STAGE, key).rows()
    usable = {row["video_id"]: row for row in videos if row["status"] == STATUS_OK}
    shard = project.shard(frames.STAGE, key)
    index = shard.find()
    retry = _Retry(failed=retry_failed, changeable=retry_changeable, sampling=sampling)
    made_again = frozenset(
        row["video_id"]
        for row in (() if index is None else index.rows())
        if row["video_id"] in usable and retry.wants(row, usable[row["video_id"]])
    )
    sampled = _FramesOfShard(
        project=project,
        source=source_of(key),
        usable=usable,
        made_again=made_again,
        doing=shows_work(progress),
    )
    recipe = ShardRecipe(
        shard=shard,
        settings={"sampling": sampling.identity_fields(), "reader": frames.READER_VERSION},
        inputs={"videos": content_digest(videos)},
        columns=frames.FIELDS,
        index_columns=frames.INDEX_COLUMNS,
    )
    return build_shard(
        recipe,
        video_ids=list(usable),
        make=sampled.make,
        lost=failed_rows(videos, file_sha256="", frames_sha256=""),
        reuse=sampled.still_hold,
        retry=bool(made_again),
        progress=progress,
    )


@dataclass(frozen=True, kw_only=True)
class _Retry:
    """Which videos are sampled again although their files are the same."""

    failed: bool
    """all that failed"""
    changeable: bool
    """those that failed for a reason that may have gone"""
    sampling: SamplingConfig

    def wants(self, row: IndexRow, video: IndexRow) -> bool:
        """row: of an earlier run of the step `frames`; video: of the step `videos`."""
        if not row["reason"]:
            return _lacks_thorough_frames(row, self.sampling.mode)
        if self.failed or _is_back(row, video):
            return True
        is_other_reader = row.get("tried_with") != reader_state(self.sampling)
        return self.changeable and (row["reason"] in CHANGEABLE or is_other_reader)


@dataclass(frozen=True, kw_only=True, eq=False)
class _FramesOfShard:
    """Decodes and samples the videos of a shard, as `make_frames` says."""

    project: Project
    source: str
    usable: Mapping[str, IndexRow]
    """rows of the step `videos`, by video id"""
    made_again: frozenset[str]
    """videos whose earlier rows are not taken"""
    doing: Callable[[str], None] | None

    def make(self, video_ids: Sequence[str]) -> Generator[VideoEntry, None, None]:
        """The frames of each video, or why there are none, in their order."""
        sampling = self.project.config.sampling
        reader = reader_state(sampling)
        pending = {video_id: path_of_text(self.usable[video_id]["path"]) for video_id in video_ids}
        # What the step `videos` of this run has read as it is now is not read once more for that.
        are_as_recorded = all(
            self.project.digests.of(path) == self.usable[video_id]["sha256"]
            for video_id, path in pending.items()
        )
        for video in sample_videos(
            pending.items(), config=sampling, digest=not are_as_recorded, doing=self.doing
        ):
            if are_as_recorded:
                video = _or_changed(self.project, video)
            if video.reason == MISSING and is_away(self.project, self.source):
                raise DataError(
                    f"frames: the files of {self.source} are away; connect their drive "
                    "and repeat this"
                )

            yield _frames_entry(video, self.usable[video.video_id]["sha256"], reader)

    def still_hold(self, row: IndexRow, _: Provenance) -> bool:
        """Whether the frames of an earlier run do."""
        video = self.usable.get(row["video_id"])
        is_same = video is not None and video["sha256"] == row["file_sha256"]
        return is_same and row["video_id"] not in self.made_again


def _lacks_thorough_frames(row: IndexRow, mode: SamplingMode) -> bool:
    """Whether frames were sampled by key frames, and are wanted thoroughly."""
    return mode == "thorough" and (row.get("sampled") or "thorough") != "thorough"


def _is_back(row: IndexRow, video: IndexRow) -> bool:
    """Whether a file that was not there is now, e.g. as it was moved meanwhile."""
    return row["reason"] == MISSING and os.path.exists(path_of_text(video["path"]))


def _or_changed(project: Project, video: SampledVideo) -> SampledVideo:
    """A video whose digest was known before it was decoded, or that its file changed since."""
    if video.reason or project.digests.of(video.path):
        return video
    message = f"video: {video.path.name} changed while it was read; run the step again"
    return SampledVideo(video.video_id, video.path, reason=CHANGED, message=message)


def _frames_entry(video: SampledVideo, recorded_sha256: str, reader: str) -> VideoEntry:
    """What is stored of a video that was sampled, or of why it was not. recorded_sha256: of the
    file that the step `videos` read."""
    reason = video.reason
    message = video.message
    if reason in CHANGEABLE:
        message = f"{message}; `hapvr index add` and `hapvr sample --retry-failed` try it again"
    elif reason:
        message = f"{message}; `hapvr sample --retry-failed` tries it again"

    if video.file_sha256 not in ("", recorded_sha256):
        reason = CHANGED
        message = (
            "the file is not the one that the step videos read; restore it "
            "(`hapvr verify --repair` fetches it) or `touch` it, then run `hapvr download` and "
            "`hapvr sample --retry-failed`"
        )

    row = index_row(
        video.video_id,
        0,
        reason=reason,
        message=message,
        file_sha256=recorded_sha256,
        frames_sha256="",
        is_partial=video.is_partial,
        tried_with=reader if reason else None,
        sampled=None if reason else video.mode,
    )
    if reason:
        return row, None
    sha256 = frames.VideoFrames(video.jpegs, video.timestamps_s).sha256
    row |= {"num_rows": len(video.jpegs), "frames_sha256": sha256}
    return row, frame_columns(video.video_id, video.timestamps_s, video.jpegs)


def open_frames(project: Project, key: str) -> frames.FrameFile:
    """The frames of a finished shard. Raises DataError where they are missing or of another
    sampling."""
    shard = project.shard(frames.STAGE, key)
    shard.require({"sampling": project.config.sampling.identity_fields()})
    return frames.FrameFile(shard)
