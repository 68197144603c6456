"""Batches of cached views."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from hapvr.augment.settings import ViewsConfig
from hapvr.config import Config
from hapvr.data.filesystem import DataRoot, allow_open_files
from hapvr.data.shards import Shard
from hapvr.data.views import DRAWING_VERSION, LABELS_STAGE, VIEWS_STAGE, ViewFile, ViewRow
from hapvr.errors import DataError
from hapvr.seeding import numpy_rng
from hapvr.train.batch import STRENGTHS, Batch, BatchClip, BatchSource

FILES_PER_SHARD = 2
"""Views and embeddings."""


class CachedViews(BatchSource):
    """Item `number` is the batch of that number: of each video a weak and a strong view.

    The two are of one window of the video, drawn by (train.seed, number). A clip that shows a second video is drawn where
    that video is in the batch, so that its label says so (see `BatchSampler` for the one exception).

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
        for number, key in enumerate(self._shard_keys):
            file = ViewFile(Shard(root, VIEWS_STAGE, key), extras=self._extras)
            self.dims, self.extras_dims = file.dims, file.extras_dims if self._extras else 0
            for row in _matching_rows(root, key, file, config.views, features):
                self._shard_of[row.video_id] = number
                self._rows.setdefault(row.video_id, []).append(row)
        self._windows = {video_id: _windows_of(rows, config.views) for video_id, rows in self._rows.items()}
        alone = {video_id for video_id in self._rows if self._usable_windows(video_id, ())}
        self._start(self._rows, groups=_linked_videos(self._rows), alone=alone)

    def __getitem__(self, number: int) -> Batch:
        videos = self.sampler.videos(number)
        together = set(videos)
        chosen = {video_id: self._choose(video_id, number, together) for video_id in videos}
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

    def _choose(self, video_id: str, number: int, videos: Collection[str]) -> list[int]:
        """Positions among the video's rows: views of one window, whose donors are among `videos`."""
        rng = numpy_rng(self._seed, "views", number, video_id)
        usable = self._usable_windows(video_id, videos) or self._windows[video_id]
        window = usable[int(rng.integers(len(usable)))]
        return [window[strength][int(rng.integers(len(window[strength])))] for strength in STRENGTHS]

    def _usable_windows(self, video_id: str, videos: Collection[str]) -> list[dict[str, list[int]]]:
        """Per window with views of both strengths that need no video but `videos`, the positions of these views."""
        rows = self._rows[video_id]
        found = [
            {
                strength: [index for index in indices if not rows[index].donor_id or rows[index].donor_id in videos]
                for strength, indices in window.items()
            }
            for window in self._windows[video_id]
        ]
        return [window for window in found if all(window.values())]

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


def _linked_videos(rows: Mapping[str, Sequence[ViewRow]]) -> list[list[str]]:
    """Groups of videos whose clips show each other; videos without such clips are in none."""
    group_of = {video_id: {video_id} for video_id in rows}
    for video_id, views in rows.items():
        for row in views:
            if row.donor_id and group_of[row.donor_id] is not group_of[video_id]:
                joined = group_of[video_id] | group_of[row.donor_id]
                group_of |= dict.fromkeys(joined, joined)
    groups = {id(group): sorted(group) for group in group_of.values() if len(group) > 1}
    return list(groups.values())


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
