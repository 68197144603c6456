"""Remote videos as files: YouTube ids, pages that yt-dlp knows, and plain http(s) links to files.

Each download runs in a process that is killed at its deadline and that has limits of memory and file size. A file counts
as finished only if a record of its size and digest lies beside it; the record is written after the download ended.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import resource
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path

from pebble import ProcessFuture

from hapvr.errors import ArgumentError, DataError
from hapvr.files import PART_SUFFIX, write_atomic
from hapvr.video.fetch import Fetched, FetchTask, Status, fetch, refuse_programs
from hapvr.video.pool import open_pool
from hapvr.video.settings import DownloadConfig
from hapvr.video.sources import ManifestEntry, is_remote

RECORD_SUFFIX = ".json"
MAX_WAIT_S = 60.0
MAX_MEMORY_BYTES = 2**30
"""What a download process may hold in memory; it reads pages and playlists whole."""
QUOTA_CHECK_S = 0.2
"""Seconds between two looks at how much a running download has taken of the quota."""

_PARTIAL_SUFFIXES = (".part", ".ytdl", ".temp", ".frag")
_FINAL_REASONS = frozenset({"quota", "live"})


@dataclass(frozen=True)
class DownloadResult:
    """What came of one video. path: its file if status is ok. reason: "" or a short code."""

    video_id: str
    status: Status
    path: Path | None
    reason: str
    message: str


class DiskQuota:
    """How much all videos below a folder may take together, shared by threads that download; None: no limit."""

    def __init__(self, folder: Path, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        if limit_bytes is not None:
            for path in folder.rglob("*"):
                if path.is_file() and path.suffix != RECORD_SUFFIX:
                    stem = path.name.partition(".")[0]
                    self._sizes[stem] = self._sizes.get(stem, 0) + path.stat().st_size
        self._total = sum(self._sizes.values())

    def reserve(self, stem: str, num_bytes: int) -> bool:
        """Count the video at its present size (0: it is gone). False, with nothing changed, if there is no room for it."""
        with self._lock:
            total = self._total - self._sizes.get(stem, 0) + num_bytes
            fits = self.limit_bytes is None or total <= self.limit_bytes
            if fits:
                self._sizes[stem], self._total = num_bytes, total
            return fits

    def largest(self, stem: str, max_bytes: int) -> int:
        """The size up to `max_bytes` that the video could have now."""
        if self.limit_bytes is None:
            return max_bytes
        with self._lock:
            return max(0, min(max_bytes, self.limit_bytes - self._total + self._sizes.get(stem, 0)))


class Downloader:
    """Fetches videos in `config.workers` processes. A context; `download` may be called from as many threads.

    sleep: waits between the attempts of a download.
    """

    def __init__(
        self, config: DownloadConfig, *, quota: DiskQuota | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._config = config
        self._quota = quota or DiskQuota(Path(), None)
        self._sleep = sleep
        self._stack = contextlib.ExitStack()
        limits = {resource.RLIMIT_DATA: MAX_MEMORY_BYTES, resource.RLIMIT_FSIZE: config.max_bytes}
        self._pool = self._stack.enter_context(
            open_pool(workers=config.workers, limits=limits, prepare=refuse_programs)
        )

    def __enter__(self) -> Downloader:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def download(self, entry: ManifestEntry, *, folder: Path, timeout_s: float | None = None) -> DownloadResult:
        """Fetch one video into the folder, under a name made from its id. A finished file is not fetched again.

        Failures that may pass (dropped connections, 429, 5xx; status failed) are tried `config.retries` times more with
        growing waits, each resuming the partial file. timeout_s: for this call, with the start of its process; None: that of
        the configuration, for the attempts alone.
        Raises ArgumentError for a local uri, and DataError where the disk is full. No failure of the network raises.
        """
        if not is_remote(entry.uri):
            raise ArgumentError(
                f"download: {entry.uri!r} is no http(s) URL and no youtube:<id>; local files need no download"
            )
        stem = file_stem(entry.video_id)
        finished = _finished(folder, stem)
        if finished is not None:
            return DownloadResult(entry.video_id, "ok", finished, "", "")
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder, stem)
        waits_for_start = timeout_s is None
        timeout_s = self._config.timeout_s if timeout_s is None else timeout_s
        deadline_s = time.monotonic() + timeout_s
        for attempt in range(self._config.retries + 1):
            fetched = self._attempt(
                entry, folder, stem, timeout_s=timeout_s, deadline_s=deadline_s, waits_for_start=waits_for_start
            )
            wait_s = min(MAX_WAIT_S, self._config.backoff_s * 2**attempt)
            final = fetched.status != "failed" or fetched.reason in _FINAL_REASONS
            if final or attempt == self._config.retries or time.monotonic() + wait_s > deadline_s:
                break
            self._sleep(wait_s)
        if fetched.status == "ok":
            path = folder / fetched.file
            _write_record(path, fetched.num_bytes, fetched.sha256)
            return DownloadResult(entry.video_id, "ok", path, "", "")
        message = f"download: {entry.uri}: {fetched.message}"
        return DownloadResult(entry.video_id, fetched.status, None, fetched.reason, message)

    def _attempt(
        self,
        entry: ManifestEntry,
        folder: Path,
        stem: str,
        *,
        timeout_s: float,
        deadline_s: float,
        waits_for_start: bool,
    ) -> Fetched:
        config, quota = self._config, self._quota
        limit_bytes = quota.largest(stem, config.max_bytes)
        task = FetchTask(entry.uri, folder, stem, config, limit_bytes)
        remaining_s = max(deadline_s - time.monotonic(), 0.01)
        future = self._pool.schedule(fetch, args=(task,), timeout=remaining_s)
        try:
            fits = self._fits_quota(future, folder, stem)
            fetched = future.result(None if waits_for_start else remaining_s) if fits else None
        except FutureTimeoutError:
            _remove_fragments(folder, stem)
            return Fetched("failed", "timeout", f"not done after {timeout_s:g} s; a later run resumes it")
        except Exception as error:  # whatever a server provokes in yt-dlp costs this download only
            _remove_fragments(folder, stem)
            return Fetched("failed", "crashed", f"the download process failed ({type(error).__name__}: {error})")
        if fetched is not None and fetched.disk_full:
            raise DataError(
                f"download: {folder} cannot take more ({fetched.message}); free space or set download.quota_bytes, "
                f"then run again: finished files are kept and partial ones resumed"
            )
        if fetched is not None and fetched.status == "ok" and not quota.reserve(stem, fetched.num_bytes):
            fetched = None
        if fetched is None or (fetched.status == "too_large" and limit_bytes < config.max_bytes):
            fetched = Fetched("failed", "quota", f"it does not fit; download.quota_bytes is {quota.limit_bytes}")
        if fetched.status == "too_large" or fetched.reason == "quota":
            _remove(folder, stem)
            quota.reserve(stem, 0)
        return fetched

    def _fits_quota(self, future: ProcessFuture[Fetched], folder: Path, stem: str) -> bool:
        """Wait for the download; stop it, and return False, when it has taken more than the quota leaves."""
        if self._quota.limit_bytes is None:
            return True
        while not concurrent.futures.wait([future], timeout=QUOTA_CHECK_S).done:
            taken = 0
            for path in folder.glob(f"{stem}.*"):
                with contextlib.suppress(FileNotFoundError):  # yt-dlp renames and removes files meanwhile
                    taken += path.stat().st_size
            if not self._quota.reserve(stem, taken):
                future.cancel()  # type: ignore[no-untyped-call]
                return False
        return True


def file_stem(video_id: str) -> str:
    """A file name without suffix that any file system takes, and that nothing in the id can steer elsewhere."""
    return hashlib.blake2b(video_id.encode(), digest_size=16).hexdigest()


def remove_download(video_id: str, folder: Path) -> None:
    """Forget what was fetched of a video, so that the next download fetches it anew."""
    _remove(folder, file_stem(video_id))


def is_partial(path: Path) -> bool:
    """Whether yt-dlp gives such names to files that it has not finished."""
    return any(suffix.lower().startswith(_PARTIAL_SUFFIXES) for suffix in path.suffixes)


def adopt_download(video_id: str, path: Path, *, num_bytes: int, sha256: str) -> None:
    """Record a finished file that was fetched before there were records, unless it has changed since.

    num_bytes, sha256: what was found when the file was inspected.
    """
    record = path.with_name(file_stem(video_id) + RECORD_SUFFIX)
    whole = path.is_file() and path.stat().st_size == num_bytes and not is_partial(path)
    if whole and path.name.startswith(file_stem(video_id)) and not record.exists():
        _write_record(path, num_bytes, sha256)


def _finished(folder: Path, stem: str) -> Path | None:
    """The file of a download that came to its end; None if there is none, or if its size is not the recorded one."""
    try:
        record = json.loads((folder / f"{stem}{RECORD_SUFFIX}").read_text(encoding="utf-8"))
        path = folder / Path(record["file"]).name
        return path if path.stat().st_size == record["num_bytes"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_record(path: Path, num_bytes: int, sha256: str) -> None:
    with write_atomic(path.with_name(path.name.partition(".")[0] + RECORD_SUFFIX)) as part:
        part.write_text(json.dumps({"file": path.name, "num_bytes": num_bytes, "sha256": sha256}), encoding="utf-8")


def _remove_leftovers(folder: Path, stem: str) -> None:
    """Remove what an earlier run left, but for a partial file of one piece, which can be resumed.

    Pieces of a stream cannot: a process that is killed between adding a piece and noting it would add it twice.
    """
    _remove_fragments(folder, stem)
    for path in folder.glob(f"{stem}.*"):
        name = Path(path.stem)  # without its last suffix
        if path.suffix != PART_SUFFIX or is_partial(name) or name.suffix == RECORD_SUFFIX:
            path.unlink(missing_ok=True)


def _remove_fragments(folder: Path, stem: str) -> None:
    if any(folder.glob(f"{stem}.*.ytdl")):
        _remove(folder, stem)


def _remove(folder: Path, stem: str) -> None:
    (folder / f"{stem}{RECORD_SUFFIX}").unlink(missing_ok=True)
    for path in folder.glob(f"{stem}.*"):
        path.unlink(missing_ok=True)
