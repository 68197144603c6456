"""Remote videos as files: YouTube ids, pages that yt-dlp knows, and plain http(s) links to files.

yt-dlp reads whatever a server sends. It therefore runs in processes that are killed at their
deadline, have limits on memory and file size, start no other programs, and cannot be led from an
internet address into the local network. While it is fetched, a video is `<stem>.new.*`, and its
process holds `<stem>.lock`; a finished file is `<stem>.<suffix>` with a record of its size and
digest next to it. Only files that a record describes are ever replaced; anything else under such a
name is set aside.
"""

import contextlib
import errno
import hashlib
import io
import ipaddress
import json
import logging
import os
import resource
import socket
import sys
import time
import urllib.request
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yt_dlp
from filelock import FileLock
from yt_dlp.utils import YoutubeDLError

from hapvr.errors import ArgumentError, DamagedError, DataError, without_logins
from hapvr.files import file_sha256, read_json_as, read_text, set_aside, write_text
from hapvr.video.download_failures import (
    DownloadResult,
    RefusedError,
    classify_failure,
)
from hapvr.video.settings import DownloadConfig
from hapvr.video.sources import ManifestEntry, is_remote
from hapvr.workers import open_pool

BACKOFF_S = 2.0
"""Wait before the first retry; it doubles up to MAX_WAIT_S."""
MAX_WAIT_S = 60.0
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
YOUTUBE_PROGRAM = "deno"
"""Solves the puzzles of YouTube's player for yt-dlp, where it is installed. It is the only program
that may be started."""

_LOG = logging.getLogger(__name__)
_LOG.addHandler(logging.NullHandler())


@dataclass(frozen=True)
class _Record:
    """A finished file: its name, size and digest."""

    file: str
    num_bytes: int
    sha256: str


class Downloader(contextlib.ExitStack):
    """Fetches videos in `config.workers` processes. Use it as a context manager; as many threads
    may call `download`."""

    def __init__(self, config: DownloadConfig, *, backoff_s: float = BACKOFF_S) -> None:
        super().__init__()
        self._config = config
        self._backoff_s = backoff_s
        # a process reads whole pages and playlists
        limits = {resource.RLIMIT_DATA: 2**30, resource.RLIMIT_FSIZE: config.max_bytes}
        self._pool = self.enter_context(
            open_pool(workers=config.workers, limits=limits, prepare=guard_process)
        )

    def download(
        self,
        entry: ManifestEntry,
        *,
        folder: Path,
        timeout_s: float | None = None,
        again: bool = False,
    ) -> DownloadResult:
        """Fetch one video into the folder, under a name made from its id. A finished file is not
        fetched twice.

        Failures that may pass (dropped connections, 429, 5xx; status failed) are tried
        `config.retries` times more with growing waits, each resuming the partial file. timeout_s:
        for this call, including the start of its process; None: that of the configuration, for the
        attempts alone. again: fetch it although it is finished; the old file stays until the new
        one is there. Raises ArgumentError for a local uri, and DataError where the disk is full.
        Network failures raise nothing."""
        if not is_remote(entry.uri):
            raise ArgumentError(
                f"download: {entry.uri!r} is not an http(s) URL or youtube:<id>; it needs no "
                "download"
            )

        finished = fetched_file(entry.video_id, folder)
        if (
            finished is not None
            and not again
            and finished[0].stat().st_size == finished[1].num_bytes
        ):
            return DownloadResult("ok", path=finished[0])

        folder.mkdir(parents=True, exist_ok=True)
        target = folder / file_stem(entry.video_id)
        limit_s = timeout_s or self._config.timeout_s
        task = (entry.uri, target, self._config, self._backoff_s, limit_s)
        future = self._pool.schedule(_fetch, args=task, timeout=limit_s)
        try:
            result: DownloadResult = future.result(timeout_s)
        except FutureTimeoutError:
            future.cancel()  # type: ignore[no-untyped-call]
            result = DownloadResult(
                "failed", "timeout", f"not done after {limit_s:g} s; a later run resumes it"
            )
        except Exception as error:  # whatever a server provokes in yt-dlp costs only this download
            problem = f"the download process failed ({type(error).__name__}: {error})"
            result = DownloadResult("failed", "crashed", problem)

        if result.reason != "timeout":  # a process that is being ended may still hold it
            _lock_file(target).unlink(missing_ok=True)
        if result.reason == "disk_full":
            raise DataError(
                f"download: {folder} has no room left ({result.message}); free space, then run "
                "again: finished files are kept and partial ones resumed"
            )
        if result.path is not None:
            return replace(result, path=_place(result.path, finished))
        _remove_pieces(target, all_of_them=result.status == "too_large")
        return replace(result, message=without_logins(f"download: {entry.uri}: {result.message}"))


