"""What a training step gets, and which videos are in it: functions of (seed, number of the batch) alone."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hapvr.config import TrainConfig
from hapvr.errors import DataError
from hapvr.labels.pairs import NO_PAIRS, KnownPairs
from hapvr.seeding import derive_seed, numpy_rng

LOOK_AHEAD = 64
"""Groups that are looked at, in the order of an epoch, for one that fits into the rest of a batch."""


@dataclass  # not frozen, as Fabric refuses to move those
class Batch:
    """B clips, the views of a video one after the other. This process embeds b of them, from `first_row` on.

    regions: [b, T, R, D], of the clips of this process, with their side where the family reads it. labels: int8 [B,
    B], 1 where two clips share a source video, -1 elsewhere. pair_index: int64 [P, 2], the positive pairs whose rows
    belong to this process, self pairs included. frame_labels: int8 [P, T, T], their pseudo labels. video_ids,
    view_index: int64 [B], of all B clips. num_frames: int64 [B], the frames of each before it repeats itself, or None
    where the repetitions count too. source_ids: int64 [B, 2], the videos that each clip shows, its own and its donor (-1:
    none), as numbers that are the same in all batches; videos that known pairs join have one number.
    """

    regions: Tensor
    labels: Tensor
    frame_labels: Tensor
    pair_index: Tensor
    first_row: int
    video_ids: tuple[str, ...]
    view_index: Tensor
    source_ids: Tensor
    num_frames: Tensor | None = None


class BatchSampler:
    """Which videos are in which batch.

    Videos are drawn by epoch: a seeded permutation, cut into batches of `batch_videos`; the rest of an epoch is left
    out. Rank r of `world_size` gets the r-th part of a batch. A batch larger than the collection becomes the collection.

    groups: videos that stay together, as their clips show each other; every other video is a group of its own. separate:
    groups stay together in the part of each rank, not only in the batch. Where no whole group fits into the rest of a
    batch, videos of `alone` fill it (default: all videos), which can be there without their group. Only a collection that
    hardly fills a batch can need other videos for that.
    known: pairs whose videos have one number in `numbers`.
    video_rate: only this part of the videos takes part, in whole groups. It is the same part for every seed, and a
    larger rate adds videos to it. Raises DataError with fewer than two videos for each rank: there would be no negatives.
    """

    def __init__(
        self,
        video_ids: Iterable[str],
        *,
        batch_videos: int,
        seed: int,
        video_rate: float = 1.0,
        groups: Iterable[Sequence[str]] = (),
        alone: Collection[str] | None = None,
        known: KnownPairs = NO_PAIRS,
        rank: int = 0,
        world_size: int = 1,
        separate: bool = False,
    ) -> None:
        every = set(video_ids)
        self._groups = _part_of_groups(every, groups, video_rate)
        self.video_ids = tuple(sorted(video_id for group in self._groups for video_id in group))
        if len(self.video_ids) < 2 * world_size:
            part = "" if video_rate == 1 else f" (train.video_rate takes {video_rate:g} of {len(every)})"
            raise DataError(
                f"training: {len(self.video_ids)} training videos have views{part}, and negatives need at least "
                f"{2 * world_size}; add videos, or see the reasons in the index of training_views"
            )
        self._number_of = numbers_of_videos(every, known)
        self.batch_videos = min(batch_videos, len(self.video_ids) // world_size * world_size)
        self._alone = [video_id for video_id in self.video_ids if alone is None or video_id in alone]
        self._never_alone = sorted(set(self.video_ids).difference(self._alone))
        self._seed = seed
        self._rank = rank
        self._world_size = world_size
        self._num_parts = world_size if separate else 1
        self._last: tuple[int, list[list[str]]] = (-1, [])

    @classmethod
    def from_settings(
        cls,
        video_ids: Iterable[str],
        settings: TrainConfig,
        *,
        rank: int,
        world_size: int,
        groups: Iterable[Sequence[str]] = (),
        alone: Collection[str] | None = None,
        known: KnownPairs = NO_PAIRS,
    ) -> BatchSampler:
        """The batches of a training."""
        return cls(
            video_ids,
            batch_videos=settings.batch_videos,
            seed=settings.seed,
            video_rate=settings.video_rate,
            groups=groups,
            alone=alone,
            known=known,
            rank=rank,
            world_size=world_size,
            separate=not settings.gather,
        )

    def numbers(self, clips: Iterable[tuple[str, str]]) -> Tensor:
        """`Batch.source_ids` of clips, each given by its video and its donor ("": none)."""
        return torch.tensor([[self._number_of.get(video_id, -1) for video_id in clip] for clip in clips])

    def videos(self, number: int) -> list[str]:
        """The videos of a batch, of all ranks."""
        epoch, position = divmod(number, len(self.video_ids) // self.batch_videos)
        if self._last[0] != epoch:
            self._last = (epoch, self._batches_of(epoch))
        return self._last[1][position]

    def rank_slice(self, videos: Sequence[str]) -> slice:
        """The places in a batch of the videos that belong to this rank."""
        share = len(videos) // self._world_size
        return slice(self._rank * share, (self._rank + 1) * share)

    def _batches_of(self, epoch: int) -> list[list[str]]:
        rng = numpy_rng(self._seed, "epoch", epoch)
        waiting = deque(self._groups[index] for index in rng.permutation(len(self._groups)))
        spare = [deque(ids[index] for index in rng.permutation(len(ids))) for ids in (self._alone, self._never_alone)]
        size = self.batch_videos // self._num_parts
        num_batches = len(self.video_ids) // self.batch_videos
        parts = [self._fill(size, waiting, spare) for _ in range(num_batches * self._num_parts)]
        return [
            [video_id for part in parts[start : start + self._num_parts] for video_id in part]
            for start in range(0, len(parts), self._num_parts)
        ]

    def _fill(self, size: int, waiting: deque[tuple[str, ...]], spare: Sequence[deque[str]]) -> list[str]:
        """`size` videos: whole groups in their order, and spare videos, the first queue's first, in what is left."""
        part: list[str] = []
        passed: list[tuple[str, ...]] = []
        while waiting and len(part) < size and len(passed) < LOOK_AHEAD:
            group = waiting.popleft()
            if len(part) + len(group) <= size:
                part.extend(group)
            else:
                passed.append(group)
        waiting.extendleft(reversed(passed))
        for queue in spare:
            for _ in range(len(queue)):
                if len(part) == size:
                    break
                if queue[0] not in part:
                    part.append(queue[0])
                queue.rotate(-1)
        return part


