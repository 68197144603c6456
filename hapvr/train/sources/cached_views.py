"""Self-supervised batches of views that were drawn and embedded beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from hapvr.augment.views import ViewPlan, host_groups
from hapvr.config import Config
from hapvr.data.features import DRAWING_VERSION, LABELS_STAGE, VIEWS_STAGE, ViewFile
from hapvr.data.filesystem import DataRoot, allow_open_files
from hapvr.data.manifest import name_digest
from hapvr.data.shards import Shard
from hapvr.errors import DataError
from hapvr.networks.whitening import load_whitening
from hapvr.seeding import numpy_rng
from hapvr.train.batch import STRENGTHS, Batch
from hapvr.train.sampler import look_alikes
from hapvr.train.sources.source import SourceInputs
from hapvr.train.sources.views import VideoViews


class CachedViews(VideoViews):
    """Item `number` is the batch of that number: of each video a weak and a strong view.

    The two are of one window of the video, drawn by (train.seed, number). Videos whose clips show
    each other are mostly in one batch, see `BatchSampler`, so that they are positives of each other
    there.

    Raises DataError for fewer than two videos, and where views and embeddings do not belong
    together."""

    def __init__(self, inputs: SourceInputs) -> None:
        super().__init__(inputs)
        self._hosts: dict[str, list[str]] = {}
        groups: list[list[str]] = []
        for number, key in enumerate(self._shard_keys):
            views = self._checked_shard(key)
            file = ViewFile(views, extras=self._extras)
            self.dims = file.dims
            self.extras_dims = file.extras_dims if self._extras else 0
            self._shard_of |= dict.fromkeys(file.video_ids, number)
            self._num_frames |= dict(views.index().select("video_id", "num_frames").iter_rows())
            self._hosts |= file.hosts
            groups += host_groups(file.video_ids, seed=self._config.views.seed)

        if self._config.train.look_alikes:
            groups = self._with_look_alikes(groups, inputs.copies)
        self._start(groups=groups)

    @staticmethod
    def reads(config: Config) -> tuple[str, ...]:
        """Views, and the teacher's embeddings of them."""
        return (VIEWS_STAGE, LABELS_STAGE)

    @staticmethod
    def frozen_networks(
        root: DataRoot, shard_keys: Sequence[str], config: Config
    ) -> dict[str, dict[str, Any]]:
        """The networks that made the first shard."""
        views = Shard(root, VIEWS_STAGE, shard_keys[0]).require({}).settings
        labels = Shard(root, LABELS_STAGE, shard_keys[0]).require({}).settings
        return {"backbone": views["features"]["backbone"], "teacher": labels["teacher"]}

    def __getitem__(self, number: int) -> Batch:
        own = self.sampler.rank_slice()
        plans: list[ViewPlan] = []
        regions = []
        embeddings = []
        for place, video_id in enumerate(self.sampler.videos(number)):
            views, labels = self._files[self._shard_of[video_id]]
            chosen = self._draw(number, video_id)
            plans += chosen
            indices = [plan.index for plan in chosen]
            embeddings.append(labels.read(video_id)[indices])
            if own.start <= place < own.stop:
                regions.append(views.read(video_id)[indices])

        return self.build(
            plans, torch.cat(regions), torch.cat(embeddings), first_row=own.start * len(STRENGTHS)
        )

    def _draw(self, number: int, video_id: str) -> list[ViewPlan]:
        """A weak and a strong view of one window of the video."""
        settings = self._config.views
        hosts = self._hosts[video_id]
        rng = numpy_rng(self._seed, "views", number, video_id)
        window = int(rng.integers(settings.num_windows))
        plans = []
        for indices, strength in zip(settings.indices_of(window), STRENGTHS, strict=True):
            index = indices[int(rng.integers(len(indices)))]
            plans.append(ViewPlan(video_id, index, strength, window, host_id=hosts[index]))

        return plans

    def _checked_shard(self, key: str) -> Shard:
        """The views of a shard. Raises DataError if they were drawn or embedded differently from
        those of the first shard, or the teacher saw other views."""
        # Values of different backbones, crops or whitenings do not compare, nor with those of
        # benchmarks.
        first = Shard(self._root, VIEWS_STAGE, self._shard_keys[0]).require({}).settings["features"]
        drawn = {
            "drawing": DRAWING_VERSION,
            "views": self._config.views.model_dump(mode="json"),
            "features": {**first, "whitening": load_whitening(self._root).sha256},
        }
        views = Shard(self._root, VIEWS_STAGE, key)
        of_views = views.require(drawn)
        shared = ("drawing", "views", "sampling", "crop_px")
        of_labels = Shard(self._root, LABELS_STAGE, key).require(
            {name: of_views.settings[name] for name in shared}
        )
        if of_labels.inputs != of_views.inputs:
            raise DataError(
                f"training: training_views and pseudo_labels of shard {key} are not of the same "
                "views; materialise both again"
            )

        return views

    def _with_look_alikes(
        self, groups: list[list[str]], copies: Mapping[str, str]
    ) -> list[list[str]]:
        """The groups, joined to batches of videos that look alike."""
        means = {
            name: self._files[shard][0].read(name)[0].float().mean((0, 1))
            for name, shard in self._shard_of.items()
        }
        copies_of = {
            name: copies[name_digest(name)] for name in means if name_digest(name) in copies
        }
        return look_alikes(groups, means, copies=copies_of, size=self._config.train.batch_videos)

    @cached_property
    def _files(self) -> list[tuple[ViewFile, ViewFile]]:
        """Views and embeddings of each shard."""
        allow_open_files(2 * len(self._shard_keys))
        files = []
        for key in self._shard_keys:
            views = ViewFile(Shard(self._root, VIEWS_STAGE, key), extras=self._extras)
            labels = ViewFile(Shard(self._root, LABELS_STAGE, key))
            files.append((views, labels))

        return files
