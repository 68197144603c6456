"""The common part of sources of self-supervised batches: two views of each video, labelled by the
videos that they show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from hapvr.augment.views import ViewPlan
from hapvr.model.settings import needs_extras
from hapvr.networks.backbone import pseudo_labels
from hapvr.train.batch import STRENGTHS, Batch, video_pair_labels
from hapvr.train.sampler import BatchSampler, drawn_part
from hapvr.train.sources.source import LabelInputs, SourceInputs


class VideoViews:
    """Batches of a weak and a strong view of each video, see `BatchSource`."""

    dims: int
    extras_dims: int = 0
    num_videos: int
    num_keys: int
    batch_items: int
    clips_per_item = len(STRENGTHS)
    sampler: BatchSampler

    def __init__(self, inputs: SourceInputs) -> None:
        self._root = inputs.root
        self._shard_keys = inputs.shard_keys
        self._config = inputs.config
        self._ranks = inputs.ranks
        self._seed = inputs.config.train.seed
        self._extras = needs_extras(inputs.config.train.network)
        self._shard_of: dict[str, int] = {}
        """The number of each video's shard."""
        self._num_frames: dict[str, int] = {}
        """The number of sampled frames of each video."""

    @staticmethod
    def labels(inputs: LabelInputs) -> None:
        """None: the videos that clips show are labels enough."""

    def _start(self, *, groups: Iterable[Sequence[str]] = ()) -> None:
        """Sample batches of the videos that have a shard, or of `train.videos_rate` of them."""
        video_ids = drawn_part(self._shard_of, rate=self._config.train.videos_rate)
        parts = ([name for name in group if name in video_ids] for group in groups)
        self.sampler = BatchSampler(
            video_ids,
            batch_videos=self._config.train.batch_videos,
            seed=self._seed,
            groups=[part for part in parts if part],
            rank=self._ranks.rank,
            world_size=self._ranks.world_size,
        )
        self.num_videos = len(video_ids)
        self.num_keys = self.num_videos
        self.batch_items = self.sampler.batch_videos
        self._number_of = {video_id: number for number, video_id in enumerate(sorted(video_ids))}

    def finish(self, item: Any) -> Batch:
        """The batch of an item."""
        batch: Batch = item
        return batch

    def build(
        self, clips: Sequence[ViewPlan], regions: Tensor, embeddings: Tensor, *, first_row: int
    ) -> Batch:
        """The batch of all processes' B clips.

        regions: [b, T, R, D], of the clips from `first_row` on. embeddings: [B, T, D'], the
        teacher's of all clips, which label the frames of each positive pair."""
        labels = video_pair_labels([{clip.video_id, clip.host_id} - {""} for clip in clips])
        sources = [
            [self._number_of.get(name, -1) for name in (clip.video_id, clip.host_id)]
            for clip in clips
        ]
        pairs = (labels > 0).nonzero()
        is_own = (pairs[:, 0] >= first_row) & (pairs[:, 0] < first_row + len(regions))
        pairs = pairs[is_own]
        query = embeddings[pairs[:, 0]].float()
        reference = embeddings[pairs[:, 1]].float()
        return Batch(
            regions=regions,
            labels=labels,
            frame_labels=pseudo_labels(query, reference, self._config.pseudo_labels),
            pair_index=pairs,
            first_row=first_row,
            video_ids=tuple(clip.video_id for clip in clips),
            source_ids=torch.tensor(sources),
            num_frames=self._real_frames(clips),
        )

    def _real_frames(self, clips: Sequence[ViewPlan]) -> Tensor | None:
        """int64 [B], the frames of each clip before it repeats itself; None where these count."""
        if self._config.train.repeat_short_clips:
            return None
        most = self._config.views.num_frames
        return torch.tensor([min(most, self._num_frames[clip.video_id]) for clip in clips])

    def __getstate__(self) -> dict[str, Any]:
        # Open files do not travel to data workers; each opens its own.
        return {name: value for name, value in self.__dict__.items() if name != "_files"}
