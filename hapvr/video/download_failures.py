"""The outcome of a download, and what an error of yt-dlp means for its video."""

import errno
import re
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from yt_dlp.networking.exceptions import HTTPError, TransportError
from yt_dlp.utils import UnsupportedError

from hapvr.settings import first_line

Status = Literal["ok", "unavailable", "failed", "too_large", "not_video"]

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

# Phrases of sites for videos that will not come back. A demand to prove one is not a robot is not
# among them: it passes.
_GONE = re.compile(
    "video unavailable|private video|video is private|has been removed|been terminated|in "
    "your country|geo restriction|"
    "no longer available|does not exist|members-only|confirm your age|copyright|drm "
    "protected|no video formats found"
)
# What yt-dlp says of streams that only another program could save.
_NEEDS_PROGRAM = re.compile("ffmpeg|rtmpdump|mplayer|mpv")


@dataclass(frozen=True)
class DownloadResult:
    """The outcome for one video."""

    status: Status
    reason: str = ""
    """a short code; "" if status is ok"""
    message: str = ""
    path: Path | None = None
    """the file, if status is ok"""


class RefusedError(Exception):
    """Stops a download inside yt-dlp, which may wrap it. Its arguments are status, reason and
    message."""


def classify_failure(error: BaseException, *, max_bytes: int) -> DownloadResult:
    """Status and reason for an error of yt-dlp, from the first cause in its chain that tells
    anything. max_bytes: the limit of a file."""
    message = first_line(error).removeprefix("ERROR: ")
    causes = _causes_of(error)
    for cause in causes:
        result = _result_of(cause, message, max_bytes=max_bytes)
        if result is not None:
            return result

    words = " ".join(map(str, causes)).lower()
    if _GONE.search(words):
        return DownloadResult("unavailable", "gone", message)
    if _NEEDS_PROGRAM.search(words):
        return DownloadResult("unavailable", "unsupported", message)
    return DownloadResult("failed", "network", message)


def _causes_of(error: BaseException) -> list[BaseException]:
    """The error and its causes, the nearest first."""
    causes = [error]
    for cause in causes:  # which grows in the meantime
        wrapped = (getattr(cause, "exc_info", None) or (None, None))[1]
        inner = (wrapped, getattr(cause, "cause", None), cause.__cause__, cause.__context__)
        for below in dict.fromkeys(inner):
            if below is not None and below not in causes:
                causes.append(below)

    return causes


def _result_of(cause: BaseException, message: str, *, max_bytes: int) -> DownloadResult | None:
    """The result that one cause tells; None where it tells nothing."""
    if isinstance(cause, RefusedError):
        return DownloadResult(*cause.args)
    if isinstance(cause, MemoryError):
        return DownloadResult(
            "too_large", "too_large", "a page that no download process can hold in memory"
        )

    if isinstance(cause, OSError) and cause.errno in FULL_DISK:
        # the limit of this process looks like a full disk, too
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if cause.errno == errno.EFBIG and limit >= max_bytes:
            return DownloadResult(
                "too_large", "too_large", f"more than download.max_bytes, {max_bytes}"
            )
        return DownloadResult("failed", "disk_full", message)

    if isinstance(cause, HTTPError):
        is_refused = cause.status in (401, 402, 403, 404, 405, 410, 451)
        status: Status = "unavailable" if is_refused else "failed"
        return DownloadResult(status, f"http_{cause.status}", message)

    if isinstance(cause, UnsupportedError):
        return DownloadResult("not_video", "not_video", message)
    if isinstance(cause, TransportError):
        return DownloadResult("failed", "network", message)
    return None
