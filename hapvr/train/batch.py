"""Training batches: which videos each holds, as a function of (seed, number) alone, and the labels
between its clips."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, distributed as dist
from torch.nn import functional as F
from torch.utils.data import Dataset

from hapvr.augment.views import ViewPlan, choose_host, host_groups
from hapvr.config import Config
from hapvr.data.features import DRAWING_VERSION, LABELS_STAGE, VIEWS_STAGE, ViewFile
from hapvr.data.filesystem import DataRoot, allow_open_files
from hapvr.data.frames import STAGE as FRAMES_STAGE, FrameFile
from hapvr.data.manifest import name_digest
from hapvr.data.shards import Shard
from hapvr.errors import DataError
from hapvr.model.settings import needs_extras
from hapvr.networks.backbone import load_teacher, pseudo_labels
from hapvr.networks.encoder import open_encoder
from hapvr.networks.settings import BATCH_FRAMES
from hapvr.networks.whitening import load_whitening
from hapvr.seeding import derive_seed, numpy_rng

STRENGTHS: tuple[Literal["weak", "strong"], ...] = ("weak", "strong")
"""Of the views of a video in a batch."""
COMPARED_GROUPS = 1024
"""Groups among which look-alikes are looked for, since all pairs of their videos are compared."""

DrawnClips = tuple[Tensor, int, list[ViewPlan]]
"""Frames [b, T, 3, S, S] uint8 of this process's clips, the first of these, and the plans of all B.
"""


@dataclass  # not frozen, as Fabric refuses to move those
class Batch:
    """B clips, the views of a video one after the other. This process embeds b of them, from
    `first_row` on. regions: [b, T, R, D], of the clips of this process, with the frame extras that
    the family reads. labels: int8 [B, B], 1 where two clips share a source video, -1 elsewhere.
    pair_index: int64 [P, 2], the positive pairs whose rows belong to this process, self pairs
    included. frame_labels: int8 [P, T, T], their pseudo labels. video_ids: of all B clips.
    num_frames: int64 [B], the frames of each before it repeats itself, or None where the
    repetitions count too. source_ids: int64 [B, 2], the videos that each clip shows, its own and
    its host (-1: none), as numbers that are the same in all batches."""

    regions: Tensor
    labels: Tensor
    frame_labels: Tensor
    pair_index: Tensor
    first_row: int
    video_ids: tuple[str, ...]
    source_ids: Tensor
    num_frames: Tensor | None = None


def video_pair_labels(sources: Sequence[Collection[str]]) -> Tensor:
    """Labels of all pairs of clips: 1 if they share a source video, -1 if not (S2VS section 3.3).
    sources: for each of B clips the ids of the videos it shows, two for video-in-video. Returns
    int8 [B, B], symmetric, 1 on the diagonal."""
    videos = sorted({video for ids in sources for video in ids})
    shows = torch.tensor([[video in ids for video in videos] for ids in sources]).int()
    return (shows @ shows.T > 0).to(torch.int8) * 2 - 1


class BatchSource(Dataset[Any]):
    """Item `number` is what data workers make of that batch; `finish` does the rest in the training
    process. dims: D of the regions. extras_dims: C of the pooled vectors that they carry, 0 where
    they carry none. num_videos: that take part. _shard_of: number of the shard of each;
    _num_frames: its sampled frames."""

    dims: int
    extras_dims: int = 0
    num_videos: int
    sampler: BatchSampler

    def __init__(
        self, root: DataRoot, shard_keys: Sequence[str], config: Config, fabric: Fabric
    ) -> None:
        self._root, self._shard_keys, self._config = root, tuple(shard_keys), config
        self._ranks = {"rank": fabric.global_rank, "world_size": fabric.world_size}
        self._seed, self._extras = config.train.seed, needs_extras(config.train.network)
        self._shard_of: dict[str, int] = {}
        self._num_frames: dict[str, int] = {}

    def _start(self, *, groups: Iterable[Sequence[str]] = ()) -> None:
        """Sample batches of the videos that have a shard, or of `train.videos_rate` of them."""
        size = self._config.train.batch_videos
        video_ids = drawn_part(self._shard_of, rate=self._config.train.videos_rate)
        parts = ([name for name in group if name in video_ids] for group in groups)
        self.sampler = BatchSampler(
            video_ids, batch_videos=size, seed=self._seed, groups=filter(None, parts), **self._ranks
        )
        self.num_videos = len(video_ids)
        self._number_of = {video_id: number for number, video_id in enumerate(sorted(video_ids))}

    def finish(self, item: Any) -> Batch:
        """The batch of an item."""
        batch: Batch = item
        return batch

    def build(
        self, clips: Sequence[ViewPlan], regions: Tensor, embeddings: Tensor, *, first_row: int
    ) -> Batch:
        """The batch of all processes' B clips. regions: [b, T, R, D], of the clips from `first_row`
        on. embeddings: [B, T, D'], the teacher's of all clips, which label the frames of each
        positive pair."""
        labels = video_pair_labels([{clip.video_id, clip.host_id} - {""} for clip in clips])
        sources = [
            [self._number_of.get(name, -1) for name in (clip.video_id, clip.host_id)]
            for clip in clips
        ]
        num_frames = None
        if not self._config.train.repeat_short_clips:
            most = self._config.views.num_frames
            num_frames = torch.tensor(
                [min(most, self._num_frames[clip.video_id]) for clip in clips]
            )
        pairs = (labels > 0).nonzero()
        pairs = pairs[(pairs[:, 0] >= first_row) & (pairs[:, 0] < first_row + len(regions))]
        query, reference = (embeddings[rows].float() for rows in pairs.T)
        return Batch(
            regions=regions,
            labels=labels,
            frame_labels=pseudo_labels(query, reference, self._config.pseudo_labels),
            pair_index=pairs,
            first_row=first_row,
            video_ids=tuple(clip.video_id for clip in clips),
            source_ids=torch.tensor(sources),
            num_frames=num_frames,
        )

    def __getstate__(self) -> dict[str, object]:
        # Open files do not travel to data workers; each opens its own.
        return {name: value for name, value in self.__dict__.items() if name != "_files"}


class CachedViews(BatchSource):
    """Item `number` is the batch of that number: of each video a weak and a strong view.

    The two are of one window of the video, drawn by (train.seed, number). Videos whose clips show
    each other are mostly in one batch, see `BatchSampler`, so that they are positives of each other
    there.

    copies: see `look_alikes`. Raises DataError for fewer than two videos, and where views and
    embeddings do not belong together."""

    def __init__(
        self,
        root: DataRoot,
        shard_keys: Sequence[str],
        config: Config,
        fabric: Fabric,
        copies: Mapping[str, str],
    ) -> None:
        super().__init__(root, shard_keys, config, fabric)
        self._hosts: dict[str, list[str]] = {}
        groups: list[list[str]] = []
        # Values of different backbones, crops or whitenings do not compare, nor with those of
        # benchmarks.
        first = Shard(root, VIEWS_STAGE, self._shard_keys[0]).require({}).settings["features"]
        features = {**first, "whitening": load_whitening(root).sha256}
        drawn = {
            "drawing": DRAWING_VERSION,
            "views": config.views.model_dump(mode="json"),
            "features": features,
        }
        for number, key in enumerate(self._shard_keys):
            views = Shard(root, VIEWS_STAGE, key)
            made = views.require(drawn)
            same = {
                name: made.settings[name] for name in ("drawing", "views", "sampling", "crop_px")
            }
            if Shard(root, LABELS_STAGE, key).require(same).inputs != made.inputs:
                raise DataError(
                    f"training: training_views and pseudo_labels of shard {key} are not of "
                    "the same views; materialise both again"
                )
            file = ViewFile(views, extras=self._extras)
            self.dims, self.extras_dims = file.dims, file.extras_dims if self._extras else 0
            self._shard_of |= dict.fromkeys(file.video_ids, number)
            self._num_frames |= dict(views.index().select("video_id", "num_frames").iter_rows())
            self._hosts |= file.hosts
            groups += host_groups(file.video_ids, seed=config.views.seed)
        if config.train.look_alikes:
            means = {
                name: self._files[shard][0].read(name)[0].float().mean((0, 1))
                for name, shard in self._shard_of.items()
            }
            known = {one: copies[name_digest(one)] for one in means if name_digest(one) in copies}
            groups = look_alikes(groups, means, copies=known, size=config.train.batch_videos)
        self._start(groups=groups)

    def __getitem__(self, number: int) -> Batch:
        own, settings = self.sampler.rank_slice(), self._config.views
        plans, regions, embeddings = [], [], []
        for place, video_id in enumerate(self.sampler.videos(number)):
            views, labels = self._files[self._shard_of[video_id]]
            rng, hosts = numpy_rng(self._seed, "views", number, video_id), self._hosts[video_id]
            window = int(rng.integers(settings.num_windows))
            chosen = [
                indices[int(rng.integers(len(indices)))] for indices in settings.indices_of(window)
            ]
            for index, strength in zip(chosen, STRENGTHS, strict=True):
                plans.append(ViewPlan(video_id, index, strength, window, host_id=hosts[index]))
            embeddings.append(labels.read(video_id)[chosen])
            if own.start <= place < own.stop:
                regions.append(views.read(video_id)[chosen])
        return self.build(
            plans, torch.cat(regions), torch.cat(embeddings), first_row=own.start * len(STRENGTHS)
        )

    @cached_property
    def _files(self) -> list[tuple[ViewFile, ViewFile]]:
        """Views and embeddings of each shard."""
        allow_open_files(2 * len(self._shard_keys))
        shards = [
            [Shard(self._root, stage, key) for stage in (VIEWS_STAGE, LABELS_STAGE)]
            for key in self._shard_keys
        ]
        return [
            (ViewFile(views, extras=self._extras), ViewFile(labels)) for views, labels in shards
        ]


class OnlineViews(BatchSource):
    """Item `number` is the drawn clips of that batch; `finish` makes features and pseudo labels of
    them. In every batch each video has a new window, and its views are new ones of it; hosts are
    other videos of the batch. Raises DataError without stored frames, and with a single training
    video."""

    def __init__(
        self, root: DataRoot, shard_keys: Sequence[str], config: Config, fabric: Fabric
    ) -> None:
        super().__init__(root, shard_keys, config, fabric)
        self._device = fabric.device
        for number, key in enumerate(self._shard_keys):
            frames = Shard(root, FRAMES_STAGE, key)
            frames.require({"sampling": config.sampling.identity_fields()})
            self._shard_of |= dict.fromkeys(FrameFile(frames).video_ids, number)
            self._num_frames |= dict(frames.index().select("video_id", "num_rows").iter_rows())
        self._start()
        encoder = open_encoder(config.backbone, self._device.type, extras=self._extras)
        whitening = load_whitening(root)
        teacher = load_teacher(config.teacher, crop_px=config.backbone.crop_px)
        self.dims, self.extras_dims = whitening.dims, len(whitening.mean) if self._extras else 0
        self._embed_regions = encoder.embedder(whitening, str(self._device), extras=self._extras)
        self._embed_frames = teacher.embedder(self._device)

    def __getitem__(self, number: int) -> DrawnClips:
        videos, own = self.sampler.videos(number), self.sampler.rank_slice()
        seed, count = self._seed, len(STRENGTHS)
        window = derive_seed(seed, "window", number)
        indices = [derive_seed(seed, "view", number, place) for place in range(count)]
        plans = []
        for video_id in videos:
            others = [other for other in videos if other != video_id]
            for index, strength in zip(indices, STRENGTHS, strict=True):
                host_id = (
                    ""
                    if strength == "weak"
                    else choose_host(video_id, index, others, self._config.views)
                )
                plans.append(ViewPlan(video_id, index, strength, window, host_id=host_id))
        first_row = own.start * count
        return (
            torch.stack([self._files.draw(plan) for plan in plans[first_row : own.stop * count]]),
            first_row,
            plans,
        )

    @cached_property
    def _files(self) -> Any:
        """A `ViewDrawer` of stored frames."""
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
                found = torch.cat(
                    [torch.from_numpy(embed(part)) for part in parts]
                ).half()  # as is stored
            # cloned outside inference mode, so that gradients may be taken through it
            values.append(found.view(*frames.shape[:2], *found.shape[1:]).clone())
        regions, embeddings = values
        embeddings = gather(embeddings.float().to(self._device)).cpu()
        return self.build(plans, regions, embeddings, first_row=first_row)

    def __getstate__(self) -> dict[str, Any]:
        # Data workers only draw: the networks stay behind.
        return super().__getstate__() | {"_embed_regions": None, "_embed_frames": None}


class BatchSampler:
    """Which videos are in which batch.

    Videos are drawn by epoch: groups in a seeded order, the videos of each one after the other, cut
    into batches of `batch_videos`; the rest of an epoch is left out. Rank r of `world_size` gets
    the r-th part of a batch. A batch larger than the collection becomes the collection.

    groups: videos whose clips show each other, which so are mostly in one batch; every other video
    is a group of its own. Raises DataError with fewer than two videos for each rank: there would be
    no negatives."""

    def __init__(
        self,
        video_ids: Iterable[str],
        *,
        batch_videos: int,
        seed: int,
        groups: Iterable[Sequence[str]] = (),
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        videos = set(video_ids)
        if len(videos) < 2 * world_size:
            raise DataError(
                f"training: {len(videos)} videos can be trained on, and negatives need at "
                f"least {2 * world_size}; add "
                "videos, or see the reasons in the index of training_views"
            )
        grouped = [sorted(group) for group in groups]
        self._groups = sorted([*grouped, *([video_id] for video_id in videos.difference(*grouped))])
        self.batch_videos = min(batch_videos, len(videos) // world_size * world_size)
        self._per_epoch = len(videos) // self.batch_videos
        self._seed, self._rank, self._world_size = seed, rank, world_size
        self._last: tuple[int, list[str]] = (-1, [])

    def videos(self, number: int) -> list[str]:
        """The videos of a batch, of all ranks."""
        epoch, position = divmod(number, self._per_epoch)
        if self._last[0] != epoch:
            order = numpy_rng(self._seed, "epoch", epoch).permutation(len(self._groups))
            self._last = (epoch, [video_id for index in order for video_id in self._groups[index]])
        return self._last[1][position * self.batch_videos : (position + 1) * self.batch_videos]

    def rank_slice(self) -> slice:
        """The places of this rank's videos in a batch."""
        share = self.batch_videos // self._world_size
        return slice(self._rank * share, (self._rank + 1) * share)


def drawn_part(video_ids: Iterable[str], *, rate: float) -> set[str]:
    """About `rate` of the videos, always the same ones: a video is drawn by its id alone."""
    if rate >= 1:
        return set(video_ids)
    return {name for name in video_ids if numpy_rng(0, "training part", name).random() < rate}


def look_alikes(
    groups: Sequence[Sequence[str]],
    means: Mapping[str, Tensor],
    *,
    copies: Mapping[str, str],
    size: int,
) -> list[list[str]]:
    """Groups joined with those that look most like them until they hold `size` videos: a batch of
    hard negatives. Two groups look as alike as the two videos of them that do most. means: [D], the
    mean region of a video. copies: names of groups of copies; groups that hold copies of each other
    stay apart, as these would be negatives of each other."""
    joined: list[list[str]] = []
    for begin in range(0, len(groups), COMPARED_GROUPS):
        block = groups[begin : begin + COMPARED_GROUPS]
        names = [name for group in block for name in group]
        vectors = F.normalize(torch.stack([means[name] for name in names]), dim=-1)
        kinds = np.array([copies.get(name, f"no copy: {name}") for name in names])
        starts = np.cumsum([0, *map(len, block[:-1])])
        alike, same = (vectors @ vectors.T).numpy(), kinds[:, None] == kinds
        for axis in (0, 1):
            alike, same = (
                np.maximum.reduceat(alike, starts, axis),
                np.logical_or.reduceat(same, starts, axis),
            )
        alike[same] = -np.inf
        left = list(range(len(block)))
        while left:
            chain = [left.pop(0)]
            while left and sum(len(block[one]) for one in chain) < size:
                pairs = alike[np.ix_(chain, left)]
                best = int(np.where(np.isinf(pairs).any(0), -np.inf, pairs.max(0)).argmax())
                if np.isinf(pairs[:, best]).any():
                    break
                chain.append(left.pop(best))
            joined.append([name for one in chain for name in block[one]])
    return joined


def gather(values: Tensor) -> Tensor:
    """[n, ...] of this process to [processes * n, ...] of all, in the order of ranks; gradients
    flow back and are summed."""
    gathered: Tensor = _GatherRanks.apply(values) if dist.is_initialized() else values
    return gathered


class _GatherRanks(torch.autograd.Function):
    """torch's own, torch.distributed.nn.functional.all_gather, mixes up gradients that are not
    contiguous on gloo."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        values = values.contiguous()
        parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, values)
        ctx.num_rows = len(values)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.narrow(0, dist.get_rank() * ctx.num_rows, ctx.num_rows)
