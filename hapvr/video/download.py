"""Remote videos as files: YouTube ids, pages that yt-dlp knows, and plain http(s) links to files.

yt-dlp reads whatever a server sends. It therefore runs in processes that are killed at their deadline, have limits of
memory and file size, start no other programs, and do not follow an address of the internet into the local network. While
it is fetched, a video is `<stem>.new.*`; a finished file is `<stem>.<suffix>` with a record of its size and digest next to it.
Only files that a record describes are ever replaced; anything else under such a name is set aside.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import ipaddress
import json
import logging
import math
import os
import re
import resource
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import yt_dlp
from yt_dlp.networking.exceptions import HTTPError
from yt_dlp.utils import GeoRestrictedError, UnsupportedError, YoutubeDLError

from hapvr.errors import ArgumentError, DamagedError, DataError
from hapvr.files import read_json_as, set_aside, write_atomic
from hapvr.provenance import file_sha256
from hapvr.video.pool import open_pool
from hapvr.video.settings import DownloadConfig
from hapvr.video.sources import ManifestEntry, is_remote

Status = Literal["ok", "unavailable", "failed", "too_large", "not_video"]

MAX_WAIT_S = 60.0
MAX_MEMORY_BYTES = 2**30
"""What a download process may hold in memory; it reads pages and playlists whole."""
SOCKET_TIMEOUT_S = 30.0
UNAVAILABLE_CODES = frozenset({401, 402, 403, 404, 405, 410, 451})
FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

YOUTUBE_PROGRAM = "deno"
"""Solves the puzzles of YouTube's player for yt-dlp, where it is installed; the one program that may be started."""

_PROGRAM_EVENTS = frozenset({"subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.system"})

# Phrases of sites for videos that will not come back. A demand to prove one is no robot is not among them: it passes.
_GONE = re.compile(
    "video unavailable|private video|video is private|has been removed|been terminated|not available in your country|"
    "no longer available|does not exist|members-only|confirm your age|copyright|drm protected|no video formats found"
)
# What yt-dlp says of streams that only another program could save.
_NEEDS_PROGRAM = re.compile("ffmpeg|rtmpdump|mplayer|mpv")

_LOG = logging.getLogger(__name__)
_LOG.addHandler(logging.NullHandler())


@dataclass(frozen=True)
class DownloadResult:
    """What came of one video. path: its file if status is ok. reason: "" or a short code."""

    video_id: str
    status: Status
    path: Path | None
    reason: str
    message: str


@dataclass(frozen=True)
class _Record:
    """A finished file: its name, size and digest."""

    file: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class _Task:
    """One video to fetch as `folder/stem.new.<suffix>`. room_bytes: a larger file is refused."""

    uri: str
    folder: Path
    stem: str
    config: DownloadConfig
    timeout_s: float
    room_bytes: int


@dataclass(frozen=True)
class _Fetched:
    """What came of a task. record: of the new file, if status is ok."""

    status: Status
    reason: str = ""
    message: str = ""
    record: _Record | None = None


