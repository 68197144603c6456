"""Steps 2 and 3: files on disk with a row of metadata per video (asset `videos`), and their sampled
frames (asset `frames`)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

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
from hapvr.progress import Progress, no_progress, shows_work
from hapvr.provenance import Provenance
from hapvr.steps.project import Project
from hapvr.steps.sources import CORPUS_FOLDER, file_state, is_away
from hapvr.video.pool import RETRYABLE, SampledVideo, reader_state, sample_videos
from hapvr.video.settings import SamplingMode
from hapvr.video.sources import ManifestEntry, is_remote, path_of_text, text_of_path

if TYPE_CHECKING:
    from hapvr.video.download_failures import DownloadResult

DOWNLOAD_FOLDER = "downloads"
CHANGED, MISSING = "changed_file", "missing_file"
CHANGEABLE = RETRYABLE | {CHANGED, MISSING, "decode_error", "no_frames"}
"""Reasons of the machine, of a drive or of a file that was replaced: another try may end
otherwise."""

MODES = get_args(SamplingMode)
"""The most thorough one first."""

TRY_AGAIN = "`hapvr download --retry-failed` tries it again"

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
    reason. status: ok, unavailable, too_large, not_video, or failed.

    A finished shard is left alone, but with retry_failed its failed videos are tried again, as are
    files that are no video where this program or its limits are others than then; unless
    `retry_gone` is false, unavailable ones and what is no video are tried, too. Rows that are not
    tried stay as they are, and so do those of usable videos whose drive is away, or which their
    site has no more."""
    rows = {row.video_id: row for row in read_manifest_shard(project.root, key)}
    shard = project.shard(VIDEOS_STAGE, key)
    found = shard.find()
    before = found.rows() if found else []
    if found is None and shard.root.exists(shard.index_name) and is_away(project, source_of(key)):
        said = f"videos: {shard.index_name} is damaged, and its files are away"
        raise DataError(f"{said}; connect their drive, or remove that record to give them up")
    states = {video_id: file_state(row) for video_id, row in rows.items()}
    away: dict[str, str] = {}
    usable = {row["video_id"] for row in before if row["status"] == STATUS_OK}
    gone = [one for one in usable & rows.keys() if states[one].endswith(" missing")]
    if found is not None and gone and is_away(project, source_of(shard.key)):
        away = {one: found.provenance.inputs[one] for one in gone}
        states |= away
    reader = reader_state(project.config.sampling)
    # what was fetched and could not be read is fetched again
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
        wanted = [rows[video_id] for video_id in video_ids]
        for row, data in _look(project, wanted, again=unread, doing=shows_work(progress)):
            video_id = row["video_id"]
            if row["status"] != STATUS_OK and is_remote(rows[video_id].uri):
                row = fetched.get(video_id, row)  # no site has it any more
            if row["reason"] == MISSING:
                # its state was taken before it went; once back, it has changed
                states[video_id] = f"{rows[video_id].uri} missing"
            others = sorted(former.get(video_id, set()) - {"", row["sha256"]})
            yield row | {"former_sha256": " ".join(others) or None}, data

    def reuse(row: IndexRow, earlier: Provenance) -> bool:
        video_id = row["video_id"]
        if video_id not in states or earlier.inputs.get(video_id) != states[video_id]:
            return False
        if row["status"] == STATUS_OK:
            return video_id in away or os.path.exists(path_of_text(row["path"]))
        if row["status"] == STATUS_FAILED:
            return False
        if retry_failed and row["path"] and row.get("tried_with") != reader:
            return False
        tried = row["status"] in ("unavailable", "not_video") and retry_failed and retry_gone
        return not tried

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
    project: Project,
    rows: list[ManifestRow],
    *,
    again: frozenset[str],
    doing: Callable[[str], None] | None,
) -> Generator[VideoEntry, None, None]:
    """The entry of each video, in order; downloads run ahead in threads, each with a process.
    again: fetched once more. doing: is told which file is read."""
    with ExitStack() as stack:
        fetched = _begin_downloads(project, rows, again=again, stack=stack)

        def files() -> Iterator[tuple[str, Path]]:
            for row in rows:
                if row.video_id in fetched:
                    path = fetched[row.video_id].result().path
                else:
                    path = path_of_text(row.uri)
                if path is not None:
                    yield row.video_id, path

        sampling = project.config.sampling
        inspected = sample_videos(files(), config=sampling, frames=False, doing=doing)
        for video_id in (one.video_id for one in rows):
            result = fetched[video_id].result() if video_id in fetched else None
            if result is not None and result.path is None:
                row = index_row(
                    video_id,
                    1,
                    status=result.status,
                    reason=result.reason,
                    message=f"{result.message}; {TRY_AGAIN}",
                )
                yield row | {"path": "", "num_bytes": 0, "sha256": ""}, None
            else:
                yield _inspected_row(next(inspected), reader_state(sampling)), None


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
        one.video_id: threads.submit(
            download,
            ManifestEntry(one.video_id, one.uri),
            folder=folder / one.shard,
            again=one.video_id in again,
        )
        for one in remote
    }


def _inspected_row(video: SampledVideo, reader: str) -> IndexRow:
    """The row of a file that was looked into."""
    status = PERMANENT.get(video.reason, "")
    message = video.message
    if video.reason:
        message = f"{message}; {TRY_AGAIN}"
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
    but for those whose file was not there and is now, and those whose frames are of a hastier
    `sampling.mode` than that of today; frames of a more thorough one stay.

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
            return _is_hastier(row, sampling.mode)
        may_change = row["reason"] in CHANGEABLE or row.get("tried_with") != reader
        if retry_failed or (retry_changeable and may_change):
            return True
        return _is_back(row, good[row["video_id"]])

    made_again = {
        row["video_id"] for row in earlier if row["video_id"] in good and is_made_again(row)
    }

    def make(video_ids: Sequence[str]) -> Generator[VideoEntry, None, None]:
        pending = [(video_id, path_of_text(good[video_id]["path"])) for video_id in video_ids]
        for video in sample_videos(pending, config=sampling, doing=shows_work(progress)):
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


def _is_hastier(row: IndexRow, mode: SamplingMode) -> bool:
    """Whether frames are of a hastier mode than this one."""
    return MODES.index(row.get("sampled") or "thorough") > MODES.index(mode)


def _is_back(row: IndexRow, video: IndexRow) -> bool:
    """Whether a file that was not there is now, e.g. as it was moved meanwhile."""
    return row["reason"] == MISSING and os.path.exists(path_of_text(video["path"]))


def _frames_entry(video: SampledVideo, recorded_sha256: str, reader: str) -> VideoEntry:
    """What is stored of a video that was sampled, or of why it was not. recorded_sha256: of the
    file that the step `videos` read."""
    reason = video.reason
    message = video.message
    if reason:
        message = f"{message}; `hapvr sample --retry-failed` tries it again"
    if video.file_sha256 not in ("", recorded_sha256):
        reason = CHANGED
        said = (
            "the file is not the one that the step videos read; restore it "
            "(`hapvr verify --repair` fetches it) or `touch` it"
        )
        message = f"{said}, then run `hapvr download` and `hapvr sample --retry-failed`"
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