def file_stem(video_id: str) -> str:
    """A file name without suffix that any file system takes. Nothing in the id can make it lead
    elsewhere."""
    return hashlib.blake2b(video_id.encode(), digest_size=16).hexdigest()


def fetched_file(video_id: str, folder: Path) -> tuple[Path, _Record] | None:
    """The file of a video that was fetched by our record, and the record; None where there is none,
    or the file is a link."""
    stem = file_stem(video_id)
    try:
        record = read_json_as(folder / f"{stem}.json", _Record, hint="it is fetched again")
    except DamagedError:
        return None

    path = folder / record.file
    ours = (
        path.name == record.file
        and path.name.startswith(f"{stem}.")
        and path.is_file()
        and not path.is_symlink()
    )
    return (path, record) if ours else None


def remove_fetched(video_id: str, folder: Path) -> None:
    """Remove the file of a video that was fetched by our record, the record, and partial files."""
    target = folder / file_stem(video_id)
    fetched = fetched_file(video_id, folder)
    if fetched is not None:
        fetched[0].unlink()
    target.with_suffix(".json").unlink(missing_ok=True)
    _lock_file(target).unlink(missing_ok=True)
    _remove_pieces(target, all_of_them=True)


def _place(new: Path, old: tuple[Path, _Record] | None) -> Path:
    """Give a new file its name. A file that already has this name is removed only if it is the one
    of the old record; else it is set aside."""
    path = new.with_name(new.name.replace(".new.", "."))
    record = _Record(path.name, new.stat().st_size, file_sha256(new))
    recorded = {} if old is None else {old[0]: old[1].sha256}
    ours = {place for place, digest in recorded.items() if file_sha256(place) == digest}
    for place in {path, *recorded} - ours:
        if os.path.lexists(place):
            set_aside(place)

    write_text(path.with_suffix(".json"), json.dumps(asdict(record)))
    new.replace(path)
    for place in ours - {path}:
        place.unlink()
    return path


def _lock_file(target: Path) -> Path:
    """Held by the process that fetches. Where a run is killed, its processes end half a second
    later; the next run must not write the same partial file until then."""
    return target.with_name(f"{target.name}.lock")


def _remove_pieces(target: Path, *, all_of_them: bool = False) -> None:
    """Remove what a download left, except a partial file of one piece, which can be resumed. A
    stream in pieces cannot: a process that is killed between adding a piece and recording it would
    add it twice."""
    paths = list(target.parent.glob(f"{target.name}.new.*"))
    whole = not all_of_them and not any(path.suffix == ".ytdl" for path in paths)
    for path in paths:
        if not (whole and path.suffix == ".part" and path.name.count(".") == 3):
            path.unlink(missing_ok=True)


# What runs in a download process.

_allowed_program = ""
_may_go_local = True


def guard_process() -> None:
    """From now on this process starts only YOUTUBE_PROGRAM, and that only for YouTube's own pages.

    yt-dlp hands live and unusual streams to ffmpeg, which knows no limits; to yt-dlp it now looks
    as if no such program were installed. Nor does this process connect to the local network, unless
    the address it was given is there."""

    starts = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.system")

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect" and not _may_go_local and isinstance(arguments[1], tuple):
            host = str(arguments[1][0])
            if _is_local(host):
                raise RefusedError(
                    "unavailable", "local_address", f"an address of the internet leads to {host}"
                )

        if event in starts:
            named = arguments and isinstance(arguments[0], str | bytes | os.PathLike)
            program = os.fsdecode(arguments[0]) if named else event
            if not (_allowed_program and Path(program).name == _allowed_program):
                raise FileNotFoundError(
                    errno.ENOENT, "programs are not started by a download", program
                )

    sys.addaudithook(refuse)


