"""Files of videos: fetched where they are remote, and looked into."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from hapvr.data.manifest import ManifestRow
from hapvr.data.shard_build import IndexRow, VideoEntry
from hapvr.data.shards import index_row
from hapvr.steps.project import Project
from hapvr.video.pool import SampledVideo, reader_state, sample_videos
from hapvr.video.sources import ManifestEntry, is_remote, path_of_text, text_of_path

if TYPE_CHECKING:
    from hapvr.video.download_failures import DownloadResult

DOWNLOAD_FOLDER = "downloads"
LASTING = {
    "unavailable": "`hapvr download --retry-failed` tries it again",
    "not_video": "`hapvr download --retry-failed` tries it again",
    "too_large": "it is tried again under other limits",
}
"""Status -> when a video is tried again whose file or address is still the same."""
PASSING = "`hapvr index add` and `hapvr download --retry-failed` try it again"
"""When one of any other status is."""

# What looking into a file says for good; every other reason may pass, e.g. with a better copy.
PERMANENT = dict.fromkeys(("not_video", "no_video_stream", "unsupported_codec"), "not_video")
PERMANENT["too_large"] = "too_large"


def fetch_and_probe(
    project: Project,
    rows: list[ManifestRow],
    *,
    again: frozenset[str],
    doing: Callable[[str], None] | None,
) -> Generator[VideoEntry, None, None]:
    """The entry of each video, in order; downloads run ahead in threads, each with a process.

    again: ids of those that are fetched once more.
    doing: is told which file is read.
    """
    with ExitStack() as stack:
        fetched = _begin_downloads(project, rows, again=again, stack=stack)

        def files() -> Iterator[tuple[str, Path]]:
            for row in rows:
                if row.video_id in fetched:
                    path = fetched[row.video_id].result().path
                else:
                    path = path_of_text(row.uri)

                if path is not None:
                    project.digests.watch(path)
                    yield row.video_id, path

        sampling = project.config.sampling
        inspected = sample_videos(files(), config=sampling, frames=False, doing=doing)
        for manifest_row in rows:
            video_id = manifest_row.video_id
            result = fetched[video_id].result() if video_id in fetched else None
            if result is not None and result.path is None:
                yield _unfetched_row(video_id, result), None
            else:
                video = next(inspected)
                project.digests.record(video.path, video.file_sha256)
                yield _inspected_row(video, reader_state(sampling)), None


def _begin_downloads(
    project: Project, rows: list[ManifestRow], *, again: frozenset[str], stack: ExitStack
) -> dict[str, Future[DownloadResult]]:
    """Downloads of all videos that are remote, by id. They end with the stack."""
    remote = [row for row in rows if is_remote(row.uri)]
    if not remote:
        return {}
    from hapvr.video.download import Downloader  # with yt-dlp, which local files need none

    # All processes start with the first download, and each takes a second of the processor for
    # that.
    workers = min(project.config.download.workers, len(remote))
    folder = download_folder(project)
    threads = stack.enter_context(ThreadPoolExecutor(workers, "download"))
    # the downloader is closed first: threads that still wait for their process then end
    config = project.config.download.model_copy(update={"workers": workers})
    download = stack.enter_context(Downloader(config)).download
    return {
        row.video_id: threads.submit(
            download,
            ManifestEntry(row.video_id, row.uri),
            folder=folder / row.shard,
            again=row.video_id in again,
        )
        for row in remote
    }


def _unfetched_row(video_id: str, result: DownloadResult) -> IndexRow:
    """The row of a video that could not be fetched."""
    message = _with_next_try(result.message, result.status)
    row = index_row(video_id, 1, status=result.status, reason=result.reason, message=message)
    return row | {"path": "", "num_bytes": 0, "sha256": ""}


def _with_next_try(message: str, status: str) -> str:
    """What happened, and what tries it again."""
    return f"{message}; {LASTING.get(status, PASSING)}"


def _inspected_row(video: SampledVideo, reader: str) -> IndexRow:
    """The row of a file that was looked into."""
    status = PERMANENT.get(video.reason, "")
    message = _with_next_try(video.message, status) if video.reason else video.message
    row = index_row(video.video_id, 1, status=status, reason=video.reason, message=message)
    row |= {
        "path": text_of_path(video.path),
        "num_bytes": video.num_bytes,
        "sha256": video.file_sha256,
        "tried_with": reader if video.reason else None,
    }
    if video.probe is not None:
        names = ("duration_s", "fps", "width_px", "height_px", "codec")
        row |= {name: getattr(video.probe, name) for name in names}

    return row


def download_folder(project: Project) -> Path:
    folder = project.config.download.folder
    return project.root.local_path(DOWNLOAD_FOLDER) if folder is None else project.path(folder)
