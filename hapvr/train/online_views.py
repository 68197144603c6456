"""Batches of new views: each step draws them and runs both frozen networks on them, as the papers do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hapvr.config import Config
from hapvr.errors import DataError
from hapvr.features.backbone import load_backbone
from hapvr.features.extract import region_embedder, teacher_embedder
from hapvr.features.teacher import load_teacher
from hapvr.features.views import Strength, ViewDrawer, ViewPlan, choose_donor
from hapvr.features.whitening import load_whitening
from hapvr.labels.pairs import KnownPairs, positive_pairs, video_pair_labels
from hapvr.labels.pseudo import pseudo_labels
from hapvr.model.settings import needs_side
from hapvr.seeding import derive_seed
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.frames import STAGE as FRAMES_STAGE
from hapvr.storage.frames import FrameFile, frames_digest
from hapvr.storage.shards import Shard
from hapvr.train.batch import Batch, BatchSampler, join_groups, largest_group
from hapvr.train.gather import Gather


@dataclass(frozen=True)
class DrawnClips:
    """What a data worker makes for a batch. frames: [b, T, 3, S, S] uint8, of this process's clips; plans: of all B."""

    frames: Tensor
    labels: Tensor
    first_row: int
    plans: tuple[ViewPlan, ...]


class OnlineViews(Dataset[DrawnClips]):
    """Item `number` is the drawn clips of that batch; `finish` makes features and pseudo labels of them.

    In every batch each video has a new window, and its views are new ones of it; donors are other videos of the batch.
    mined: as for `CachedViews`.
    gather: from all ranks, where they compare their clips with each other. Raises DataError without training videos or with a single one.
    """

    def __init__(
        self,
        root: DataRoot,
        shard_keys: Sequence[str],
        config: Config,
        *,
        device: torch.device,
        mined: Sequence[tuple[str, str]] = (),
        rank: int = 0,
        world_size: int = 1,
        gather: Gather | None = None,
    ) -> None:
        if not shard_keys:
            raise DataError("training: the manifest has no training shards; give a source with split: train")
        self._root = root
        self._shard_keys = tuple(shard_keys)
        self._config = config
        weak: list[Strength] = ["weak"] * config.train.weak_views
        self._strengths: list[Strength] = weak + ["strong"] * config.train.strong_views
        self._gather = gather
        self._together = world_size == 1 or gather is not None
        self._drawer: ViewDrawer | None = None
        self._shard_of: dict[str, int] = {}
        self._video_frames: dict[str, int] = {}
        for number, key in enumerate(self._shard_keys):
            frames = Shard(root, FRAMES_STAGE, key)
            if not frames.require({"sampling": config.sampling.content()}).settings.get("stored", True):
                raise DataError(
                    f"training: the frames of shard {key} are not stored, and train.source online reads them in every "
                    f"step; set sampling.store_frames and materialise frames again, or use cached_views"
                )
            self._shard_of |= dict.fromkeys(FrameFile(frames).video_ids, number)
            self._video_frames |= dict(frames.index().select("video_id", "num_rows").iter_rows())
        self._known = KnownPairs(mined)
        self.sampler = BatchSampler.from_settings(
            self._shard_of,
            config.train,
            rank=rank,
            world_size=world_size,
            known=self._known,
            groups=join_groups((), mined, largest=largest_group(config.train.batch_videos // world_size)),
        )
        backbone, whitening = load_backbone(config.backbone), load_whitening(root)
        teacher = load_teacher(config.teacher, crop_px=config.backbone.crop_px)
        self._device = device
        side = needs_side(config.train.network)
        self.side_dims = len(whitening.mean) if side else 0
        self._embed_regions = region_embedder(backbone, whitening, device, side=side)
        self._embed_frames = teacher_embedder(teacher, device)
        self._networks = {
            "backbone": _content(backbone.settings),
            "teacher": _content(teacher.settings),
            "whitening": whitening.sha256,
        }

    @property
    def num_videos(self) -> int:
        """Training videos that take part."""
        return len(self.sampler.video_ids)

    @property
    def batch_videos(self) -> int:
        """Videos of a batch of all processes."""
        return self.sampler.batch_videos

    @property
    def identity(self) -> dict[str, str]:
        """Digests of the frames by shard, and of the frozen networks."""
        frames = {
            f"{FRAMES_STAGE}/{key}": frames_digest(Shard(self._root, FRAMES_STAGE, key)) for key in self._shard_keys
        }
        return frames | self._networks

    def plans(self, number: int) -> tuple[list[ViewPlan], slice]:
        """The views of a batch, and which of them are this rank's."""
        videos = self.sampler.videos(number)
        own = self.sampler.rank_slice(videos)
        if not self._together:
            videos = videos[own]
            own = slice(0, len(videos))
        seed, count = self._config.train.seed, len(self._strengths)
        window = derive_seed(seed, "window", number)
        indices = [derive_seed(seed, "view", number, place) for place in range(count)]
        plans = []
        for video_id in videos:
            others = [other for other in videos if other != video_id]
            for index, strength in zip(indices, self._strengths, strict=True):
                donor_id = "" if strength == "weak" else choose_donor(video_id, index, others, self._config.views)
                plans.append(ViewPlan(video_id, index, strength, window, donor_id=donor_id))
        return plans, slice(own.start * count, own.stop * count)

    def draw(self, plans: Sequence[ViewPlan], own: slice) -> DrawnClips:
        """Frames of the own clips, and labels of all."""
        if self._drawer is None:
            files = [FrameFile(Shard(self._root, FRAMES_STAGE, key)) for key in self._shard_keys]
            self._drawer = ViewDrawer(
                lambda video_id: files[self._shard_of[video_id]].read(video_id),
                config=self._config.views,
                size_px=self._config.backbone.crop_px,
            )
        frames = [self._drawer.draw(plan)[1].frames for plan in plans[own]]
        labels = video_pair_labels(_sources(plans), self._known)
        return DrawnClips(torch.stack(frames), labels, own.start, tuple(plans))

    def __getitem__(self, number: int) -> DrawnClips:
        return self.draw(*self.plans(number))

    @torch.inference_mode()
    def _features(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Regions [b, T, R, D] and teacher embeddings [b, T, D'] of clips, in the half precision that is stored."""
        flat, config = frames.flatten(0, 1), self._config
        regions = [self._embed_regions(part) for part in torch.split(flat, config.backbone.batch_frames)]
        embeddings = [self._embed_frames(part) for part in torch.split(flat, config.teacher.batch_frames)]
        return _of_clips(regions, frames), _of_clips(embeddings, frames)

    def finish(self, item: DrawnClips) -> Batch:
        """Features and frame labels of drawn clips."""
        regions, embeddings = self._features(item.frames)
        first, end = item.first_row, item.first_row + len(item.frames)
        if self._gather is not None:
            embeddings = self._gather(embeddings.float().to(self._device)).cpu()
        # A mined pair says nothing of frames.
        pairs = positive_pairs(video_pair_labels(_sources(item.plans)), include_self=True)
        pairs = pairs[(pairs[:, 0] >= first) & (pairs[:, 0] < end)]
        labels = [
            pseudo_labels(embeddings[query].float(), embeddings[reference].float(), self._config.pseudo_labels)
            for query, reference in pairs.tolist()
        ]
        return Batch(
            regions=regions.clone(),  # outside inference mode, so that gradients may be taken through it
            labels=item.labels,
            frame_labels=torch.stack(labels),
            pair_index=pairs,
            first_row=first,
            video_ids=tuple(plan.video_id for plan in item.plans),
            view_index=torch.tensor([plan.index for plan in item.plans]),
            source_ids=self.sampler.numbers((plan.video_id, plan.donor_id) for plan in item.plans),
            num_frames=self._num_frames(item.plans),
        )

    def _num_frames(self, plans: Sequence[ViewPlan]) -> Tensor | None:
        """Of each clip as many frames as its video has."""
        if self._config.train.repeat_short_clips:
            return None
        longest = self._config.views.num_frames
        return torch.tensor([min(longest, self._video_frames[plan.video_id]) for plan in plans])

    def __getstate__(self) -> dict[str, object]:
        # Data workers only draw: each opens its own files, and the networks stay behind.
        return self.__dict__ | {"_drawer": None, "_embed_regions": None, "_embed_frames": None, "_gather": None}


def _sources(plans: Sequence[ViewPlan]) -> list[set[str]]:
    """The videos that each clip shows."""
    return [{plan.video_id, plan.donor_id} - {""} for plan in plans]


def _content(settings: dict[str, str]) -> str:
    """Digest of a frozen network's weights, and its precision if that is not float32."""
    return " ".join(settings[name] for name in ("sha256", "precision") if name in settings)


def _of_clips(parts: Sequence[Tensor], frames: Tensor) -> Tensor:
    values = torch.cat(list(parts)).half()
    return values.view(*frames.shape[:2], *values.shape[1:])
