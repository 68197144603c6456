"""The videos that a request names, files and URLs, as region features, within its permissions and
limits."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hapvr.errors import FULL_HINT, VideoError, is_installed
from hapvr.scorer.access import Access, Deadline
from hapvr.scorer.videos import Outcome, SampledFeatures, VideoReader
from hapvr.scratch import scratch_folder
from hapvr.settings import ServingConfig
from hapvr.video.settings import DownloadConfig
from hapvr.video.sources import ManifestEntry

if TYPE_CHECKING:
    from hapvr.video.download import Downloader

PREFIX = "hapvr-request-"
"""Begins the names of folders for downloads."""
GROUP = 8
"""How many videos are decoded together and in memory at once, in addition to the query's and the
cache."""


@dataclass(kw_only=True, eq=False)
class RequestVideos(contextlib.ExitStack):
    """Reads videos by name, a group ahead, in the order of `names`, which are all different. A
    context manager, as it owns downloads."""

    reader: VideoReader
    names: Sequence[str]
    limits: ServingConfig
    access: Access
    deadline: Deadline
    crops: bool
    """Whether the crops of a query are read, too."""

    def __post_init__(self) -> None:
        super().__init__()
        self._folder: Path | None = None
        """The folder of downloads, once there are some."""
        self._held: dict[str, Outcome] = {}
        self._downloader: Downloader | None = None

    def get(self, name: str) -> SampledFeatures:
        """Features of one of the names. Raises VideoError."""
        if name not in self._held:
            # failed videos are not tried again, and the former group makes room
            self._held = {
                held: outcome
                for held, outcome in self._held.items()
                if isinstance(outcome, VideoError)
            }
            start = self.names.index(name)
            self._read_group(self.names[start : start + GROUP])

        outcome = self._held[name]
        if isinstance(outcome, VideoError):
            raise VideoError(outcome.reason, str(outcome))
        return outcome

    def _read_group(self, names: Sequence[str]) -> None:
        """Read those videos that are not in memory yet, and keep them."""
        paths: dict[str, Path] = {}
        for name in names:
            if name in self._held:
                continue
            try:
                paths[name] = self._local(name)
            except VideoError as error:
                self._held[name] = error

        outcomes = self.reader.read(
            list(paths.values()), limits=self.limits, deadline=self.deadline, crops=self.crops
        )
        for name, path in paths.items():
            self._held[name] = outcomes[path]
            if self._folder is not None and path.is_relative_to(self._folder):
                path.unlink(missing_ok=True)

    def _local(self, name: str) -> Path:
        if "://" not in name:
            return self.access.local_path(name)
        self.access.check_url(name)
        if not is_installed("yt_dlp"):
            raise VideoError(
                "unsupported",
                f"video: {name}: URLs need yt-dlp; {FULL_HINT}, or fetch the file yourself",
            )

        # yt-dlp is loaded only where a URL is asked for
        from hapvr.video.download import Downloader

        self.deadline.check()
        if self._folder is None:
            self._folder = self.enter_context(scratch_folder(PREFIX))
        if self._downloader is None:
            config = DownloadConfig(max_bytes=self.limits.max_bytes, retries=1, workers=1)
            self._downloader = self.enter_context(Downloader(config))

        result = self._downloader.download(
            ManifestEntry(video_id=name, uri=name),
            folder=self._folder,
            timeout_s=min(self.limits.video_timeout_s, self.deadline.wait_s()),
        )
        if result.path is None:
            raise VideoError(result.reason or result.status, result.message)
        return result.path
