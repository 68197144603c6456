"""Batches of cached views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hapvr.augment.settings import ViewsConfig
from hapvr.config import Config
from hapvr.data.filesystem import DataRoot, allow_open_files
from hapvr.data.shards import Shard
from hapvr.data.views import DRAWING_VERSION, LABELS_STAGE, VIEWS_STAGE, ViewFile, ViewRow
from hapvr.errors import DataError
from hapvr.networks.views import donor_groups
from hapvr.seeding import numpy_rng
from hapvr.train.batch import STRENGTHS, Batch, BatchClip, BatchSource

FILES_PER_SHARD = 2
"""Views and embeddings."""


class CachedViews(BatchSource):
    """Item `number` is the batch of that number: of each video a weak and a strong view.

    The two are of one window of the video, drawn by (train.seed, number). Videos whose clips show each other are mostly in
    one batch, see `BatchSampler`, so that they are positives of each other there.

    Raises DataError without training videos, with a single one, and where views and embeddings do not belong together.
    """

    def __init__(
        self, root: DataRoot, shard_keys: Sequence[str], config: Config, *, rank: int = 0, world_size: int = 1
    ) -> None:
        super().__init__(root, shard_keys, config, rank=rank, world_size=world_size)
        self._shard_of: dict[str, int] = {}
        self._rows: dict[str, list[ViewRow]] = {}
        # Values of different backbones, crops or whitenings do not compare.
        features = Shard(root, VIEWS_STAGE, self._shard_keys[0]).require({}).settings["features"]
        groups: list[list[str]] = []
        for number, key in enumerate(self._shard_keys):
            file = ViewFile(Shard(root, VIEWS_STAGE, key), extras=self._extras)
            self.dims, self.extras_dims = file.dims, file.extras_dims if self._extras else 0
            groups += donor_groups(file.video_ids, seed=config.views.seed)
            for row in _matching_rows(root, key, file, config.views, features):
                self._shard_of[row.video_id] = number
                self._rows.setdefault(row.video_id, []).append(row)
        self._windows = {video_id: _windows_of(rows, config.views) for video_id, rows in self._rows.items()}
        self._start(self._rows, groups=groups)

    def __getitem__(self, number: int) -> Batch:
        videos = self.sampler.videos(number)
        chosen = {video_id: self._choose(video_id, number) for video_id in videos}
        own = self.sampler.rank_slice()
        return self.build(
            [self._clip(self._rows[video_id][index]) for video_id in videos for index in chosen[video_id]],
            torch.cat([self._open(video_id)[0].read(video_id)[chosen[video_id]] for video_id in videos[own]]),
            torch.cat([self._open(video_id)[1].read(video_id)[chosen[video_id]] for video_id in videos]),
            first_row=own.start * len(STRENGTHS),
        )

    def _clip(self, row: ViewRow) -> BatchClip:
        # A weak view shows all frames of a short video, and its first row is weak.
        num_frames = len(set(self._rows[row.video_id][0].source_index))
        return BatchClip(row.video_id, row.view_index, num_frames, donor_id=row.donor_id)

    def _choose(self, video_id: str, number: int) -> list[int]:
        """Positions among the video's rows: a weak and a strong view of one window."""
        rng = numpy_rng(self._seed, "views", number, video_id)
        windows = self._windows[video_id]
        window = windows[int(rng.integers(len(windows)))]
        return [window[strength][int(rng.integers(len(window[strength])))] for strength in STRENGTHS]

    def _open(self, video_id: str) -> tuple[ViewFile, ViewFile]:
        if self._files is None:
            allow_open_files(FILES_PER_SHARD * len(self._shard_keys))
            self._files = [
                (
                    ViewFile(Shard(self._root, VIEWS_STAGE, key), extras=self._extras),
                    ViewFile(Shard(self._root, LABELS_STAGE, key)),
                )
                for key in self._shard_keys
            ]
        files: tuple[ViewFile, ViewFile] = self._files[self._shard_of[video_id]]
        return files


def _windows_of(rows: Sequence[ViewRow], config: ViewsConfig) -> list[dict[str, list[int]]]:
    """For each window of a video the positions of its weak and of its strong views."""
    windows: list[dict[str, list[int]]] = [{"weak": [], "strong": []} for _ in range(config.num_windows)]
    for position, row in enumerate(rows):
        windows[config.window_of(row.view_index)][row.strength].append(position)
    return windows


def _matching_rows(
    root: DataRoot, key: str, file: ViewFile, config: ViewsConfig, features: Mapping[str, Any]
) -> list[ViewRow]:
    """The rows of a shard's views; refused unless features and embeddings are of the same views, drawn as configured.

    features: settings of the frozen network, which all shards share.
    """
    views, embeddings = Shard(root, VIEWS_STAGE, key), Shard(root, LABELS_STAGE, key)
    drawn = {"drawing": DRAWING_VERSION, "views": config.model_dump(mode="json")}
    found = views.require({**drawn, "features": features})
    embeddings.require({name: found.settings[name] for name in ("drawing", "views", "sampling", "crop_px")})
    if file.rows != ViewFile(embeddings).rows:
        raise DataError(
            f"training: training_views and pseudo_labels of shard {key} are not of the same views; materialise both again"
        )
    return file.rows
