"""Clips of videos, and the features and views from which they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hapvr.config import Config
from hapvr.data.features import EXTRAS_SETTING, STAGE, VIEWS_STAGE, FeatureFile, ViewFile
from hapvr.data.filesystem import DataRoot, allow_open_files
from hapvr.data.shards import Shard
from hapvr.model.settings import needs_extras


@dataclass(frozen=True)
class Clip:
    """A part of a video, or a stored view of it."""

    video_id: str
    start: int = 0
    """Its first frame."""
    view: int = -1
    """The number of the view instead, -1 for none."""
    host_id: str = ""
    """The video that the view shows as well, "" for none."""


class PairFeatures:
    """The features of all videos of a training, and the views of its distractors.

    dims: D.
    extras_dims: C of the pooled vectors, 0 where the network reads none.
    num_frames: of each video.

    Raises:
        DataError: features of several kinds."""

    def __init__(self, root: DataRoot, shard_keys: Sequence[str], config: Config) -> None:
        self._root = root
        self._shard_keys = shard_keys
        self._config = config
        self._extras = needs_extras(config.train.network)
        self._shard_of: dict[str, int] = {}
        self.num_frames: dict[str, int] = {}

        first = Shard(root, STAGE, shard_keys[0]).require({}).settings
        for number, key in enumerate(shard_keys):
            shard = Shard(root, STAGE, key)
            shard.require(dict(first))
            file = FeatureFile(shard, extras=self._extras)
            self.dims: int = file.dims
            self.extras_dims: int = file.settings[EXTRAS_SETTING] if self._extras else 0
            self._shard_of |= dict.fromkeys(file.video_ids, number)
            self.num_frames |= dict(shard.index().select("video_id", "num_rows").iter_rows())

    @property
    def video_ids(self) -> Sequence[str]:
        """The videos that have features."""
        return list(self._shard_of)

    def regions(self, video_id: str, first: int = 0, last: int | None = None) -> Tensor:
        """The frames from `first` to `last` - 1 of a video: [t, R + k, D]."""
        file = self._files[self._shard_of[video_id]]
        return torch.from_numpy(file.regions(video_id, first, last))

    def read(self, clip: Clip) -> Tensor:
        """The frames of a clip: [t, R + k, D], fewer than a clip has in a short video."""
        if clip.view >= 0:
            return self._views[self._shard_of[clip.video_id]].read(clip.video_id)[clip.view]
        return self.regions(clip.video_id, clip.start, clip.start + self._config.views.num_frames)

    def times(self, video_id: str) -> Any:
        """Seconds [T] of the frames of a video."""
        return np.array(self._files[self._shard_of[video_id]].times(video_id))

    def hosts(self, video_id: str) -> Sequence[str]:
        """The video that each view of a video shows as well, "" for none."""
        return self._views[self._shard_of[video_id]].hosts[video_id]

    def viewed_videos(self) -> set[str]:
        """The videos that have views. Raises DataError for views of other settings."""
        drawn = {"views": self._config.views.model_dump(mode="json")}
        for key in self._shard_keys:
            Shard(self._root, VIEWS_STAGE, key).require(drawn)
        return {video_id for file in self._views for video_id in file.video_ids}

    @cached_property
    def _files(self) -> list[FeatureFile]:
        """The features of each shard."""
        allow_open_files(2 * len(self._shard_keys))
        return [
            FeatureFile(Shard(self._root, STAGE, key), extras=self._extras)
            for key in self._shard_keys
        ]

    @cached_property
    def _views(self) -> list[ViewFile]:
        """The views of each shard."""
        return [
            ViewFile(Shard(self._root, VIEWS_STAGE, key), extras=self._extras)
            for key in self._shard_keys
        ]

    def __getstate__(self) -> dict[str, Any]:
        # Open files do not travel to data workers; each opens its own.
        open_files = ("_files", "_views")
        return {name: value for name, value in self.__dict__.items() if name not in open_files}
