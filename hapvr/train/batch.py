"""What a training step gets, and which videos and clips are in it: functions of (seed, number of the batch) alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from hapvr.config import TrainConfig
from hapvr.errors import DataError
from hapvr.seeding import derive_seed, numpy_rng


@dataclass(frozen=True)
class Batch:
    """B clips, the views of a video one after the other, of which this process embeds those from `first_row` on.

    regions: [b, T, R, D], of its own clips; labels: int8 [B, B], 1 where two clips share a source video, -1 elsewhere;
    frame_labels: int8 [P, T, T] pseudo labels of the positive pairs pair_index, int64 [P, 2], whose rows are its own,
    self pairs included; video_ids, view_index: int64 [B], of all B clips.
    """

    regions: Tensor
    labels: Tensor
    frame_labels: Tensor
    pair_index: Tensor
    first_row: int
    video_ids: tuple[str, ...]
    view_index: Tensor


class BatchSampler:
    """Which videos are in which batch.

    Videos are drawn by epoch: a seeded permutation of all videos, cut into batches of `batch_videos`; the rest of an
    epoch is left out. Rank r of `world_size` gets the r-th part of a batch. A batch larger than the collection becomes
    the collection. video_rate: only this part of the videos takes part; it is the same part for every seed, and a
    larger rate adds videos to it. Raises DataError with fewer than two videos for each rank: there would be no
    negatives.
    """

    def __init__(
        self,
        video_ids: Iterable[str],
        *,
        batch_videos: int,
        seed: int,
        video_rate: float = 1.0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        shuffled = sorted(set(video_ids), key=lambda video_id: derive_seed("video_rate", video_id))
        self.video_ids = tuple(sorted(shuffled[: math.ceil(video_rate * len(shuffled))]))
        if len(self.video_ids) < 2 * world_size:
            part = "" if video_rate == 1 else f" (train.video_rate takes {video_rate:g} of {len(shuffled)})"
            raise DataError(
                f"training: {len(self.video_ids)} training videos have views{part}, and negatives need at least "
                f"{2 * world_size}; add videos, or see the reasons in the index of training_views"
            )
        self.batch_videos = min(batch_videos, len(self.video_ids) // world_size * world_size)
        self._seed = seed
        self._rank = rank
        self._world_size = world_size

    @classmethod
    def from_settings(
        cls, video_ids: Iterable[str], settings: TrainConfig, *, rank: int, world_size: int
    ) -> BatchSampler:
        """The batches of a training."""
        return cls(
            video_ids,
            batch_videos=settings.batch_videos,
            seed=settings.seed,
            video_rate=settings.video_rate,
            rank=rank,
            world_size=world_size,
        )

    def videos(self, number: int) -> list[str]:
        """The videos of a batch, of all ranks."""
        per_epoch = len(self.video_ids) // self.batch_videos
        epoch, position = divmod(number, per_epoch)
        order = numpy_rng(self._seed, "epoch", epoch).permutation(len(self.video_ids))
        start = position * self.batch_videos
        return [self.video_ids[index] for index in order[start : start + self.batch_videos]]

    def rank_slice(self, videos: Sequence[str]) -> slice:
        """The places in a batch of the videos that belong to this rank."""
        share = len(videos) // self._world_size
        return slice(self._rank * share, (self._rank + 1) * share)
