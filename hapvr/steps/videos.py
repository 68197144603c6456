"""Step 2: files on disk with a row of metadata per video (asset `videos`)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hapvr.data.manifest import (
    VIDEO_COLUMNS,
    VIDEOS_STAGE,
    ManifestRow,
    read_manifest_shard,
    source_of,
)
from hapvr.data.shard_build import (
    IndexRow,
    ShardRecipe,
    StageResult,
    VideoEntry,
    build_shard,
)
from hapvr.data.shards import (
    STATUS_FAILED,
    STATUS_OK,
    ShardIndex,
)
from hapvr.errors import DataError
from hapvr.progress import Progress, no_progress, shows_work
from hapvr.provenance import Provenance
from hapvr.steps.fetching import fetch_and_probe
from hapvr.steps.project import Project
from hapvr.steps.source_listing import is_away
from hapvr.steps.sources import MISSING_STATE, file_state
from hapvr.video.pool import RETRYABLE, reader_state
from hapvr.video.sources import is_remote, path_of_text

MISSING = "missing_file"


def make_videos(
    project: Project,
    key: str,
    *,
    retry_failed: bool = False,
    retry_gone: bool = True,
    progress: Progress = no_progress,
) -> StageResult:
    """Fetch remote videos, probe every file, and write a row per video, failures with their reason.
    The status is ok, unavailable, too_large, not_video, or failed.

    A finished shard is not touched, unless `retry_failed`. Rows that are not tried again stay as
    they are, and so do those of usable videos whose drive is offline, or whose site no longer has
    them.

    retry_failed: try failed videos again, and files that were no videos if this program or its
    limits have changed since.
    retry_gone: with `retry_failed` also try unavailable videos, and all files that were no videos.
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

    states = {video_id: file_state(row) for video_id, row in rows.items()}
    offline = {} if index is None else _offline_states(project, key, index, states)
    states |= offline
    videos = _VideosOfShard(
        project=project,
        rows=rows,
        recorded={} if index is None else {row["video_id"]: row for row in index.rows()},
        states=states,
        offline=frozenset(offline),
        retry_failed=retry_failed,
        retry_gone=retry_gone,
        doing=shows_work(progress),
    )
    recipe = ShardRecipe(
        shard=shard,
        settings={"download": project.config.download.identity_fields()},
        inputs=states,
        index_columns=VIDEO_COLUMNS,
    )
    return build_shard(
        recipe,
        video_ids=list(rows),
        make=videos.make,
        reuse=videos.still_hold,
        retry=retry_failed,
        progress=progress,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _VideosOfShard:
    """Fetches and probes the videos of a shard, as `make_videos` says."""

    project: Project
    rows: Mapping[str, ManifestRow]
    """of the manifest, by video id"""
    recorded: Mapping[str, IndexRow]
    """rows of an earlier run"""
    states: dict[str, str]
    """of the files, see `file_state`; they are the inputs of the shard"""
    offline: frozenset[str]
    """usable videos whose drive is away"""
    retry_failed: bool
    retry_gone: bool
    doing: Callable[[str], None] | None

    def make(self, video_ids: Sequence[str]) -> Generator[VideoEntry, None, None]:
        """The row of each video, in their order."""
        wanted = [self.rows[video_id] for video_id in video_ids]
        again = _unread_videos(self.recorded.values())
        for row, data in fetch_and_probe(self.project, wanted, again=again, doing=self.doing):
            video_id = row["video_id"]
            before = self.recorded.get(video_id)
            uri = self.rows[video_id].uri
            if is_remote(uri):
                row = _or_as_before(row, before)
            if row["reason"] == MISSING:
                # its state was taken before it went; once it is back, it has changed
                self.states[video_id] = f"{uri}{MISSING_STATE}"

            yield row | {"former_sha256": _former_sha256(row, before)}, data

    def still_hold(self, row: IndexRow, earlier: Provenance) -> bool:
        """Whether a row of an earlier run still holds."""
        video_id = row["video_id"]
        if video_id not in self.states or earlier.inputs.get(video_id) != self.states[video_id]:
            return False
        if row["status"] == STATUS_OK:
            return video_id in self.offline or os.path.exists(path_of_text(row["path"]))
        reader = reader_state(self.project.config.sampling)
        return not _is_tried_again(
            row, reader, retry_failed=self.retry_failed, retry_gone=self.retry_gone
        )


def _offline_states(
    project: Project, key: str, index: ShardIndex, states: Mapping[str, str]
) -> dict[str, str]:
    """The recorded states of a shard's usable videos whose files are gone with their drive."""
    gone = [
        row["video_id"]
        for row in index.rows()
        if row["status"] == STATUS_OK and states.get(row["video_id"], "").endswith(MISSING_STATE)
    ]
    if not gone or not is_away(project, source_of(key)):
        return {}
    return {video_id: index.provenance.inputs[video_id] for video_id in gone}


def _unread_videos(recorded: Iterable[IndexRow]) -> frozenset[str]:
    """Videos that were fetched but could not be read, and so are fetched again."""
    return frozenset(
        row["video_id"]
        for row in recorded
        if row["status"] == STATUS_FAILED and row["path"] and row["reason"] not in RETRYABLE
    )


def _or_as_before(row: IndexRow, before: IndexRow | None) -> IndexRow:
    """The row of a remote video, or its earlier row if no site has it any more."""
    if row["status"] != STATUS_OK and before is not None and before["status"] == STATUS_OK:
        return before
    return row


def _former_sha256(row: IndexRow, before: IndexRow | None) -> str | None:
    """Digests of former contents of a video, so that what was made of these can be forgotten, too;
    None if it had no others."""
    if before is None:
        return None
    former = {before["sha256"], *(before.get("former_sha256") or "").split()}
    return " ".join(sorted(former - {"", row["sha256"]})) or None


def _is_tried_again(row: IndexRow, reader: str, *, retry_failed: bool, retry_gone: bool) -> bool:
    """Whether a video that cannot be used is tried again, although its file is the same. reader:
    the current versions and limits."""
    if row["status"] == STATUS_FAILED:
        return True
    if not retry_failed:
        return False
    if row["path"] and row.get("tried_with") != reader:
        return True
    return retry_gone and row["status"] in ("unavailable", "not_video")


def content_digest(videos: Sequence[IndexRow]) -> str:
    """A digest that changes with a video's bytes or fate, but not when a file is only touched or
    moved."""
    rows = [(row["video_id"], row["status"], row["sha256"], row["reason"]) for row in videos]
    return hashlib.sha256(repr(rows).encode()).hexdigest()
