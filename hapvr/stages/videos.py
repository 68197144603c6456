"""Stage 2: files on disk and a row of facts per video (asset `videos`)."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl

from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, file_sha256
from hapvr.stages.project import Project
from hapvr.stages.sources import CORPUS_FOLDER
from hapvr.storage.availability import has_availability, write_availability
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.manifest import VIDEO_COLUMNS, VIDEOS_STAGE, ManifestRow, read_manifest_shard
from hapvr.storage.shard_build import IndexRow, ShardRecipe, StageResult, VideoEntry, build_shard
from hapvr.storage.shards import STATUS_FAILED, STATUS_OK, Shard, index_row
from hapvr.video.download import (
    DiskQuota,
    Downloader,
    DownloadResult,
    adopt_download,
    is_partial,
    remove_download,
)
from hapvr.video.pool import RETRYABLE, InspectedVideo, inspect_videos
from hapvr.video.sources import ManifestEntry, is_remote, path_of_text, text_of_path

DOWNLOAD_FOLDER = "downloads"

# What looking into a file says for good; every other reason may pass, e.g. with a better copy.
PERMANENT = {"not_video": "not_video", "no_video_stream": "not_video", "too_large": "too_large"}


def make_videos(
    project: Project, key: str, *, retry_failed: bool = False, progress: Progress = no_progress
) -> StageResult:
    """Fetch what is remote, look into every file, and write a row per video, failures with their reason.

    status: ok, unavailable, too_large, not_video, or failed, which alone may pass. A finished shard is left alone, but
    with retry_failed its failed videos are tried again; rows that are not tried stay as they are.
    """
    rows = {row.video_id: row for row in read_manifest_shard(project.root, key)}
    source = next(iter(rows.values())).source
    states = {video_id: _file_state(row) for video_id, row in rows.items()}
    shard = project.shard(VIDEOS_STAGE, key)
    made: set[str] = set()

    def make(video_ids: Sequence[str]) -> Generator[VideoEntry, None, None]:
        made.update(video_ids)
        _adopt_downloads(project, shard, rows)
        for facts in _look(project, [rows[video_id] for video_id in video_ids], anew=_failed_files(shard)):
            yield VideoEntry(facts)

    def reuse(row: IndexRow, earlier: Provenance) -> bool:
        video_id = row["video_id"]
        unchanged = video_id in states and earlier.inputs.get(video_id) == states[video_id]
        is_there = row["status"] != STATUS_OK or path_of_text(row["path"]).exists()
        partial = video_id in rows and _is_partial_download(row, rows[video_id])
        return unchanged and is_there and not partial and row["status"] != STATUS_FAILED

    def record_availability(index: Sequence[IndexRow]) -> None:
        statuses = {row["video_id"]: row["status"] for row in index}
        write_availability(project.root, source, key, statuses, kept=frozenset(statuses) - made)

    recipe = ShardRecipe(
        shard=shard,
        settings={"download": project.config.download.content()},
        inputs=states,
        index_columns=VIDEO_COLUMNS,
    )
    result = build_shard(
        recipe,
        video_ids=list(rows),
        make=make,
        reuse=reuse,
        retry=retry_failed or _has_partial_download(shard, rows),
        before_index=record_availability,
        progress=progress,
    )
    if not has_availability(project.root, source, key):
        record_availability(shard.index().rows(named=True))
    return result


def damaged_files(root: DataRoot, key: str) -> list[Path]:
    """Fetched and generated files of a shard below the data root that have changed since; files that are gone are none.

    A video of the user's is left alone wherever it lies. Raises DamagedError where the shard cannot be read.
    """
    if root.local is None:
        return []
    folders = [root.local / name for name in (DOWNLOAD_FOLDER, CORPUS_FOLDER)]
    found = Shard(root, VIDEOS_STAGE, key).index().filter(pl.col("status") == STATUS_OK).select("path", "sha256")
    files = {path_of_text(path): sha256 for path, sha256 in found.iter_rows()}
    ours = [path for path in files if any(path.is_relative_to(folder) for folder in folders) and path.is_file()]
    return [path for path in ours if file_sha256(path) != files[path]]


def _is_partial_download(row: IndexRow, video: ManifestRow) -> bool:
    """Whether the index takes a file that was not fetched to its end for a video, as earlier releases could."""
    return is_remote(video.uri) and is_partial(Path(row["path"]))


def _has_partial_download(shard: Shard, videos: Mapping[str, ManifestRow]) -> bool:
    if shard.provenance() is None:
        return False
    found = shard.index().select("video_id", "path").iter_rows(named=True)
    return any(row["video_id"] in videos and _is_partial_download(row, videos[row["video_id"]]) for row in found)


def _adopt_downloads(project: Project, shard: Shard, videos: Mapping[str, ManifestRow]) -> None:
    """Keep the files that an earlier release fetched and this shard's index describes."""
    remote = {video_id for video_id, row in videos.items() if is_remote(row.uri)}
    if not remote or shard.provenance() is None:
        return
    folder = _download_folder(project) / shard.key
    for row in shard.index().iter_rows(named=True):
        path = path_of_text(row["path"])
        if row["video_id"] in remote and row["sha256"] and path.parent == folder:
            adopt_download(row["video_id"], path, num_bytes=row["num_bytes"], sha256=row["sha256"])