def _fetch(
    uri: str, target: Path, config: DownloadConfig, backoff_s: float, timeout_s: float
) -> DownloadResult:
    """Fetch one video as `<target>.new.<suffix>`, as the only process that does. Network failures
    are results, not exceptions."""
    try:
        with FileLock(_lock_file(target)):
            _remove_pieces(target)
            return _fetch_alone(uri, target, config, backoff_s, timeout_s)
    except OSError as error:
        return classify_failure(error, max_bytes=config.max_bytes)


def _fetch_alone(
    uri: str, target: Path, config: DownloadConfig, backoff_s: float, timeout_s: float
) -> DownloadResult:
    global _allowed_program, _may_go_local
    youtube = uri.lower().startswith("youtube:")
    _allowed_program = YOUTUBE_PROGRAM if youtube else ""
    _may_go_local = bool(
        urllib.request.getproxies().keys() - {"no"} or _is_local(urlsplit(uri).hostname)
    )
    address = f"https://www.youtube.com/watch?v={uri.partition(':')[2]}" if youtube else uri
    deadline_s = time.monotonic() + timeout_s
    for attempt in range(config.retries + 1):
        try:
            result = _fetched_once(address, target, config)
            if result.status == "ok":
                return result
        except (YoutubeDLError, OSError, MemoryError, RefusedError) as error:
            result = classify_failure(error, max_bytes=config.max_bytes)

        wait_s = min(MAX_WAIT_S, backoff_s * 2**attempt)
        final = result.status != "failed" or result.reason in ("disk_full", "live")
        if final or attempt == config.retries or time.monotonic() + wait_s > deadline_s:
            break
        time.sleep(wait_s)

    return result


def _fetched_once(address: str, target: Path, config: DownloadConfig) -> DownloadResult:
    """One try. Raises what yt-dlp does."""
    with yt_dlp.YoutubeDL(_options(target, config)) as downloader:  # type: ignore[no-untyped-call]
        info = downloader.extract_info(address, download=True) or {}
    if info.get("entries") is not None:
        info = next(iter(info["entries"]), None) or {}
    saved = (info.get("requested_downloads") or [{}])[0].get("filepath")
    if not saved or not Path(saved).is_file():
        return DownloadResult("failed", "no_file", "nothing was saved; try again later")
    with Path(saved).open("rb") as file:
        os.fsync(file.fileno())
    return DownloadResult("ok", path=Path(saved))


def _options(target: Path, config: DownloadConfig) -> dict[str, Any]:
    height = config.max_height_px

    def check_size(progress: dict[str, Any]) -> None:
        size = max(progress.get("downloaded_bytes") or 0, progress.get("total_bytes") or 0)
        if size > config.max_bytes:
            raise RefusedError(
                "too_large", "too_large", f"{size} bytes; download.max_bytes is {config.max_bytes}"
            )

    def check_live(info: dict[str, Any], *, incomplete: bool) -> None:
        if info.get("is_live") or info.get("live_status") in ("is_live", "is_upcoming"):
            raise RefusedError("failed", "live", "it is being broadcast; fetch it when it is over")

    return {
        # only pictures: sound is never used, and a single stream needs no merging
        "format": f"bv*[height<=?{height}]/b[height<=?{height}]/wv*/w",
        "outtmpl": {"default": str(target).replace("%", "%%") + ".new.%(ext)s"},
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
        "retries": 0,  # `_fetch` tries again, even when the page fails
        "skip_unavailable_fragments": False,  # a video with a hole is not whole
        "fragment_retries": 3,
        "socket_timeout": min(30.0, config.timeout_s),
        "ratelimit": config.rate_limit_bytes_s,
        # a copy, since yt-dlp writes its cookies back
        "cookiefile": io.StringIO(read_text(config.cookies_file, errors="replace"))
        if config.cookies_file
        else None,
    }


def _is_local(host: str | None) -> bool:
    """Whether a host has an address that is not on the internet, such as this machine's own."""
    try:
        entries = socket.getaddrinfo(host, None) if host else []
    except OSError:
        return False
    return any(
        not _is_global(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]))
        for entry in entries
    )


def _is_global(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address is on the internet; for one that stands for an IPv4 address, whether that
    address is."""
    if isinstance(address, ipaddress.IPv6Address):
        within = ipaddress.IPv4Address(int(address) % 2**32) if address in NAT64 else None
        if embedded := within or address.ipv4_mapped or address.sixtofour:
            return _is_global(embedded)
        if address.is_site_local or address.is_reserved:
            return False

    return address.is_global and not address.is_multicast
