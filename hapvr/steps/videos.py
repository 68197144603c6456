"""Steps 2 and 3: files on disk with a row of metadata per video (asset `videos`), and their sampled
frames (asset `frames`)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hapvr.data import frames
from hapvr.data.filesystem import DataRoot
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
    failed_rows,
)
from hapvr.data.shards import STATUS_FAILED, STATUS_OK, Shard, frame_columns, index_row
from hapvr.errors import DataError
from hapvr.files import file_sha256
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance
from hapvr.steps.project import Project
from hapvr.steps.sources import CORPUS_FOLDER, file_state, is_away
from hapvr.video.pool import RETRYABLE, sample_videos
from hapvr.video.sources import ManifestEntry, is_remote, path_of_text, text_of_path

if TYPE_CHECKING:
    from hapvr.video.download import DownloadResult

DOWNLOAD_FOLDER = "downloads"
CHANGED, MISSING = "changed_file", "missing_file"

# What looking into a file says for good; every other reason may pass, e.g. with a better copy.
PERMANENT = dict.fromkeys(("not_video", "no_video_stream", "unsupported_codec"), "not_video")
PERMANENT["too_large"] = "too_large"


def make_videos(
    project: Project,
    key: str,
    *,
    retry_failed: bool = False,
    retry_gone: bool = True,
    progress: Progress = no_progress,
) -> StageResult:
    """Fetch what is remote, probe every file, and write a row per video, failures with their
    reason. status: ok, unavailable, too_large, not_video, or failed. A finished shard is left
    alone, but with retry_failed its failed videos are tried again, and, unless `retry_gone` is
    false, unavailable ones and what is no video. Rows that are not tried stay as they are, and so
    do those of usable videos whose drive is away, or which their site has no more."""
    rows = {row.video_id: row for row in read_manifest_shard(project.root, key)}
    shard = project.shard(VIDEOS_STAGE, key)
    found = shard.find()
    before = found.rows() if found else []
    if found is None and shard.root.exists(shard.index_name) and is_away(project, source_of(key)):
        said = f"videos: {shard.index_name} is damaged, and its files are away"
        raise DataError(f"{said}; connect their drive, or remove that record to give them up")
    states, away = {video_id: file_state(row) for video_id, row in rows.items()}, {}
    usable = {row["video_id"] for row in before if row["status"] == STATUS_OK}
    gone = [one for one in usable & rows.keys() if states[one].endswith(" missing")]
    if found is not None and gone and is_away(project, source_of(shard.key)):
        states |= (away := {one: found.provenance.inputs[one] for one in gone})
    unread = frozenset(
        row["video_id"]
        for row in before
        if row["status"] == STATUS_FAILED and row["path"] and row["reason"] not in RETRYABLE
    )

    # so that what was made of other contents can be forgotten, too
    former = {
        row["video_id"]: {row["sha256"], *(row.get("former_sha256") or "").split()}
        for row in before
    }
    fetched = {row["video_id"]: row for row in before if row["status"] == STATUS_OK}

    def make(video_ids: Sequence[str]) -> Generator[VideoEntry, None, None]:
        # what was fetched and could not be read is fetched again
        for row, data in _look(project, [rows[video_id] for video_id in video_ids], again=unread):
            if row["status"] != STATUS_OK and is_remote(
                rows[row["video_id"]].uri
            ):  # no site has it any more
                row = fetched.get(row["video_id"], row)
            if (
                row["reason"] == MISSING
            ):  # its state was taken before it went; once back, it has changed
                states[row["video_id"]] = f"{rows[row['video_id']].uri} missing"
            others = sorted(former.get(row["video_id"], set()) - {"", row["sha256"]})
            yield row | {"former_sha256": " ".join(others) or None}, data

    def reuse(row: IndexRow, earlier: Provenance) -> bool:
        video_id = row["video_id"]
        unchanged = video_id in states and earlier.inputs.get(video_id) == states[video_id]
        is_there = (
            row["status"] != STATUS_OK
            or video_id in away
            or os.path.exists(path_of_text(row["path"]))
        )
        tried = row["status"] in ("unavailable", "not_video") and retry_failed and retry_gone
        return unchanged and is_there and not tried and row["status"] != STATUS_FAILED

    recipe = ShardRecipe(
        shard=shard,
        settings={"download": project.config.download.identity_fields()},
        inputs=states,
        index_columns=VIDEO_COLUMNS,
    )
    return build_shard(
        recipe, video_ids=list(rows), make=make, reuse=reuse, retry=retry_failed, progress=progress
    )


@dataclass(frozen=True)
class DamagedFile:
    """A file that we fetched or generated, and that is not there as it was. problem: in words."""

    video_id: str
    path: Path
    problem: str


def damaged_files(root: DataRoot, key: str) -> list[DamagedFile]:
    """Files of a shard that were changed since we fetched or generated them, and fetched ones that
    are lost. Generated ones that are gone may be of an earlier benchmark.

    Raises DamagedError where the shard cannot be read.
    """
    if root.local is None:
        return []
    damaged = []
    for row in Shard(root, VIDEOS_STAGE, key).rows():
        path = path_of_text(row["path"])
        origin = _origin(root, key, row["video_id"], path)
        if row["status"] != STATUS_OK or not origin:
            continue
        problem = ""
        if not os.path.lexists(path):
            problem = "is missing" if origin == "fetched" else ""
        elif not os.path.isfile(path):
            problem = "is not a regular file"
        elif file_sha256(path) != row["sha256"]:
            problem = "changed since it was fetched or made"
        if problem:
            damaged.append(DamagedFile(row["video_id"], path, problem))
    return damaged


def _origin(
    root: DataRoot, key: str, video_id: str, path: Path
) -> Literal["fetched", "generated", ""]:
    """Whether we fetched a file below the data root, as its name tells, or generated it; "" for a
    user's own, and for one behind a link."""
    assert root.local is not None
    base = root.local.resolve()
    if path != path.resolve():
        return ""
    generated = base / CORPUS_FOLDER / video_id.partition("/")[0]
    if path.is_relative_to(generated / "videos"):
        return "generated" if (generated / "corpus.json").is_file() else ""
    if path.parent != base / DOWNLOAD_FOLDER / key:
        return ""
    from hapvr.video.download import file_stem  # with yt-dlp, which generated files need none

    return "fetched" if path.name.startswith(f"{file_stem(video_id)}.") else ""