def _failed_files(shard: Shard) -> frozenset[str]:
    """Videos that an earlier run fetched and could not read: their files are of no use."""
    found = shard.finished_index()
    if found is None:
        return frozenset()
    return frozenset(
        row["video_id"]
        for row in found[1].iter_rows(named=True)
        if row["status"] == STATUS_FAILED and row["path"] and row["reason"] not in RETRYABLE
    )


def _look(project: Project, rows: list[ManifestRow], *, anew: frozenset[str]) -> Iterator[dict[str, Any]]:
    """Facts of each video, in order; downloads run ahead in threads, each with a process."""
    remote = [row for row in rows if is_remote(row.uri)]
    config = project.config.download
    # All processes start with the first download, and each takes a second of the processor for that.
    config = config.model_copy(update={"workers": max(1, min(config.workers, len(remote)))})
    top = _download_folder(project) if remote else Path()
    quota = DiskQuota(top, config.quota_bytes)
    # the downloader is closed first: threads that still wait for their process then end
    with ThreadPoolExecutor(config.workers, "download") as threads, Downloader(config, quota=quota) as downloader:

        def fetch(row: ManifestRow) -> DownloadResult:
            folder = top / row.shard
            if row.video_id in anew:
                remove_download(row.video_id, folder)
            return downloader.download(ManifestEntry(row.video_id, row.uri), folder=folder)

        fetched = {row.video_id: threads.submit(fetch, row) for row in remote}
        inspected = inspect_videos(_files(rows, fetched), config=project.config.sampling)
        for row in rows:
            result = fetched[row.video_id].result() if row.video_id in fetched else None
            if result is not None and result.path is None:
                yield _row(row.video_id, "", status=result.status, reason=result.reason, message=result.message)
            else:
                yield _facts(next(inspected))


def _files(rows: list[ManifestRow], fetched: dict[str, Future[DownloadResult]]) -> Iterator[tuple[str, Path]]:
    for row in rows:
        path = fetched[row.video_id].result().path if row.video_id in fetched else path_of_text(row.uri)
        if path is not None:
            yield row.video_id, path


def _download_folder(project: Project) -> Path:
    folder = project.config.download.folder
    return project.root.local_path(DOWNLOAD_FOLDER) if folder is None else project.path(folder)


def _facts(video: InspectedVideo) -> dict[str, Any]:
    probe = video.probe
    facts: dict[str, Any] = {"num_bytes": video.num_bytes, "sha256": video.sha256}
    if probe is not None:
        facts |= {
            "duration_s": probe.duration_s,
            "fps": probe.fps,
            "width_px": probe.width_px,
            "height_px": probe.height_px,
            "codec": probe.codec,
        }
    status = PERMANENT.get(video.reason, "")
    return _row(
        video.video_id, text_of_path(video.path), status=status, reason=video.reason, message=video.message, **facts
    )


def _row(video_id: str, path: str, *, status: str, reason: str, message: str, **facts: Any) -> dict[str, Any]:
    columns = {"num_bytes": 0, "sha256": "", **facts}
    return index_row(video_id, 1, status=status, reason=reason, message=message, path=path, **columns)


def _file_state(row: ManifestRow) -> str:
    """What tells whether a local file may have changed; remote ones count as unchanged once fetched."""
    if is_remote(row.uri):
        return row.uri
    try:
        status = path_of_text(row.uri).stat()
    except OSError:
        return f"{row.uri} missing"
    return f"{row.uri} {status.st_size} {status.st_mtime_ns}"
