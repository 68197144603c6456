"""Stored features of a collection's videos: any part of any video, from as few bytes as that takes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hapvr.errors import DataError
from hapvr.scorer.segments import Clock
from hapvr.scorer.videos import SampledFeatures
from hapvr.storage.features import STAGE, FeatureFile
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.shards import Shard

MAX_OPEN_SHARDS = 256
"""A process may open about a thousand files."""


class StoredVideos:
    """Features by video id. Any thread may read."""

    def __init__(
        self,
        root: DataRoot,
        shards: Mapping[str, str],
        *,
        require: Callable[[Mapping[str, Any]], None],
        side: bool = False,
    ) -> None:
        """shards: video id -> shard. require: raises DataError for settings of features that the model does not take. side:
        the network reads pooled vectors, which the regions then carry."""
        self._root = root
        self._shards = shards
        self._require = require
        self._side = side
        self._open: OrderedDict[str, FeatureFile] = OrderedDict()
        self._guard = threading.Lock()

    def __contains__(self, video_id: object) -> bool:
        return video_id in self._shards

    def check(self) -> None:
        """Raise DataError if the model does not take the features of the first shard that is there."""
        for key in sorted(set(self._shards.values())):
            found = Shard(self._root, STAGE, key).provenance()
            if found is not None:
                self._require(found.settings)
                return

    def times(self, video_id: str) -> Sequence[float]:
        """Seconds [T] of the sampled frames. Raises DataError for a video that has no features any more."""
        with self._guard:
            return self._file(video_id).times(video_id)

    def read(self, video_id: str, times_s: Sequence[float], first: int, last: int) -> SampledFeatures:
        """The frames from `first` to `last` - 1. times_s: what `times` gave. Raises DataError as `times` does."""
        with self._guard:
            regions = self._file(video_id).regions(video_id, first, last)
        return SampledFeatures(regions, Clock(tuple(times_s[first:last])))

    def whole(self, video_id: str) -> SampledFeatures:
        """All frames of a video. Raises DataError as `times` does."""
        times = self.times(video_id)
        return self.read(video_id, times, 0, len(times))

    def _file(self, video_id: str) -> FeatureFile:
        if video_id not in self._shards:
            raise DataError(
                f"search: the index has no video {video_id!r:.200}; `hapvr index status` says what it holds"
            )
        key = self._shards[video_id]
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        shard = Shard(self._root, STAGE, key)
        self._require(shard.require({}).settings)
        while len(self._open) >= MAX_OPEN_SHARDS:
            self._open.popitem(last=False)
        self._open[key] = FeatureFile(shard, side=self._side)
        return self._open[key]
