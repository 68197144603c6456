"""The videos that a search can find: their shards, stored features, and what is known of their files."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hapvr.data.features import STAGE, FeatureFile
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import VIDEOS_STAGE
from hapvr.data.shards import STATUS_OK, Shard
from hapvr.errors import DataError
from hapvr.scorer.segments import FrameTimes
from hapvr.scorer.videos import SampledFeatures
from hapvr.video.sources import path_of_text

MAX_OPEN_SHARDS = 256
"""A process may open about a thousand files."""


@dataclass(frozen=True, kw_only=True)
class VideoMetadata:
    """path: of the file, None where only features are known. sha256: of its bytes; of the id where there is no file.

    num_bytes, duration_s, width_px, height_px, codec: as the file says; None or 0 where it does not.
    """

    path: Path | None
    sha256: str
    num_bytes: int = 0
    duration_s: float | None = None
    width_px: int = 0
    height_px: int = 0
    codec: str = ""


class CollectionMetadata:
    """Metadata by video id, from the index of the shard that the video is in. Any thread may ask."""

    def __init__(self, root: DataRoot, shards: Mapping[str, str]) -> None:
        """shards: video id -> shard."""
        self._root = root
        self._shards = shards
        self._rows: dict[str, dict[str, dict[str, Any]]] = {}
        self._guard = threading.Lock()

    def of(self, video_id: str) -> VideoMetadata:
        """Metadata of a video; those of an id that no shard describes have no path."""
        row = self._row(video_id)
        if row is None:
            # imported features have no files; the id then stands for the content
            return VideoMetadata(path=None, sha256=hashlib.sha256(f"id:{video_id}".encode()).hexdigest())
        return VideoMetadata(
            path=path_of_text(row["path"]),
            sha256=row["sha256"],
            num_bytes=row["num_bytes"],
            duration_s=row["duration_s"],
            width_px=row["width_px"] or 0,
            height_px=row["height_px"] or 0,
            codec=row["codec"] or "",
        )

    def _row(self, video_id: str) -> dict[str, Any] | None:
        key = self._shards.get(video_id)
        if key is None:
            return None
        with self._guard:
            if key not in self._rows:
                found = Shard(self._root, VIDEOS_STAGE, key).finished_rows()
                rows = [] if found is None else found[1]
                self._rows[key] = {row["video_id"]: row for row in rows if row["status"] == STATUS_OK}
            return self._rows[key].get(video_id)


class SearchableCollection:
    """Features by video id: any part of any video, from as few bytes as that takes. Any thread may read."""

    def __init__(
        self,
        root: DataRoot,
        shards: Mapping[str, str],
        *,
        require: Callable[[Mapping[str, Any]], None],
        extras: bool = False,
    ) -> None:
        """shards: video id -> shard. require: raises DataError for settings of features that the model does not take. extras:
        the network reads pooled vectors, which the regions then carry."""
        self.shard_of = shards
        self.metadata = CollectionMetadata(root, shards)
        self._root = root
        self._require = require
        self._extras = extras
        self._open: OrderedDict[str, FeatureFile] = OrderedDict()
        self._guard = threading.Lock()
        for key in self.shards():
            found = Shard(root, STAGE, key).provenance()
            if found is not None:  # the first one found stands for all until they are read
                require(found.settings)
                break

    def video_ids(self, key: str | None = None) -> list[str]:
        """All videos that can be found, sorted; with `key`, those of one shard."""
        return sorted(video_id for video_id, shard in self.shard_of.items() if key in (None, shard))

    def shards(self) -> list[str]:
        """Shards that have a video, sorted."""
        return sorted(set(self.shard_of.values()))

    def times(self, video_id: str) -> Sequence[float]:
        """Seconds [T] of the sampled frames. Raises DataError for a video that has no features any more."""
        with self._guard:
            return self._file(video_id).times(video_id)

    def read(self, video_id: str, times_s: Sequence[float], first: int, last: int) -> SampledFeatures:
        """The frames from `first` to `last` - 1. times_s: what `times` gave. Raises DataError as `times` does."""
        with self._guard:
            regions = self._file(video_id).regions(video_id, first, last)
        return SampledFeatures(regions, FrameTimes(tuple(times_s[first:last])))

    def whole(self, video_id: str) -> SampledFeatures:
        """All frames of a video. Raises DataError as `times` does."""
        times = self.times(video_id)
        return self.read(video_id, times, 0, len(times))

    def _file(self, video_id: str) -> FeatureFile:
        if video_id not in self.shard_of:
            raise DataError(
                f"search: the index has no video {video_id!r:.200}; `hapvr index status` says what it holds"
            )
        key = self.shard_of[video_id]
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        shard = Shard(self._root, STAGE, key)
        self._require(shard.require({}).settings)
        while len(self._open) >= MAX_OPEN_SHARDS:
            self._open.popitem(last=False)
        self._open[key] = FeatureFile(shard, extras=self._extras)
        return self._open[key]