def numbers_of_videos(video_ids: Iterable[str], known: KnownPairs) -> dict[str, int]:
    """Video id -> its number for `Batch.source_ids`; videos that a chain of pairs joins have the same one."""
    groups = {video_id: known.group(video_id) for video_id in video_ids}
    number_of = {group: number for number, group in enumerate(sorted(set(groups.values())))}
    return {video_id: number_of[group] for video_id, group in groups.items()}


def largest_group(batch_videos: int) -> int:
    """Videos of a batch that mined pairs may keep together; the rest of the batch gives their negatives."""
    return max(2, batch_videos // 4)


def join_groups(groups: Iterable[Sequence[str]], pairs: Iterable[tuple[str, str]], *, largest: int) -> list[list[str]]:
    """Groups of videos that stay together, joined by pairs in their order unless a group would have more than `largest`.

    groups: disjoint, taken as they are even if they are larger. Videos of no group and no pair are left out.
    """
    group_of: dict[str, list[str]] = {}
    for group in groups:
        members = list(group)
        group_of |= dict.fromkeys(members, members)
    for pair in pairs:
        one, other = (group_of.setdefault(video_id, [video_id]) for video_id in pair)
        if one is not other and len(one) + len(other) <= largest:
            one.extend(other)
            group_of |= dict.fromkeys(other, one)
    unique = {id(group): sorted(group) for group in group_of.values() if len(group) > 1}
    return list(unique.values())


def _part_of_groups(video_ids: set[str], groups: Iterable[Sequence[str]], rate: float) -> list[tuple[str, ...]]:
    """All groups, single videos included, or the first of a fixed order that hold this part of the videos; sorted."""
    grouped = [tuple(sorted(group)) for group in groups]
    single = video_ids.difference(*grouped)
    every = sorted([*grouped, *((video_id,) for video_id in single)])
    if rate == 1:
        return every
    chosen: list[tuple[str, ...]] = []
    wanted = math.ceil(rate * len(video_ids))
    for group in sorted(every, key=lambda group: derive_seed("video_rate", group[0])):
        if sum(map(len, chosen)) >= wanted:
            break
        chosen.append(group)
    return sorted(chosen)