class DiskQuota:
    """How much all videos below a folder may take together, shared by threads that download; None: no limit."""

    def __init__(self, folder: Path, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes
        self._changed = threading.Condition()
        self._running = 0
        taken = 0 if limit_bytes is None else _num_bytes(folder.rglob("*"))
        self._free: float = math.inf if limit_bytes is None else limit_bytes - taken

    @contextlib.contextmanager
    def room(self, folder: Path, stem: str, max_bytes: int) -> Iterator[int]:
        """The size up to `max_bytes` that a video may have. Near the limit, downloads wait for those that run."""
        before = _num_bytes(folder.glob(f"{stem}.*"))
        with self._changed:
            self._changed.wait_for(lambda: not self._running or self._free + before >= max_bytes)
            room = max(0, int(min(max_bytes, self._free + before)))
            self._free -= max(0, room - before)
            self._running += 1
        try:
            yield room
        finally:
            after = _num_bytes(folder.glob(f"{stem}.*"))
            with self._changed:
                self._free += max(0, room - before) - (after - before)
                self._running -= 1
                self._changed.notify_all()


class Downloader:
    """Fetches videos in `config.workers` processes. A context; `download` may be called from as many threads."""

    def __init__(self, config: DownloadConfig, *, quota: DiskQuota | None = None) -> None:
        self._config = config
        self._quota = quota or DiskQuota(Path(), None)
        self._stack = contextlib.ExitStack()
        limits = {resource.RLIMIT_DATA: MAX_MEMORY_BYTES, resource.RLIMIT_FSIZE: config.max_bytes}
        self._pool = self._stack.enter_context(open_pool(workers=config.workers, limits=limits, prepare=guard_process))

    def __enter__(self) -> Downloader:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def download(
        self, entry: ManifestEntry, *, folder: Path, timeout_s: float | None = None, again: bool = False
    ) -> DownloadResult:
        """Fetch one video into the folder, under a name made from its id. A finished file is not fetched twice.

        Failures that may pass (dropped connections, 429, 5xx; status failed) are tried `config.retries` times more with
        growing waits, each resuming the partial file. timeout_s: for this call, with the start of its process; None: that
        of the configuration, for the attempts alone. again: fetch it although it is finished; the old file stays until
        the new one stands.
        Raises ArgumentError for a local uri, and DataError where the disk is full. No failure of the network raises.
        """
        if not is_remote(entry.uri):
            raise ArgumentError(
                f"download: {entry.uri!r} is neither an http(s) URL nor youtube:<id>; it needs no download"
            )
        finished = fetched_file(entry.video_id, folder)
        if finished is not None and not again and finished[0].stat().st_size == finished[1].num_bytes:
            return DownloadResult(entry.video_id, "ok", finished[0], "", "")
        folder.mkdir(parents=True, exist_ok=True)
        stem, config = file_stem(entry.video_id), self._config
        _remove_pieces(folder, stem)
        with self._quota.room(folder, stem, config.max_bytes) as room_bytes:
            task = _Task(entry.uri, folder, stem, config, timeout_s or config.timeout_s, room_bytes)
            fetched = self._fetch(task, wait_s=timeout_s)
            if fetched.record is not None:
                path = _place(folder, stem, fetched.record, finished)
                return DownloadResult(entry.video_id, "ok", path, "", "")
        if fetched.status == "too_large" and room_bytes < config.max_bytes:
            message = f"it does not fit; download.quota_bytes is {self._quota.limit_bytes}"
            fetched = _Fetched("failed", "quota", message)
        message = f"download: {entry.uri}: {fetched.message}"
        return DownloadResult(entry.video_id, fetched.status, None, fetched.reason, message)

    def _fetch(self, task: _Task, *, wait_s: float | None) -> _Fetched:
        future = self._pool.schedule(_fetch, args=(task,), timeout=task.timeout_s)
        try:
            fetched: _Fetched = future.result(wait_s)
        except FutureTimeoutError:
            future.cancel()  # type: ignore[no-untyped-call]
            fetched = _Fetched("failed", "timeout", f"not done after {task.timeout_s:g} s; a later run resumes it")
        except Exception as error:  # whatever a server provokes in yt-dlp costs this download only
            fetched = _Fetched("failed", "crashed", f"the download process failed ({type(error).__name__}: {error})")
        if fetched.reason == "disk_full":
            raise DataError(
                f"download: {task.folder} cannot take more ({fetched.message}); free space or set download.quota_bytes, "
                f"then run again: finished files are kept and partial ones resumed"
            )
        if fetched.status != "ok":
            _remove_pieces(task.folder, task.stem, all_of_them=fetched.status == "too_large")
        return fetched


def file_stem(video_id: str) -> str:
    """A file name without suffix that any file system takes, and that nothing in the id can steer elsewhere."""
    return hashlib.blake2b(video_id.encode(), digest_size=16).hexdigest()


def fetched_file(video_id: str, folder: Path) -> tuple[Path, _Record] | None:
    """The file that our record says was fetched of a video, and the record; None where there is none, or it is a link."""
    stem = file_stem(video_id)
    try:
        record = read_json_as(folder / f"{stem}.json", _Record, hint="it is fetched again")
    except DamagedError:
        return None
    path = folder / record.file
    ours = path.name == record.file and path.name.startswith(f"{stem}.") and path.is_file() and not path.is_symlink()
    return (path, record) if ours else None


def _num_bytes(paths: Iterable[Path]) -> int:
    """The total size of files, without their records."""
    return sum(path.stat().st_size for path in paths if path.suffix != ".json" and path.is_file())


def _place(folder: Path, stem: str, record: _Record, old: tuple[Path, _Record] | None) -> Path:
    """Give a new file its name. What stands there goes only if it is what the old record says; else it is set aside."""
    path = folder / record.file.replace(".new.", ".")
    intact = old is not None and file_sha256(old[0]) == old[1].sha256
    for other in {path, *([old[0]] if old is not None else [])}:
        if other.is_symlink() or (other.exists() and not (intact and old is not None and other == old[0])):
            set_aside(other)
    with write_atomic(folder / f"{stem}.json") as part:
        part.write_text(json.dumps(asdict(record) | {"file": path.name}), encoding="utf-8")
    (folder / record.file).replace(path)
    if old is not None and old[0] != path:
        old[0].unlink(missing_ok=True)
    return path


def _remove_pieces(folder: Path, stem: str, *, all_of_them: bool = False) -> None:
    """Remove what a download left, but for a partial file of one piece, which can be resumed.

    Pieces of a stream cannot: a process that is killed between adding a piece and noting it would add it twice.
    """
    paths = list(folder.glob(f"{stem}.new.*"))
    whole = not all_of_them and not any(path.suffix == ".ytdl" for path in paths)
    for path in paths:
        if not (whole and path.suffix == ".part" and path.name.count(".") == 3):
            path.unlink(missing_ok=True)


# What runs in a download process.

_allowed_program = ""
_may_go_local = True


def guard_process() -> None:
    """From now on, this process starts no program but YOUTUBE_PROGRAM, and that only for YouTube's own pages.

    yt-dlp hands live and unusual streams to ffmpeg, which knows no limits; to yt-dlp it now looks as if no such program
    were installed. Nor does it connect to the local network, unless the address that it was given lies there.
    """
    sys.addaudithook(_refuse)


def _fetch(task: _Task) -> _Fetched:
    """Fetch one video. Network failures are results; nothing is raised for them."""
    global _allowed_program, _may_go_local
    youtube = task.uri.lower().startswith("youtube:")
    _allowed_program = YOUTUBE_PROGRAM if youtube else ""
    _may_go_local = bool(task.config.proxy or urllib.request.getproxies() or _is_local(urlsplit(task.uri).hostname))
    address = f"https://www.youtube.com/watch?v={task.uri.partition(':')[2]}" if youtube else task.uri
    deadline_s = time.monotonic() + task.timeout_s
    for attempt in range(task.config.retries + 1):
        fetched = _attempt(address, task)
        wait_s = min(MAX_WAIT_S, task.config.backoff_s * 2**attempt)
        final = fetched.status != "failed" or fetched.reason in ("disk_full", "live")
        if final or attempt == task.config.retries or time.monotonic() + wait_s > deadline_s:
            break
        time.sleep(wait_s)
    return fetched


def _attempt(address: str, task: _Task) -> _Fetched:
    try:
        with yt_dlp.YoutubeDL(_options(task)) as downloader:  # type: ignore[no-untyped-call]
            info = downloader.extract_info(address, download=True) or {}
        info = next(iter(info["entries"]), None) or {} if info.get("entries") is not None else info
        saved = (info.get("requested_downloads") or [{}])[0].get("filepath")
        if not saved or not Path(saved).is_file():
            return _Fetched("failed", "no_file", "nothing was saved; try again later")
        with Path(saved).open("rb") as file:
            os.fsync(file.fileno())
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            return _Fetched("ok", record=_Record(Path(saved).name, file.tell(), sha256))
    except (YoutubeDLError, OSError, MemoryError, _RefusedError) as error:
        return classify_failure(error, max_bytes=task.config.max_bytes)


class _RefusedError(Exception):
    """Raised inside yt-dlp to stop a download that is not wanted; yt-dlp may wrap it."""

    def __init__(self, status: Status, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


def _options(task: _Task) -> dict[str, Any]:
    config, height = task.config, task.config.max_height_px

    def check_size(progress: dict[str, Any]) -> None:
        size = max(progress.get("downloaded_bytes") or 0, progress.get("total_bytes") or 0)
        if size > task.room_bytes:
            raise _RefusedError("too_large", "too_large", f"{size} bytes; download.max_bytes is {config.max_bytes}")

    def check_live(info: dict[str, Any], *, incomplete: bool) -> None:
        if info.get("is_live") or info.get("live_status") in ("is_live", "is_upcoming"):
            raise _RefusedError("failed", "live", "it is being broadcast; fetch it when it is over")

    return {
        # pictures only: sound is never used, and one stream needs no merging
        "format": f"bv*[height<=?{height}]/b[height<=?{height}]/wv*/w",
        "outtmpl": {"default": str(task.folder / task.stem).replace("%", "%%") + ".new.%(ext)s"},
        "logger": _LOG,
        "progress_hooks": [check_size],
        "match_filter": check_live,
        "noprogress": True,
        "quiet": True,
        "noplaylist": True,
        "playlist_items": "1",
        "cachedir": False,
        "fixup": "never",
        "external_downloader": {"default": "native"},
        "retries": 0,  # `_fetch` tries again, also where the page fails
        "skip_unavailable_fragments": False,  # a video with a hole is not a whole video
        "fragment_retries": 3,
        "socket_timeout": min(SOCKET_TIMEOUT_S, config.timeout_s),
        "ratelimit": config.rate_limit_bytes_s,
        "cookiefile": str(config.cookies_file) if config.cookies_file else None,
        "proxy": config.proxy,
    }


def classify_failure(error: BaseException, *, max_bytes: int) -> _Fetched:
    """Status and reason of an error of yt-dlp, by the first telling cause in its chain. max_bytes: the limit of a file."""
    text = str(error).removeprefix("ERROR: ").strip()
    message = text.splitlines()[0] if text else type(error).__name__
    causes = list(_chain(error))
    for cause in causes:
        if isinstance(cause, _RefusedError):
            return _Fetched(cause.status, cause.reason, str(cause))
        if isinstance(cause, MemoryError):
            return _Fetched("too_large", "too_large", "a page or playlist that no download process can hold in memory")
        if isinstance(cause, OSError) and cause.errno in FULL_DISK:
            # the limit of this process looks like a full disk, too
            if cause.errno == errno.EFBIG and resource.getrlimit(resource.RLIMIT_FSIZE)[0] >= max_bytes:
                return _Fetched("too_large", "too_large", f"more than download.max_bytes, {max_bytes}")
            return _Fetched("failed", "disk_full", message)
        if isinstance(cause, HTTPError):
            status: Status = "unavailable" if cause.status in UNAVAILABLE_CODES else "failed"
            return _Fetched(status, f"http_{cause.status}", message)
        if isinstance(cause, GeoRestrictedError):
            return _Fetched("unavailable", "region", message)
        if isinstance(cause, UnsupportedError):
            return _Fetched("not_video", "not_video", message)
    words = " ".join(map(str, causes)).lower()
    if _GONE.search(words):
        return _Fetched("unavailable", "gone", message)
    if _NEEDS_PROGRAM.search(words):
        return _Fetched("unavailable", "unsupported", message)
    return _Fetched("failed", "network", message)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and all that caused it, nearest first."""
    seen: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        cause = pending.pop(0)
        if cause is None or cause in seen:
            continue
        seen.append(cause)
        yield cause
        inner = getattr(cause, "exc_info", None) or (None, None, None)
        pending += [inner[1], getattr(cause, "cause", None), cause.__cause__, cause.__context__]


def _is_local(host: str | None) -> bool:
    """Whether a host has an address outside of the internet, such as this machine's own."""
    try:
        found = socket.getaddrinfo(host, None) if host else []
        return any(not ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_global for entry in found)
    except OSError:
        return False


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect" and not _may_go_local and isinstance(arguments[1], tuple):
        host = str(arguments[1][0])
        if _is_local(host):
            raise _RefusedError("unavailable", "local_address", f"an address of the internet leads to {host}")
    if event not in _PROGRAM_EVENTS:
        return
    program = os.fsdecode(arguments[0]) if arguments and isinstance(arguments[0], str | bytes | os.PathLike) else event
    if not (_allowed_program and Path(program).name == _allowed_program):
        raise FileNotFoundError(errno.ENOENT, "programs are not started by a download", program)
