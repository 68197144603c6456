"""Stage 2: files on disk and a row of facts per video (asset `videos`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hapvr.config import digest
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, environment
from hapvr.stages.project import Project, StageResult
from hapvr.storage.manifest import VIDEO_COLUMNS, VIDEOS_STAGE, ManifestRow, read_manifest_shard
from hapvr.storage.shards import index_row
from hapvr.video.download import download_video
from hapvr.video.manifest import ManifestEntry, is_remote
from hapvr.video.pool import inspect_videos

DOWNLOAD_FOLDER = "downloads"


def make_videos(project: Project, key: str, *, progress: Progress = no_progress) -> StageResult:
    """Fetch what is remote, look into every file, and write a row per video, failures with their reason."""
    rows = read_manifest_shard(project.root, key)
    shard = project.shard(VIDEOS_STAGE, key)
    state = {row.video_id: _file_state(row) for row in rows}
    provenance = Provenance(VIDEOS_STAGE, {"download": digest(project.config.download)}, state, environment())
    if shard.is_finished(provenance):
        return StageResult.of(shard, done=False)
    facts = []
    for done, row in enumerate(_inspect(project, rows), start=1):
        facts.append(row)
        progress(done, len(rows))
    shard.write_index(facts, provenance=provenance, fields=VIDEO_COLUMNS)
    return StageResult.of(shard, done=True)


def _inspect(project: Project, rows: list[ManifestRow]) -> Iterator[dict[str, Any]]:
    failed: dict[str, dict[str, Any]] = {}
    local: list[tuple[str, Path]] = []
    for row in rows:
        if not is_remote(row.uri):
            local.append((row.video_id, Path(row.uri)))
            continue
        folder = project.root.local_path(f"{DOWNLOAD_FOLDER}/{row.shard}")
        entry = ManifestEntry(row.video_id, row.uri)
        result = download_video(entry, folder=folder, config=project.config.download)
        if result.path is None:
            failed[row.video_id] = _row(row.video_id, "", result.reason, result.message)
        else:
            local.append((row.video_id, result.path))
    inspected = inspect_videos(local, config=project.config.sampling)
    for row in rows:
        if row.video_id in failed:
            yield failed[row.video_id]
            continue
        video = next(inspected)
        probe = video.probe
        facts: dict[str, Any] = (
            {}
            if probe is None
            else {
                "duration_s": probe.duration_s,
                "fps": probe.fps,
                "width_px": probe.width_px,
                "height_px": probe.height_px,
                "codec": probe.codec,
            }
        )
        facts |= {"num_bytes": video.num_bytes, "sha256": video.sha256}
        yield _row(video.video_id, str(video.path), video.reason, video.message, **facts)


def _row(video_id: str, path: str, reason: str, message: str, **facts: Any) -> dict[str, Any]:
    columns = {"num_bytes": 0, "sha256": "", **facts}
    return index_row(video_id, 1, reason=reason, message=message, path=path, **columns)


def _file_state(row: ManifestRow) -> str:
    """What tells whether a local file may have changed; remote ones count as unchanged once fetched."""
    if is_remote(row.uri):
        return row.uri
    try:
        status = Path(row.uri).stat()
    except OSError:
        return f"{row.uri} missing"
    return f"{row.uri} {status.st_size} {status.st_mtime_ns}"
