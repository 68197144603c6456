"""What a download process does: fetch one video with yt-dlp, without starting other programs.

yt-dlp reads whatever a server sends. `hapvr.video.download` therefore runs this in processes that have limits and can be
killed; nothing here may be called in the main process.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yt_dlp
from yt_dlp.networking.exceptions import HTTPError
from yt_dlp.utils import (
    ContentTooShortError,
    GeoRestrictedError,
    UnsupportedError,
    YoutubeDLError,
)

from hapvr.video.settings import DownloadConfig

_LOG = logging.getLogger(__name__)
_LOG.addHandler(logging.NullHandler())

Status = Literal["ok", "unavailable", "failed", "too_large", "not_video"]

UNAVAILABLE_CODES = frozenset({401, 402, 403, 404, 405, 410, 451})
FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
SOCKET_TIMEOUT_S = 30.0
FRAGMENT_RETRIES = 3

YOUTUBE_PROGRAM = "deno"
"""Solves the puzzles of YouTube's player for yt-dlp, where it is installed; the one program that may be started."""

_PROGRAM_EVENTS = frozenset({"subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.system"})

# Phrases of sites for videos that will not come back. A demand to prove one is no robot is not among them: it passes.
_GONE = (
    "video unavailable",
    "private video",
    "video is private",
    "has been removed",
    "been terminated",
    "not available in your country",
    "no longer available",
    "does not exist",
    "members-only",
    "confirm your age",
    "copyright",
    "drm protected",
    "no video formats found",
)
# What yt-dlp says of streams that only another program could save.
_NEEDS_PROGRAM = ("ffmpeg", "rtmpdump", "mplayer", "mpv")

_allowed_program = ""


@dataclass(frozen=True)
class FetchTask:
    """One video to fetch into `folder`, as stem.<suffix>. limit_bytes: a larger file is refused."""

    uri: str
    folder: Path
    stem: str
    config: DownloadConfig
    limit_bytes: int


@dataclass(frozen=True)
class Fetched:
    """What came of one task. file, num_bytes, sha256: the name and content of the finished file, if status is ok.

    disk_full: the folder takes no more, whatever the video.
    """

    status: Status
    reason: str = ""
    message: str = ""
    file: str = ""
    num_bytes: int = 0
    sha256: str = ""
    disk_full: bool = False


def refuse_programs() -> None:
    """From now on, this process starts no other program but YOUTUBE_PROGRAM, and that only for YouTube's own pages.

    yt-dlp hands live and unusual streams to ffmpeg, which knows no limits; to yt-dlp it now looks as if no such program
    were installed.
    """
    sys.addaudithook(_refuse_program)


def fetch(task: FetchTask) -> Fetched:
    """Fetch one video. Network failures are results; nothing is raised for them."""
    global _allowed_program
    _allowed_program = YOUTUBE_PROGRAM if task.uri.lower().startswith("youtube:") else ""
    try:
        with yt_dlp.YoutubeDL(_options(task)) as downloader:  # type: ignore[no-untyped-call]
            info = downloader.extract_info(_address(task.uri), download=True)
        path = _saved_file(info)
        if path is None or not path.is_file():
            return Fetched("failed", "no_file", "nothing was saved; try again later")
        return _finish(path)
    except (YoutubeDLError, OSError, MemoryError, _RefusedError) as error:
        return _failure(task, error)


def classify_failure(error: BaseException) -> tuple[Status, str]:
    """Status and reason code of an error of yt-dlp, by the first telling cause in its chain."""
    chain = list(_chain(error))
    for cause in chain:
        if isinstance(cause, HTTPError):
            gone = cause.status in UNAVAILABLE_CODES
            return ("unavailable" if gone else "failed"), f"http_{cause.status}"
        if isinstance(cause, GeoRestrictedError):
            return "unavailable", "region"
        if isinstance(cause, UnsupportedError):
            return "not_video", "not_video"
        if isinstance(cause, ContentTooShortError):
            return "failed", "cut_off"
    text = " ".join(str(cause) for cause in chain).lower()
    if any(phrase in text for phrase in _GONE):
        return "unavailable", "gone"
    if any(name in text for name in _NEEDS_PROGRAM):
        return "unavailable", "unsupported"
    return "failed", "network"


