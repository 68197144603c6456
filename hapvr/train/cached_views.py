"""Batches of cached views."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from hapvr.augment.views import ViewPlan, donor_groups
from hapvr.config import Config
from hapvr.data.features import DRAWING_VERSION, LABELS_STAGE, VIEWS_STAGE, ViewFile
from hapvr.data.filesystem import DataRoot, allow_open_files
from hapvr.data.shards import Shard
from hapvr.errors import DataError
from hapvr.networks.whitening import load_whitening
from hapvr.seeding import numpy_rng
from hapvr.train.batch import STRENGTHS, Batch, BatchSource


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
        self._num_frames = {}
        self._donors: dict[str, list[str]] = {}
        groups: list[list[str]] = []
        # Values of different backbones, crops or whitenings do not compare, nor with those of benchmarks.
        first = Shard(root, VIEWS_STAGE, self._shard_keys[0]).require({}).settings["features"]
        features = {**first, "whitening": load_whitening(root).sha256}
        drawn = {"drawing": DRAWING_VERSION, "views": config.views.model_dump(mode="json"), "features": features}
        for number, key in enumerate(self._shard_keys):
            views = Shard(root, VIEWS_STAGE, key)
            found = views.require(drawn)
            same = {name: found.settings[name] for name in ("drawing", "views", "sampling", "crop_px")}
            if Shard(root, LABELS_STAGE, key).require(same).inputs != found.inputs:
                raise DataError(
                    f"training: training_views and pseudo_labels of shard {key} are not of the same views; materialise both again"
                )
            file = ViewFile(views, extras=self._extras)
            self.dims, self.extras_dims = file.dims, file.extras_dims if self._extras else 0
            self._shard_of |= dict.fromkeys(file.video_ids, number)
            self._num_frames |= dict(views.index().select("video_id", "num_frames").iter_rows())
            self._donors |= file.donors
            groups += donor_groups(file.video_ids, seed=config.views.seed)
        self._start(self._shard_of, groups=groups)

    def __getitem__(self, number: int) -> Batch:
        videos = self.sampler.videos(number)
        chosen = {video_id: self._choose(video_id, number) for video_id in videos}
        own = self.sampler.rank_slice()
        regions, embeddings = [], []
        for place, video_id in enumerate(videos):
            views, labels = self._files[self._shard_of[video_id]]
            places = [plan.index for plan in chosen[video_id]]
            embeddings.append(labels.read(video_id)[places])
            if own.start <= place < own.stop:
                regions.append(views.read(video_id)[places])
        plans = [plan for video_id in videos for plan in chosen[video_id]]
        return self.build(plans, torch.cat(regions), torch.cat(embeddings), first_row=own.start * len(STRENGTHS))

    def _choose(self, video_id: str, number: int) -> list[ViewPlan]:
        """A weak and a strong view of one window."""
        views, rng = self._config.views, numpy_rng(self._seed, "views", number, video_id)
        window = int(rng.integers(views.num_windows))
        plans = []
        for strength, indices in zip(STRENGTHS, views.indices_of(window), strict=True):
            index = indices[int(rng.integers(len(indices)))]
            plans.append(ViewPlan(video_id, index, strength, window, donor_id=self._donors[video_id][index]))
        return plans

    @cached_property
    def _files(self) -> list[tuple[ViewFile, ViewFile]]:
        """Views and embeddings of each shard."""
        allow_open_files(2 * len(self._shard_keys))
        shards = [[Shard(self._root, stage, key) for stage in (VIEWS_STAGE, LABELS_STAGE)] for key in self._shard_keys]
        return [(ViewFile(views, extras=self._extras), ViewFile(labels)) for views, labels in shards]