def _look(
    project: Project, rows: list[ManifestRow], *, again: frozenset[str]
) -> Generator[VideoEntry, None, None]:
    """The entry of each video, in order; downloads run ahead in threads, each with a process.
    again: fetched once more."""
    remote, fetched = (
        [row for row in rows if is_remote(row.uri)],
        dict[str, "Future[DownloadResult]"](),
    )
    with ExitStack() as stack:
        if remote:
            from hapvr.video.download import Downloader  # with yt-dlp, which local files need none

            # All processes start with the first download, and each takes a second of the processor
            # for that.
            workers, folder = (
                min(project.config.download.workers, len(remote)),
                download_folder(project),
            )
            threads = stack.enter_context(ThreadPoolExecutor(workers, "download"))
            # the downloader is closed first: threads that still wait for their process then end
            config = project.config.download.model_copy(update={"workers": workers})
            download = stack.enter_context(Downloader(config)).download
            for one in remote:
                entry, anew = ManifestEntry(one.video_id, one.uri), one.video_id in again
                fetched[one.video_id] = threads.submit(
                    download, entry, folder=folder / one.shard, again=anew
                )

        def files() -> Iterator[tuple[str, Path]]:
            for row in rows:
                path = (
                    fetched[row.video_id].result().path
                    if row.video_id in fetched
                    else path_of_text(row.uri)
                )
                if path is not None:
                    yield row.video_id, path

        inspected = sample_videos(files(), config=project.config.sampling, frames=False)
        for video_id in (one.video_id for one in rows):
            result = fetched[video_id].result() if video_id in fetched else None
            if result is not None and result.path is None:
                row = index_row(
                    video_id, 1, status=result.status, reason=result.reason, message=result.message
                )
                yield row | {"path": "", "num_bytes": 0, "sha256": ""}, None
                continue
            video = next(inspected)
            status = PERMANENT.get(video.reason, "")
            row = index_row(video_id, 1, status=status, reason=video.reason, message=video.message)
            row |= {
                "path": text_of_path(video.path),
                "num_bytes": video.num_bytes,
                "sha256": video.file_sha256,
            }
            if video.probe is not None:
                names = ("duration_s", "fps", "width_px", "height_px", "codec")
                row |= {name: getattr(video.probe, name) for name in names}
            yield row, None


