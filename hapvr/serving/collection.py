"""The collection that the service searches: its index, which is reopened when it changes."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hapvr.data.frames import VideoFrames, thumbnail
from hapvr.errors import ConfigError, DamagedError, DataError, HapvrError, VideoError
from hapvr.files import digest_of
from hapvr.search.collection import REFRESH_S, VideoMetadata
from hapvr.search.current import CurrentIndex, current_index
from hapvr.search.frame_index import STATE_FILE, FrameIndex
from hapvr.search.match import Query
from hapvr.search.video_index import has_videos, videos_place
from hapvr.serving.refusals import without_paths
from hapvr.steps.frames import open_frames
from hapvr.steps.project import COLLECTION_FILE, Project
from hapvr.steps.searcher import Searcher

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class OpenIndex:
    """One version of the index. state: says which version that is. changed_s: when it was written,
    since 1970."""

    searcher: Searcher
    state: str
    changed_s: float

    @cached_property
    def video_ids(self) -> list[str]:
        return self.searcher.collection.video_ids()

    def ids_with(self, letters: str, *, has_paths: bool) -> list[str]:
        """Videos whose id contains these letters, or the present name of whose file does.

        has_paths: whether the reader may see where files lie now"""
        wanted = letters.casefold()
        return [
            video_id
            for video_id in self.video_ids
            if wanted in video_id.casefold()
            or (has_paths and wanted in self._file_name(video_id).casefold())
        ]

    def id_of(self, name: str, *, has_paths: bool) -> str:
        """The id of the one video that is called so by its id, the end of it or the present name of
        its file; the name itself where none is, or several are."""
        if name in self.searcher.collection.shard_of:
            return name
        called = [
            video_id
            for video_id in self.video_ids
            if video_id.endswith(f"/{name}") or (has_paths and self._file_name(video_id) == name)
        ]
        return called[0] if len(called) == 1 else name

    def _file_name(self, video_id: str) -> str:
        path = self.searcher.collection.metadata.of(video_id).path
        return "" if path is None else path.name

    def metadata(self, video_id: str) -> VideoMetadata:
        """Metadata of a video. Raises VideoError `unknown_id` for one that the index does not
        have."""
        if video_id not in self.searcher.collection.shard_of:
            raise VideoError(
                "unknown_id", f"search: the collection has no video {video_id!r:.200}; check its id"
            )
        return self.searcher.collection.metadata.of(video_id)

    def video_row(self, video_id: str, *, has_paths: bool) -> dict[str, Any]:
        """What a page shows of a video. playable: whether its file existed when it was probed.

        has_paths: whether the reader may see where its file lies now."""
        metadata = self.metadata(video_id)
        path = metadata.path_text if has_paths else None
        return vars(metadata) | {
            "id": video_id,
            "playable": metadata.path is not None,
            "path": path or "",
            "clock_note": without_paths(metadata.clock_note),
        }

    def read_id(self, video_id: str) -> Query:
        """A video as a query, see `id_of`. Raises VideoError `unknown_id`."""
        video_id = self.id_of(video_id, has_paths=False)
        self.metadata(video_id)
        return self.searcher.read_id(video_id)

    @cached_property
    def _frames(self) -> Callable[[str], VideoFrames]:
        """Those of the videos that were asked for last, in memory; at 256 px a frame has about 15
        kB."""
        project = self.searcher.project
        shard_of = self.searcher.collection.shard_of
        return lru_cache(16)(lambda name: open_frames(project, shard_of[name]).read(name))

    def picture(self, video_id: str, second: float | None) -> bytes | None:
        """The JPEG of the sampled frame that is nearest to a second, or of the first that shows
        something, the first of all where none does; None where there are no frames."""
        try:
            frames = self._frames(video_id)
        except DataError:  # imported features have none
            return None

        return picture_at(frames.jpegs, frames.timestamps_s, second)


def picture_at(jpegs: Sequence[bytes], times_s: Sequence[float], second: float | None) -> bytes:
    """The frame that is nearest to a second; without one the first that shows something, the first
    of all where none does."""
    if second is not None:
        return jpegs[int(np.abs(np.asarray(times_s) - second).argmin())]
    for jpeg in jpegs[:60]:
        grey = np.asarray(thumbnail(jpeg, size_px=(32, 32)).convert("L"), np.float32)
        if grey.std() >= 8:  # of 255; less has one colour: black, a fade
            return jpeg

    return jpegs[0]


class Collection:
    """Opens the index of a project, and reopens it after a change. Any thread may ask."""

    def __init__(
        self, project: Project, *, model: str | None = None, verifies: bool = True
    ) -> None:
        """model: as `Searcher.open` takes it.
        verifies: whether every file of an index is read once, in the background, see `damage` of
        `Searcher`.
        """
        self.project = project
        """With the settings of the moment when the index was looked at last, where people edit them
        in the data root."""
        self._follows_settings = _has_own_settings(project)
        self._model = model
        self._verifies = verifies
        self._opening = threading.Lock()
        self.opened: OpenIndex | None = None
        """The index that was opened last."""
        self.problem: HapvrError | None = None
        """Why the index of this moment cannot be opened; None if it can, or nobody has tried."""
        self._looked_s = -float("inf")
        self._verified: set[str] = set()

    def current(self, *, wait: bool = True, look: bool = False) -> OpenIndex:
        """The index. While a changed one is being opened, others go on with the one before.

        wait: for the first to be opened. look: it was changed just now. Raises DataError where
        there is none yet, none that can be read, or the data root is offline."""
        with suppress(DamagedError):
            current_index(self.project.root)
        if self._opening.acquire(blocking=look or (wait and self.opened is None)):
            try:
                if look or time.monotonic() - self._looked_s >= REFRESH_S:
                    self._look()
            finally:
                self._opening.release()

        if self.opened is None:
            raise self.problem or DataError(
                "search: the index is not open yet; ask again, or see the service's log"
            )

        return self.opened

    def reach(self, state: str) -> None:
        """Open the index that counts, unless the one that is open has this state. Raises DataError
        where neither this state nor a later one can be opened: an older one does not answer."""
        if self.current().state == state:
            return
        index = self.current(look=True)
        if index.state != state and self.problem is not None:
            raise self.problem

    def is_current(self, index: OpenIndex) -> bool:
        """Whether an index is the one that counts at this moment."""
        with suppress(DataError):
            return self._state()[1] == index.state
        return False

    def _state(self) -> tuple[CurrentIndex, str]:
        """The index that counts now, and which version of it and of the settings that is."""
        root = self.project.root
        current = current_index(root)
        settings = digest_of(self.project.config.model_dump(mode="json"))
        state = f"{current} {root.sha256(_state_file(current))} {settings}"
        if has_videos(root, current.place):
            state += f" {root.sha256(f'{videos_place(current.place)}/{STATE_FILE}')}"
        return current, state

    def _look(self) -> None:
        """Open the index that counts now, unless it is the one that is open."""
        try:
            self._open_current()
            self.problem = None
        except HapvrError as error:
            if str(error) != str(self.problem):
                _LOG.warning(
                    "the index cannot be opened; the one before answers if there is one: %s", error
                )

            # It is not a fault of the client.
            self.problem = error if isinstance(error, DataError) else DataError(str(error))

        self._looked_s = time.monotonic()

    def _open_current(self) -> None:
        if self._follows_settings:
            self.project = present_project(self.project)
        current, state = self._state()
        if self.opened is not None and self.opened.state == state:
            self.opened.searcher.look_again()
            return

        changed_s = self.project.root.modified_ns(_state_file(current))[0] / 1e9
        searcher = Searcher.open(self.project, model=self._model)
        self.opened = OpenIndex(searcher, state, changed_s)
        if self._verifies:
            # No daemon: Python ends those inside of native code, which aborts the process.
            threading.Thread(target=self._verify, args=(searcher,), name="verify-index").start()

        _LOG.info("the index is open: %d videos", searcher.num_videos)

    def _verify(self, searcher: Searcher) -> None:
        """Read every file of the index; once one is found damaged, searches raise DamagedError."""
        alive = threading.main_thread().is_alive
        for index in filter(None, (searcher.index, searcher.video_index)):
            assert isinstance(index, FrameIndex)
            # What cannot be read at this moment need not be damaged.
            with suppress(HapvrError, OSError):
                searcher.damage.extend(index.verify(self._verified, until=lambda: not alive()))


def collection_place(project: Project) -> Path | None:
    """The data root where it is a collection of `hapvr index add`; else None."""
    with suppress(DataError):  # not a local folder
        file = project.root.local_path(COLLECTION_FILE)
        if file.is_file():
            return file.parent
    return None


def present_project(project: Project) -> Project:
    """The project with the settings that a collection of `hapvr index add` has by now: folders,
    watch lists and which copies are kept are edited while it is served. Raises ConfigError."""
    place = collection_place(project)
    return project if place is None else Project.open(place, overrides=project.overrides)


def _has_own_settings(project: Project) -> bool:
    """Whether the settings are those of the data root, and not of another configuration for it."""
    with suppress(ConfigError):
        return present_project(project).config == project.config
    return False


def _state_file(current: CurrentIndex) -> str:
    """What an index records of itself."""
    return f"{current.place}/{STATE_FILE}"
