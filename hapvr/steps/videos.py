"""Steps 2 and 3: files on disk with a row of metadata per video (asset `videos`), and their sampled
frames (asset `frames`)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterable, Mapping, Sequence

from hapvr.data import frames
from hapvr.data.manifest import (
    VIDEO_COLUMNS,
    VIDEOS_STAGE,
    read_manifest_shard,
    source_of,
)
from hapvr.data.shard_build import (
    IndexRow,
    ShardRecipe,
    StageResult,
    VideoEntry,
    build_shard,
    failed_rows,
)
from hapvr.data.shards import (
    STATUS_FAILED,
    STATUS_OK,
    ShardIndex,
    frame_columns,
    index_row,
)
from hapvr.errors import DataError
from hapvr.progress import Progress, no_progress, shows_work
from hapvr.provenance import Provenance
from hapvr.steps.fetching import fetch_and_probe
from hapvr.steps.project import Project
from hapvr.steps.source_listing import is_away
from hapvr.steps.sources import MISSING_STATE, file_state
from hapvr.video.pool import RETRYABLE, SampledVideo, reader_state, sample_videos
from hapvr.video.settings import SamplingMode
from hapvr.video.sources import is_remote, path_of_text

CHANGED = "changed_file"
MISSING = "missing_file"
CHANGEABLE = RETRYABLE | {CHANGED, MISSING, "decode_error", "no_frames"}
"""Reasons of the machine, of a drive or of a file that was replaced: another try may end
otherwise."""


def make_videos(
    project: Project,
    key: str,
    *,
    retry_failed: bool = False,
    retry_gone: bool = True,
    progress: Progress = no_progress,
) -> StageResult:
    """Fetch what is remote, probe every file, and write a row per video, failures with their
    reason. The status is ok, unavailable, too_large, not_video, or failed.

    A finished shard is left alone, unless `retry_failed`. Rows that are not tried again stay as
    they are, and so do those of usable videos whose drive is offline, or which their site has no
    more.

    retry_failed: try failed videos again, and files that are not videos where this program or its
    limits are others than then.
    retry_gone: with `retry_failed` also try unavailable videos, and all that is not a video.
    """
    rows = {row.video_id: row for row in read_manifest_shard(project.root, key)}
    shard = project.shard(VIDEOS_STAGE, key)
    index = shard.find()
    is_damaged = index is None and shard.root.exists(shard.index_name)
    if is_damaged and is_away(project, source_of(key)):
        raise DataError(
            f"videos: {shard.index_name} is damaged, and its files are away; connect their drive, "
            "or remove that record to drop them"
        )

    recorded = {} if index is None else {row["video_id"]: row for row in index.rows()}
    states = {video_id: file_state(row) for video_id, row in rows.items()}
    offline = {} if index is None else _offline_states(project, key, index, states)
    states |= offline
    reader = reader_state(project.config.sampling)

    def make(video_ids: Sequence[str]) -> Generator[VideoEntry, None, None]:
        wanted = [rows[video_id] for video_id in video_ids]
        again = _unread_videos(recorded.values())
        for row, data in fetch_and_probe(project, wanted, again=again, doing=shows_work(progress)):
            video_id = row["video_id"]
            before = recorded.get(video_id)
            if is_remote(rows[video_id].uri):
                row = _or_as_before(row, before)
            if row["reason"] == MISSING:
                # its state was taken before it went; once back, it has changed
                states[video_id] = f"{rows[video_id].uri}{MISSING_STATE}"

            yield row | {"former_sha256": _former_sha256(row, before)}, data

    def reuse(row: IndexRow, earlier: Provenance) -> bool:
        video_id = row["video_id"]
        if video_id not in states or earlier.inputs.get(video_id) != states[video_id]:
            return False
        if row["status"] == STATUS_OK:
            return video_id in offline or os.path.exists(path_of_text(row["path"]))
        return not _is_tried_again(row, reader, retry_failed=retry_failed, retry_gone=retry_gone)

    recipe = ShardRecipe(
        shard=shard,
        settings={"download": project.config.download.identity_fields()},
        inputs=states,
        index_columns=VIDEO_COLUMNS,
    )
    return build_shard(
        recipe, video_ids=list(rows), make=make, reuse=reuse, retry=retry_failed, progress=progress
    )


def _offline_states(
    project: Project, key: str, index: ShardIndex, states: Mapping[str, str]
) -> dict[str, str]:
    """The recorded states of usable videos of a shard whose files are gone with their drive."""
    gone = [
        row["video_id"]
        for row in index.rows()
        if row["status"] == STATUS_OK and states.get(row["video_id"], "").endswith(MISSING_STATE)
    ]
    if not gone or not is_away(project, source_of(key)):
        return {}
    return {video_id: index.provenance.inputs[video_id] for video_id in gone}


def _unread_videos(recorded: Iterable[IndexRow]) -> frozenset[str]:
    """Videos that were fetched and could not be read, so that they are fetched again."""
    return frozenset(
        row["video_id"]
        for row in recorded
        if row["status"] == STATUS_FAILED and row["path"] and row["reason"] not in RETRYABLE
    )


def _or_as_before(row: IndexRow, before: IndexRow | None) -> IndexRow:
    """The row of a remote video, or its earlier one where no site has it any more."""
    if row["status"] != STATUS_OK and before is not None and before["status"] == STATUS_OK:
        return before
    return row


def _former_sha256(row: IndexRow, before: IndexRow | None) -> str | None:
    """Digests of other contents that a video had, so that what was made of these can be forgotten,
    too; None where it had no others."""
    if before is None:
        return None
    former = {before["sha256"], *(before.get("former_sha256") or "").split()}
    return " ".join(sorted(former - {"", row["sha256"]})) or None


def _is_tried_again(row: IndexRow, reader: str, *, retry_failed: bool, retry_gone: bool) -> bool:
    """Whether a video that cannot be used is tried again, although its file is the same. reader:
    the versions and limits of now."""
    if row["status"] == STATUS_FAILED:
        return True
    if not retry_failed:
        return False
    if row["path"] and row.get("tried_with") != reader:
        return True
    return retry_gone and row["status"] in ("unavailable", "not_video")


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
    shard = project.shard(frames.STAGE, key)
    videos = project.shard(VIDEOS_STAGE, key).rows()
    good = {row["video_id"]: row for row in videos if row["status"] == STATUS_OK}
    reader = reader_state(sampling)
    index = shard.find()
    earlier = [] if index is None else index.rows()

    def is_made_again(row: IndexRow) -> bool:
        if not row["reason"]:
            return _lacks_thorough_frames(row, sampling.mode)
        may_change = row["reason"] in CHANGEABLE or row.get("tried_with") != reader
        if retry_failed or (retry_changeable and may_change):
            return True
        return _is_back(row, good[row["video_id"]])

    made_again = {
        row["video_id"] for row in earlier if row["video_id"] in good and is_made_again(row)
    }

    def make(video_ids: Sequence[str]) -> Generator[VideoEntry, None, None]:
        pending = {video_id: path_of_text(good[video_id]["path"]) for video_id in video_ids}
        # What the step `videos` of this run has read as it is now is not read once more for that.
        are_as_recorded = all(
            project.digests.of(path) == good[video_id]["sha256"]
            for video_id, path in pending.items()
        )
        for video in sample_videos(
            pending.items(),
            config=sampling,
            digest=not are_as_recorded,
            doing=shows_work(progress),
        ):
            if are_as_recorded:
                video = _or_changed(project, video)
            if video.reason == MISSING and is_away(project, source_of(key)):
                raise DataError(
                    f"frames: the files of {source_of(key)} are away; connect their drive "
                    "and repeat this"
                )

            yield _frames_entry(video, good[video.video_id]["sha256"], reader)

    def reuse(row: IndexRow, _: Provenance) -> bool:
        video_id = row["video_id"]
        is_same = video_id in good and good[video_id]["sha256"] == row["file_sha256"]
        return is_same and video_id not in made_again

    recipe = ShardRecipe(
        shard=shard,
        settings={"sampling": sampling.identity_fields(), "reader": frames.READER_VERSION},
        inputs={"videos": content_digest(videos)},
        columns=frames.FIELDS,
        index_columns=frames.INDEX_COLUMNS,
    )
    return build_shard(
        recipe,
        video_ids=list(good),
        make=make,
        lost=failed_rows(videos, file_sha256="", frames_sha256=""),
        reuse=reuse,
        retry=bool(made_again),
        progress=progress,
    )


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


def content_digest(videos: Sequence[IndexRow]) -> str:
    """Changes when a video's bytes or fate do, not when a file is only touched or moved."""
    rows = [(row["video_id"], row["status"], row["sha256"], row["reason"]) for row in videos]
    return hashlib.sha256(repr(rows).encode()).hexdigest()
