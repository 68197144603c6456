"""The videos of one request: local files and URLs, within what may be read and what it may cost."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hapvr.errors import VideoError
from hapvr.installed import FULL_REMEDY, is_installed
from hapvr.scorer.access import Access
from hapvr.scorer.deadline import Deadline
from hapvr.scorer.settings import ServingConfig
from hapvr.scorer.videos import Outcome, SampledFeatures, VideoReader
from hapvr.video.settings import DownloadConfig
from hapvr.video.sources import ManifestEntry

if TYPE_CHECKING:
    from hapvr.video.download import Downloader

GROUP = 8
"""Videos that are decoded together and held at once, beside the query's and the cache."""

DOWNLOAD_RETRIES = 1


class RequestVideos:
    """Reads videos by name, a group ahead, in the order in which `names` first have them. A context: it owns downloads.

    A video that is asked for again after its group is read from the cache, or alone.
    """

    def __init__(
        self, reader: VideoReader, names: Iterable[str], *, limits: ServingConfig, access: Access, deadline: Deadline
    ) -> None:
        self._reader = reader
        self._order = list(dict.fromkeys(names))
        self._position = {name: number for number, name in enumerate(self._order)}
        self._limits = limits
        self._access = access
        self._deadline = deadline
        self._num_read = 0
        self._held: dict[str, SampledFeatures] = {}
        self._failed: dict[str, VideoError] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="hapvr-request-", ignore_cleanup_errors=True)
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._folder.cleanup)
        self._downloader: Downloader | None = None

    def __enter__(self) -> RequestVideos:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def get(self, name: str) -> SampledFeatures:
        """Features of one of the names. Raises VideoError."""
        position = self._position[name]
        if position >= self._num_read:
            self._held = {}
            self._held = self._read(self._order[position : position + GROUP])
            self._num_read = position + GROUP
        if name in self._failed:
            error = self._failed[name]
            raise VideoError(error.reason, str(error))
        if name in self._held:
            return self._held[name]
        again = self._read([name])
        return again[name] if name in again else self.get(name)

    def _read(self, names: list[str]) -> dict[str, SampledFeatures]:
        """Features of those that can be used; the others' errors are kept."""
        paths: dict[str, Path] = {}
        for name in names:
            try:
                paths[name] = self._local(name)
            except VideoError as error:
                self._failed[name] = error
        outcomes: dict[Path, Outcome] = self._reader.read(
            list(paths.values()), limits=self._limits, deadline=self._deadline
        )
        found: dict[str, SampledFeatures] = {}
        for name, path in paths.items():
            outcome = outcomes[path]
            if isinstance(outcome, VideoError):
                self._failed[name] = outcome
            else:
                found[name] = outcome
            if path.is_relative_to(self._folder.name):
                path.unlink(missing_ok=True)
        return found

    def _local(self, name: str) -> Path:
        if not name:
            raise VideoError("missing_file", "video: no name is given; wanted a path or an http(s) URL")
        if "://" not in name:
            return self._access.local_path(name)
        try:
            address = urlsplit(name)
            host = address.hostname
        except ValueError as error:
            raise VideoError("not_allowed", f"video: {name!r} is no URL ({error})") from error
        if address.scheme.lower() not in ("http", "https"):
            raise VideoError("not_allowed", f"video: {name}: wanted a path or an http(s) URL")
        self._access.check_host(host, name)
        return self._fetch(name)

    def _fetch(self, url: str) -> Path:
        if not is_installed("yt_dlp"):
            raise VideoError(
                "unsupported", f"video: {url}: URLs need yt-dlp; {FULL_REMEDY}, or fetch the file yourself"
            )
        from hapvr.video.download import Downloader  # yt-dlp is loaded only where a URL is asked for

        if self._deadline.passed():
            raise self._deadline.error()
        if self._downloader is None:
            config = DownloadConfig(max_bytes=self._limits.max_bytes, retries=DOWNLOAD_RETRIES, workers=1)
            self._downloader = self._stack.enter_context(Downloader(config))
        result = self._downloader.download(
            ManifestEntry(video_id=url, uri=url),
            folder=Path(self._folder.name),
            timeout_s=min(self._limits.video_timeout_s, self._deadline.wait_s()),
        )
        if result.path is None:
            raise VideoError(result.reason or result.status, result.message)
        return result.path
