"""The collection that the service searches: its index, opened again when it changes."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from dataclasses import dataclass
from functools import cached_property

from hapvr.errors import HapvrError, VideoError
from hapvr.search.collection import VideoMetadata
from hapvr.search.current import CURRENT, current_index
from hapvr.stages.pictures import StoredPictures
from hapvr.stages.project import Project
from hapvr.stages.searcher import Searcher

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class OpenIndex:
    """One version of the index. state: digest of what says which version that is."""

    project: Project
    searcher: Searcher
    state: str

    @cached_property
    def pictures(self) -> StoredPictures:
        return StoredPictures(self.project, self.searcher.collection.shard_of)

    @cached_property
    def video_ids(self) -> list[str]:
        return self.searcher.collection.video_ids()

    @cached_property
    def sources(self) -> list[str]:
        """The parts of ids before the first slash."""
        return sorted({video_id.partition("/")[0] for video_id in self.video_ids})

    def facts(self, video_id: str) -> VideoMetadata:
        """What is known of a video. Raises VideoError `unknown_id`."""
        self.check(video_id)
        return self.searcher.collection.metadata.of(video_id)

    def check(self, video_id: str) -> None:
        """Raise VideoError `unknown_id` unless the index has the video."""
        if video_id not in self.searcher.collection.shard_of:
            raise VideoError("unknown_id", f"search: the index has no video {video_id!r:.200}; GET /videos lists them")


class Collection:
    """Opens the index of a project, and opens it again after it was changed. Any thread may ask."""

    def __init__(self, project: Project, *, refresh_s: float, model: str | None = None) -> None:
        """refresh_s: how long an index is taken to be unchanged. model: as `Searcher.open` takes it."""
        self.project = project
        self._model = model
        self._refresh_s = refresh_s
        self._opening = threading.Lock()
        self._open: OpenIndex | None = None
        self._problem: HapvrError | None = None
        self._looked_s = -float("inf")
        self._verified: set[str] = set()

    @property
    def problem(self) -> str:
        """Why the index of this moment cannot be opened; "" if it can, or nobody has tried."""
        return "" if self._problem is None else str(self._problem)

    def current(self) -> OpenIndex:
        """The index. Raises DataError where there is none yet, or none that can be read.

        While a changed index is being opened, others go on with the one before.
        """
        known = self._open
        if known is not None and time.monotonic() - self._looked_s < self._refresh_s:
            return known
        if not self._opening.acquire(blocking=known is None):
            assert known is not None
            return known
        try:
            return self._look()
        finally:
            self._opening.release()

    def _look(self) -> OpenIndex:
        if self._open is None and time.monotonic() - self._looked_s < self._refresh_s and self._problem is not None:
            raise self._problem
        try:
            state = self._state()
            if self._open is None or state != self._open.state:
                self._open = OpenIndex(self.project, Searcher.open(self.project, model=self._model), state)
                self._open.searcher.verify_in_background(self._verified)
                _LOG.info("the index is open: %d videos", self._open.searcher.num_videos)
            else:
                self._open.searcher.look_at_registry()
            self._problem = None
        except HapvrError as error:
            self._problem = error
            if self._open is None:
                raise
            _LOG.warning("the index was changed and cannot be opened; the one before answers: %s", error)
        finally:
            self._looked_s = time.monotonic()
        return self._open

    def _state(self) -> str:
        root = self.project.root
        place = current_index(root).place
        digest = hashlib.sha256()
        for name in (CURRENT, f"{place}/index.json"):
            with root.open(name) as file:
                digest.update(file.read())
        return digest.hexdigest()