class _RefusedError(Exception):
    """Raised inside yt-dlp to stop a download that is not wanted; yt-dlp may wrap it."""

    def __init__(self, status: Status, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


def _options(task: FetchTask) -> dict[str, Any]:
    config, height = task.config, task.config.max_height_px

    def check_size(progress: dict[str, Any]) -> None:
        size = max(progress.get("downloaded_bytes") or 0, progress.get("total_bytes") or 0)
        if size > task.limit_bytes:
            raise _RefusedError("too_large", "too_large", f"{size} bytes; download.max_bytes is {config.max_bytes}")

    def check_live(info: dict[str, Any], *, incomplete: bool) -> None:
        if info.get("is_live") or info.get("live_status") in ("is_live", "is_upcoming"):
            raise _RefusedError("failed", "live", "it is being broadcast; fetch it when it is over")

    return {
        # pictures only: sound is never used, and one stream needs no merging
        "format": f"bv*[height<=?{height}]/b[height<=?{height}]/wv*/w",
        "outtmpl": {"default": str(task.folder / task.stem).replace("%", "%%") + ".%(ext)s"},
        "logger": _LOG,
        "progress_hooks": [check_size],
        "match_filter": check_live,
        "noprogress": True,
        "quiet": True,
        "noplaylist": True,
        "playlist_items": "1",
        "cachedir": False,
        "continuedl": True,
        "overwrites": False,
        "fixup": "never",
        "external_downloader": {"default": "native"},
        "retries": 0,
        "fragment_retries": FRAGMENT_RETRIES,
        "skip_unavailable_fragments": False,  # a video with a hole is no whole video
        "socket_timeout": min(SOCKET_TIMEOUT_S, config.timeout_s),
        "ratelimit": config.rate_limit_bytes_s,
        "cookiefile": str(config.cookies_file) if config.cookies_file else None,
        "proxy": config.proxy,
    }


def _address(uri: str) -> str:
    scheme, _, name = uri.partition(":")
    return f"https://www.youtube.com/watch?v={name}" if scheme.lower() == "youtube" else uri


def _saved_file(info: dict[str, Any] | None) -> Path | None:
    """The file that yt-dlp says it saved; of a playlist, that of its first entry."""
    info = info or {}
    if info.get("entries") is not None:
        info = next(iter(info["entries"]), None) or {}
    saved = info.get("requested_downloads") or [{}]
    return Path(saved[0]["filepath"]) if saved[0].get("filepath") else None


def _finish(path: Path) -> Fetched:
    """Bring the file to the disk, and take its size and digest."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return Fetched("ok", file=path.name, num_bytes=file.tell(), sha256=sha256)


def _failure(task: FetchTask, error: BaseException) -> Fetched:
    for cause in _chain(error):
        if isinstance(cause, _RefusedError):
            return Fetched(cause.status, cause.reason, str(cause))
        if isinstance(cause, MemoryError):
            return Fetched("too_large", "too_large", "a page or playlist that no download process can hold in memory")
        if isinstance(cause, OSError) and cause.errno in FULL_DISK:
            # the limit of this process looks like a full disk, too
            if cause.errno == errno.EFBIG and resource.getrlimit(resource.RLIMIT_FSIZE)[0] >= task.config.max_bytes:
                return Fetched("too_large", "too_large", f"more than download.max_bytes, {task.config.max_bytes}")
            return Fetched("failed", "disk_full", _first_line(error), disk_full=True)
    status, reason = classify_failure(error)
    return Fetched(status, reason, _first_line(error))


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


def _first_line(error: BaseException) -> str:
    text = str(error).removeprefix("ERROR: ").strip()
    return text.splitlines()[0] if text else type(error).__name__


def _refuse_program(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _PROGRAM_EVENTS:
        return
    program = os.fsdecode(arguments[0]) if arguments and isinstance(arguments[0], str | bytes | os.PathLike) else event
    if not (_allowed_program and Path(program).name == _allowed_program):
        raise FileNotFoundError(errno.ENOENT, "programs are not started by a download", program)
