"""Fetching remote videos with yt-dlp: YouTube ids, pages it knows, and plain http(s) links to files."""

from __future__ import annotations

import errno
import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yt_dlp
from yt_dlp.networking.exceptions import HTTPError
from yt_dlp.utils import (
    ContentTooShortError,
    DownloadCancelled,
    GeoRestrictedError,
    UnsupportedError,
    YoutubeDLError,
)

from hapvr.config import DownloadConfig
from hapvr.errors import ArgumentError, DataError
from hapvr.video.quota import DiskQuota
from hapvr.video.sources import ManifestEntry, is_remote

_LOG = logging.getLogger(__name__)  # what yt-dlp says; an application that configures logging sees it
_LOG.addHandler(logging.NullHandler())

Status = Literal["ok", "unavailable", "failed", "too_large", "not_video"]

UNAVAILABLE_CODES = frozenset({401, 402, 403, 404, 405, 410, 451})
FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
SOCKET_TIMEOUT_S = 30.0
MAX_WAIT_S = 60.0
_PARTIAL_SUFFIXES = frozenset({".part", ".ytdl", ".temp"})

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
    "no video formats found",
)


@dataclass(frozen=True)
class DownloadResult:
    """What came of one video. path: its file if status is ok. reason: "" or a short code."""

    video_id: str
    status: Status
    path: Path | None
    reason: str
    message: str


def download_video(
    entry: ManifestEntry,
    *,
    folder: Path,
    config: DownloadConfig,
    quota: DiskQuota | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> DownloadResult:
    """Fetch one video into the folder, under a name made from its id; a file that is there is not fetched again.

    Failures that may pass (dropped connections, 429, 5xx; status failed) are tried `config.retries` times more with
    growing waits, each resuming the partial file; one that does not fit the quota is not. sleep: what waits. Raises
    ArgumentError for a local uri, DataError where the disk is full, and nothing for the network's sake.
    """
    if not is_remote(entry.uri):
        raise ArgumentError(
            f"download: {entry.uri!r} is no http(s) URL and no youtube:<id>; local files need no download"
        )
    folder.mkdir(parents=True, exist_ok=True)
    stem = file_stem(entry.video_id)
    deadline_s = time.monotonic() + config.timeout_s
    result = _finished(entry, folder, stem)
    attempt = 0
    while result is None:
        result = _attempt(entry, folder, stem, config, deadline_s, quota)
        wait_s = min(MAX_WAIT_S, config.backoff_s * 2**attempt)
        final = result.status != "failed" or result.reason == "quota"
        if final or attempt >= config.retries or time.monotonic() + wait_s > deadline_s:
            break
        sleep(wait_s)
        attempt, result = attempt + 1, None
    return result


def file_stem(video_id: str) -> str:
    """A file name without suffix that any file system takes, and that nothing in the id can steer elsewhere."""
    return hashlib.blake2b(video_id.encode(), digest_size=16).hexdigest()


def remove_download(video_id: str, folder: Path) -> None:
    """Forget what was fetched of a video, so that the next download fetches it anew."""
    _remove(folder, file_stem(video_id))


class _LimitReachedError(DownloadCancelled):
    """Raised inside yt-dlp to stop a download that is too large or too slow."""

    def __init__(self, status: Status, reason: str, message: str) -> None:
        super().__init__(message)  # type: ignore[no-untyped-call]
        self.status, self.reason = status, reason


def _attempt(
    entry: ManifestEntry,
    folder: Path,
    stem: str,
    config: DownloadConfig,
    deadline_s: float,
    quota: DiskQuota | None,
) -> DownloadResult:
    def result(status: Status, reason: str, message: str) -> DownloadResult:
        return DownloadResult(entry.video_id, status, None, reason, f"download: {entry.uri}: {message}")

    def watch(progress: dict[str, Any]) -> None:
        size = max(progress.get("downloaded_bytes") or 0, progress.get("total_bytes") or 0)
        if size > config.max_bytes:
            raise _LimitReachedError(
                "too_large", "too_large", f"{size} bytes; download.max_bytes is {config.max_bytes}"
            )
        if quota is not None and not quota.take(stem, size):
            raise _LimitReachedError(
                "failed", "quota", f"{size} bytes do not fit; download.quota_bytes is {quota.limit_bytes}"
            )
        if time.monotonic() > deadline_s:
            raise _LimitReachedError(
                "failed", "timeout", f"not done after {config.timeout_s:g} s; a later run resumes it"
            )

    try:
        with yt_dlp.YoutubeDL(_options(folder, stem, config, watch)) as downloader:  # type: ignore[no-untyped-call]
            downloader.extract_info(_address(entry.uri), download=True)
    except _LimitReachedError as error:
        if error.reason in ("too_large", "quota"):
            _remove(folder, stem)
            if quota is not None:
                quota.take(stem, 0)
        return result(error.status, error.reason, str(error))
    except (YoutubeDLError, OSError) as error:
        if any(isinstance(cause, OSError) and cause.errno in FULL_DISK for cause in _chain(error)):
            raise DataError(
                f"download: {folder} cannot take more ({_first_line(error)}); free space or set download.quota_bytes, "
                f"then run again: finished files are kept and partial ones resumed"
            ) from error
        status, reason = classify_failure(error)
        return result(status, reason, _first_line(error))
    return _finished(entry, folder, stem) or result("failed", "no_file", "nothing was saved; try again later")


def classify_failure(error: BaseException) -> tuple[Status, str]:
    """Status and reason code of an error of yt-dlp, by the first telling cause in its chain."""
    chain = _chain(error)
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
    return "failed", "network"


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        cause = pending.pop(0)
        if cause is None or cause in chain:
            continue
        chain.append(cause)
        inner = getattr(cause, "exc_info", None) or (None, None, None)
        pending += [inner[1], getattr(cause, "cause", None), cause.__cause__, cause.__context__]
    return chain


def _options(
    folder: Path, stem: str, config: DownloadConfig, watch: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    height = config.max_height_px
    return {
        # pictures only: sound is never used, and one stream needs no merging
        "format": f"bv*[height<=?{height}]/b[height<=?{height}]/wv*/w",
        "outtmpl": {"default": str(folder / stem).replace("%", "%%") + ".%(ext)s"},
        "logger": _LOG,
        "progress_hooks": [watch],
        "noprogress": True,
        "quiet": True,
        "noplaylist": True,
        "playlist_items": "1",
        "cachedir": False,
        "continuedl": True,
        "overwrites": False,
        "fixup": "never",
        "retries": 0,
        "fragment_retries": 3,
        "socket_timeout": min(SOCKET_TIMEOUT_S, config.timeout_s),
        "ratelimit": config.rate_limit_bytes_s,
        "cookiefile": str(config.cookies_file) if config.cookies_file else None,
        "proxy": config.proxy,
    }


def _address(uri: str) -> str:
    scheme, _, name = uri.partition(":")
    return f"https://www.youtube.com/watch?v={name}" if scheme.lower() == "youtube" else uri


def _finished(entry: ManifestEntry, folder: Path, stem: str) -> DownloadResult | None:
    files = [path for path in sorted(folder.glob(f"{stem}.*")) if not _PARTIAL_SUFFIXES & set(path.suffixes)]
    return DownloadResult(entry.video_id, "ok", files[0], "", "") if files else None


def _remove(folder: Path, stem: str) -> None:
    for path in folder.glob(f"{stem}.*"):
        path.unlink()


def _first_line(error: BaseException) -> str:
    text = str(error).removeprefix("ERROR: ").strip()
    return text.splitlines()[0] if text else type(error).__name__