def download_folder(project: Project) -> Path:
    folder = project.config.download.folder
    return project.root.local_path(DOWNLOAD_FOLDER) if folder is None else project.path(folder)


def make_frames(
    project: Project, key: str, *, retry_failed: bool = False, progress: Progress = no_progress
) -> StageResult:
    """Decode and sample the shard's videos in killable workers; a video that fails is a row with
    its reason. Videos whose bytes and sampling are those of an earlier run are not decoded again,
    but for those whose file was not there and is now; with retry_failed, those that failed are
    tried again."""
    sampling = project.config.sampling
    shard = project.shard(frames.STAGE, key)
    videos = project.shard(VIDEOS_STAGE, key).rows()
    good = [row for row in videos if row["status"] == STATUS_OK]
    digests = {row["video_id"]: row["sha256"] for row in good}
    paths = {row["video_id"]: row["path"] for row in good}
    found = shard.find()
    missing = {
        row["video_id"]
        for row in (found.rows() if found is not None else ())
        if row["reason"] == MISSING
    }
    back = {
        one for one in missing & paths.keys() if os.path.exists(path_of_text(paths[one]))
    }  # e.g. moved meanwhile

    def make(video_ids: Sequence[str]) -> Generator[VideoEntry, None, None]:
        pending = [(video_id, path_of_text(paths[video_id])) for video_id in video_ids]
        for video in sample_videos(pending, config=sampling):
            if video.reason == MISSING and is_away(project, source_of(key)):
                raise DataError(
                    f"frames: the files of {source_of(key)} are away; connect their drive "
                    "and repeat this"
                )
            recorded, num_frames = digests[video.video_id], len(video.jpegs)
            reason, message = video.reason, video.message
            if video.file_sha256 not in ("", recorded):
                reason = CHANGED
                said = (
                    "the file is not the one that the step videos read; restore it "
                    "(`hapvr verify --repair` fetches it) or `touch` it"
                )
                message = f"{said}, then run `hapvr download` and `hapvr sample --retry-failed`"
            known = {
                "reason": reason,
                "message": message,
                "file_sha256": recorded,
                "frames_sha256": "",
            }
            row = index_row(video.video_id, 0, **known)
            if reason:
                yield row, None
                continue
            sha256 = frames.VideoFrames(video.jpegs, video.timestamps_s).sha256
            row |= {"num_rows": num_frames, "frames_sha256": sha256}
            yield row, frame_columns(video.video_id, video.timestamps_s, video.jpegs)

    def reuse(row: IndexRow, _: Provenance) -> bool:
        kept = row["video_id"] not in back and not (retry_failed and row["reason"])
        return kept and digests.get(row["video_id"]) == row["file_sha256"]

    recipe = ShardRecipe(
        shard=shard,
        settings={"sampling": sampling.identity_fields()},
        inputs={"videos": content_digest(videos)},
        columns=frames.FIELDS,
        index_columns=frames.INDEX_COLUMNS,
    )
    return build_shard(
        recipe,
        video_ids=list(digests),
        make=make,
        lost=failed_rows(videos, file_sha256="", frames_sha256=""),
        reuse=reuse,
        retry=retry_failed or bool(back),
        progress=progress,
    )


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
