"""Self-supervised batches of views that are drawn and embedded inside the training step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from hapvr.augment.views import ViewPlan, choose_host
from hapvr.config import Config
from hapvr.data.filesystem import DataRoot
from hapvr.data.frames import STAGE as FRAMES_STAGE, FrameFile
from hapvr.data.shards import Shard
from hapvr.networks.backbone import load_teacher
from hapvr.networks.encoder import open_encoder
from hapvr.networks.settings import BATCH_FRAMES
from hapvr.networks.whitening import load_whitening
from hapvr.seeding import derive_seed
from hapvr.train.batch import STRENGTHS, Batch
from hapvr.train.ranks import gather
from hapvr.train.sources.source import SourceInputs
from hapvr.train.sources.views import VideoViews

DrawnClips = tuple[Tensor, int, list[ViewPlan]]
"""Frames [b, T, 3, S, S] uint8 of this process's clips, the first of these, and the plans of all B.
"""


class OnlineViews(VideoViews):
    """Item `number` is the drawn clips of that batch; `finish` computes their features and pseudo
    labels.

    In every batch each video gets a new window and new views of it; hosts are other videos of the
    batch. Raises DataError without stored frames, and with a single training video.
    """

    def __init__(self, inputs: SourceInputs) -> None:
        super().__init__(inputs)
        config = self._config
        self._device = self._ranks.device
        for number, key in enumerate(self._shard_keys):
            frames = Shard(self._root, FRAMES_STAGE, key)
            frames.require({"sampling": config.sampling.identity_fields()})
            self._shard_of |= dict.fromkeys(FrameFile(frames).video_ids, number)
            self._num_frames |= dict(frames.index().select("video_id", "num_rows").iter_rows())

        self._start()

        encoder = open_encoder(config.backbone, self._device.type, extras=self._extras)
        whitening = load_whitening(self._root)
        teacher = load_teacher(config.teacher, crop_px=config.backbone.crop_px)
        self.dims = whitening.dims
        self.extras_dims = len(whitening.mean) if self._extras else 0
        self._embed_regions = encoder.embedder(whitening, str(self._device), extras=self._extras)
        self._embed_frames = teacher.embedder(self._device)

    @staticmethod
    def reads(config: Config) -> tuple[str, ...]:
        """Only frames."""
        return (FRAMES_STAGE,)

    @staticmethod
    def frozen_networks(
        root: DataRoot, shard_keys: Sequence[str], config: Config
    ) -> dict[str, dict[str, Any]]:
        """The networks that a step runs."""
        teacher = load_teacher(config.teacher, crop_px=config.backbone.crop_px)
        encoder = open_encoder(config.backbone, config.device)
        return {"backbone": dict(encoder.settings), "teacher": teacher.settings}

    def __getitem__(self, number: int) -> DrawnClips:
        videos = self.sampler.videos(number)
        own = self.sampler.rank_slice()
        count = len(STRENGTHS)
        window = derive_seed(self._seed, "window", number)
        indices = [derive_seed(self._seed, "view", number, place) for place in range(count)]
        plans = []
        for video_id in videos:
            others = [other for other in videos if other != video_id]
            for index, strength in zip(indices, STRENGTHS, strict=True):
                host_id = ""
                if strength == "strong":
                    host_id = choose_host(video_id, index, others, self._config.views)
                plans.append(ViewPlan(video_id, index, strength, window, host_id=host_id))

        first_row = own.start * count
        drawn = [self._files.draw(plan) for plan in plans[first_row : own.stop * count]]
        return torch.stack(drawn), first_row, plans

    @cached_property
    def _files(self) -> Any:
        """A `ViewDrawer` for stored frames."""
        from hapvr.augment.policy import ViewDrawer  # loads torchvision

        files = [FrameFile(Shard(self._root, FRAMES_STAGE, key)) for key in self._shard_keys]
        return ViewDrawer(
            lambda video_id: files[self._shard_of[video_id]].read(video_id).jpegs,
            config=self._config.views,
            size_px=self._config.backbone.crop_px,
        )

    def finish(self, item: DrawnClips) -> Batch:
        """Features and frame labels of drawn clips: regions [b, T, R, D], and the teacher's
        embeddings of all clips."""
        frames, first_row, plans = item
        parts = [part.numpy() for part in torch.split(frames.flatten(0, 1), BATCH_FRAMES)]
        values = []
        for embed in (self._embed_regions, self._embed_frames):
            with torch.inference_mode():
                vectors = torch.cat([torch.from_numpy(embed(part)) for part in parts])
                stored = vectors.half()  # the precision of stored features

            # cloned outside inference mode, so that gradients may be taken through it
            values.append(stored.view(*frames.shape[:2], *stored.shape[1:]).clone())

        regions, embeddings = values
        embeddings = gather(embeddings.float().to(self._device)).cpu()
        return self.build(plans, regions, embeddings, first_row=first_row)

    def __getstate__(self) -> dict[str, Any]:
        # Data workers only draw: the networks stay behind.
        return super().__getstate__() | {"_embed_regions": None, "_embed_frames": None}
