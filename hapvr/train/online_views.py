"""Batches of new views: each step draws them and runs both frozen networks on them, as the papers do."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from hapvr.config import Config
from hapvr.data.filesystem import DataRoot
from hapvr.data.frames import STAGE as FRAMES_STAGE
from hapvr.data.frames import FrameFile
from hapvr.data.shards import Shard
from hapvr.networks.extract import open_backbone, region_embedder, teacher_embedder
from hapvr.networks.settings import BATCH_FRAMES
from hapvr.networks.teacher import load_teacher
from hapvr.networks.views import ViewDrawer, ViewPlan, choose_donor
from hapvr.networks.whitening import load_whitening
from hapvr.seeding import derive_seed
from hapvr.train.batch import STRENGTHS, Batch, BatchSource, Gather

DrawnClips = tuple[Tensor, int, list[ViewPlan]]
"""Frames [b, T, 3, S, S] uint8 of this process's clips, the first of these, and the plans of all B."""


class OnlineViews(BatchSource):
    """Item `number` is the drawn clips of that batch; `finish` makes features and pseudo labels of them.

    In every batch each video has a new window, and its views are new ones of it; donors are other videos of the batch.
    gather: from all ranks. Raises DataError without stored frames, and with a single training video.
    """

    def __init__(
        self,
        root: DataRoot,
        shard_keys: Sequence[str],
        config: Config,
        *,
        device: torch.device,
        gather: Gather | None = None,
        **ranks: int,
    ) -> None:
        super().__init__(root, shard_keys, config, **ranks)
        self._device, self._gather = device, gather
        self._shard_of: dict[str, int] = {}
        self._num_frames = {}
        for number, key in enumerate(self._shard_keys):
            frames = Shard(root, FRAMES_STAGE, key)
            frames.require({"sampling": config.sampling.identity_fields()})
            self._shard_of |= dict.fromkeys(FrameFile(frames).video_ids, number)
            self._num_frames |= dict(frames.index().select("video_id", "num_rows").iter_rows())
        self._start(self._shard_of)
        backbone = open_backbone(config.backbone, device.type, extras=self._extras)
        whitening = load_whitening(root)
        teacher = load_teacher(config.teacher, crop_px=config.backbone.crop_px)
        self.dims, self.extras_dims = whitening.dims, len(whitening.mean) if self._extras else 0
        self._embed_regions = region_embedder(backbone, whitening, device, extras=self._extras)
        self._embed_frames = teacher_embedder(teacher, device)

    def plans(self, number: int) -> tuple[list[ViewPlan], slice]:
        """The views of a batch, and which of them are this rank's."""
        videos, own = self.sampler.videos(number), self.sampler.rank_slice()
        seed, count = self._seed, len(STRENGTHS)
        window = derive_seed(seed, "window", number)
        indices = [derive_seed(seed, "view", number, place) for place in range(count)]
        plans = []
        for video_id in videos:
            others = [other for other in videos if other != video_id]
            for index, strength in zip(indices, STRENGTHS, strict=True):
                donor_id = "" if strength == "weak" else choose_donor(video_id, index, others, self._config.views)
                plans.append(ViewPlan(video_id, index, strength, window, donor_id=donor_id))
        return plans, slice(own.start * count, own.stop * count)

    @cached_property
    def _files(self) -> ViewDrawer:
        """Draws clips of stored frames."""
        files = [FrameFile(Shard(self._root, FRAMES_STAGE, key)) for key in self._shard_keys]
        return ViewDrawer(
            lambda video_id: files[self._shard_of[video_id]].read(video_id),
            config=self._config.views,
            size_px=self._config.backbone.crop_px,
        )

    def draw(self, plans: list[ViewPlan], own: slice) -> DrawnClips:
        """Frames of the own clips."""
        return torch.stack([self._files.draw(plan) for plan in plans[own]]), own.start, plans

    def __getitem__(self, number: int) -> DrawnClips:
        return self.draw(*self.plans(number))

    def finish(self, item: DrawnClips) -> Batch:
        """Features and frame labels of drawn clips: regions [b, T, R, D], and the teacher's embeddings of all clips."""
        frames, first_row, plans = item
        parts = [part.numpy() for part in torch.split(frames.flatten(0, 1), BATCH_FRAMES)]
        values = []
        for embed in (self._embed_regions, self._embed_frames):
            with torch.inference_mode():
                found = torch.cat(
                    [torch.from_numpy(embed(part)) for part in parts]
                ).half()  # the precision that is stored
            # cloned outside inference mode, so that gradients may be taken through it
            values.append(found.view(*frames.shape[:2], *found.shape[1:]).clone())
        regions, embeddings = values
        if self._gather is not None:
            embeddings = self._gather(embeddings.float().to(self._device)).cpu()
        return self.build(plans, regions, embeddings, first_row=first_row)

    def __getstate__(self) -> dict[str, Any]:
        # Data workers only draw: the networks stay behind.
        return super().__getstate__() | {"_embed_regions": None, "_embed_frames": None, "_gather": None}
