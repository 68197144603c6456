"""Batches of clips of labelled pairs, from stored features."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hapvr.config import Config
from hapvr.data.features import STAGE as FEATURES_STAGE
from hapvr.data.features import FeatureFile, FeatureStore
from hapvr.data.filesystem import DataRoot, allow_open_files
from hapvr.data.shards import Shard
from hapvr.errors import DataError
from hapvr.networks.pairs import KnownPairs
from hapvr.seeding import numpy_rng
from hapvr.train.batch import Batch, BatchClip, BatchSource, clips_per_item
from hapvr.train.labelled_pairs import LabelledPairs

SLACK_RATE = 0.25
"""Where both copies are longer than a clip: how far the two clips of a pair may be shifted, as a part of a clip."""


class LabelledClips(BatchSource):
    """Item `number` is the batch of that number: `train.batch_videos` pairs, each an anchor, a positive and distractors.

    Pairs are drawn by epoch as `BatchSampler` draws videos; chance decides which of the two is the anchor. A clip is
    `views.num_frames` consecutive frames without augmentation. Where the copied parts are known it covers the copied part,
    or lies inside it where that is longer, at about the same place in both videos; otherwise it lies anywhere. Videos that
    any chain of labelled pairs joins are never negatives of each other.

    Frames have no labels, so the frame terms of the similarity network's objective are 0. Raises DataError for fewer than
    two pairs of each rank, and where there are no negatives.
    """

    def __init__(
        self,
        root: DataRoot,
        shard_keys: Sequence[str],
        config: Config,
        labelled: LabelledPairs,
        *,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(root, shard_keys, config, rank=rank, world_size=world_size)
        self._num_clips = clips_per_item(config.train)
        self._num_frames = config.views.num_frames
        self._labelled = labelled
        known = KnownPairs(pair.videos for pair in labelled.pairs)
        videos = set(known.video_ids)
        if len({known.group(video_id) for video_id in videos}) == 1 and self._num_clips == 2:
            raise DataError(
                f"training: pairs join all {len(videos)} videos of train.labelled_pairs.file, so none is a negative of "
                "another; add pairs of other videos, or name sources in train.labelled_pairs.distractors"
            )
        FeatureStore(root, self._shard_keys)  # refuses shards of different settings
        self._length: dict[str, int] = {}
        self._shard_of: dict[str, int] = {}
        for number, key in enumerate(self._shard_keys):
            for video_id, (_, count) in Shard(root, FEATURES_STAGE, key).read().places().items():
                self._length[video_id], self._shard_of[video_id] = count, number
        first = self._open_all()[0]
        self.dims, self.extras_dims = first.dims, first.extras_dims
        items = [f"{number:08d}" for number in range(len(labelled.pairs))]
        self._start(items, video_ids=videos.union(labelled.distractors), known=known)

    def __getitem__(self, number: int) -> Batch:
        pairs, own = [int(name) for name in self.sampler.videos(number)], self.sampler.rank_slice()
        clips = [clip for pair in pairs for clip in self.clips(pair, number)]
        first = own.start * self._num_clips
        return self.build(
            clips,
            torch.stack([self._read(clip) for clip in clips[first : own.stop * self._num_clips]]),
            first_row=first,
            frame_labels=None,
        )

    def clips(self, pair: int, number: int) -> list[BatchClip]:
        """The clips of a labelled pair in the batch of that number: anchor, positive, and distractors."""
        rng = numpy_rng(self._seed, "labelled pair", number, pair)
        one = self._labelled.pairs[pair]
        starts = self._draw_starts(pair, rng)
        chosen = [(video_id, start) for video_id, start in zip(one.videos, starts, strict=True)]
        if rng.random() < 0.5:
            chosen.reverse()
        others, count = self._labelled.distractors, self._num_clips - 2
        if count:
            drawn = rng.choice(len(others), size=count, replace=len(others) < count)
            chosen += [(others[index], self._anywhere(others[index], rng)) for index in drawn]
        return [
            BatchClip(video_id, index, min(self._num_frames, self._length[video_id] - start), first=start)
            for index, (video_id, start) in enumerate(chosen)
        ]

    def _draw_starts(self, pair: int, rng: np.random.Generator) -> list[int]:
        """First frames of the clips of the two videos, in the order of the pair."""
        one = self._labelled.pairs[pair]
        if one.copies is None:
            return [self._anywhere(video_id, rng) for video_id in one.videos]
        length = self._num_frames
        parts = [self._frames_of(video_id, copy) for video_id, copy in zip(one.videos, one.copies, strict=True)]
        at, shift = rng.random(), (2 * rng.random() - 1) * SLACK_RATE * length
        starts = []
        for position, (video_id, (begin, end)) in enumerate(zip(one.videos, parts, strict=True)):
            if end - begin > length:  # inside the copy
                start = round(begin + at * (end - length - begin) + position * shift)
                start = min(max(start, begin), end - length)
            else:  # around it
                start = int(rng.integers(end - length, begin + 1))
            starts.append(min(max(start, 0), max(0, self._length[video_id] - length)))
        return starts

    def _frames_of(self, video_id: str, copy: tuple[float, float]) -> tuple[int, int]:
        """The frames of a copied part, one at least: the first, and the one after the last."""
        times = self._open(video_id).times(video_id)
        begin, end = bisect_left(times, copy[0]), bisect_right(times, copy[1])
        if begin >= end:  # between two frames
            begin = max(0, end - 1)
        return begin, max(end, begin + 1)

    def _anywhere(self, video_id: str, rng: np.random.Generator) -> int:
        return int(rng.integers(max(0, self._length[video_id] - self._num_frames) + 1))

    def _read(self, clip: BatchClip) -> Tensor:
        """[T, R, D] of a clip, which a short one fills by showing it again."""
        regions = self._open(clip.video_id).regions(clip.video_id, clip.first, clip.first + clip.num_frames)
        return torch.from_numpy(regions[np.resize(np.arange(len(regions)), self._num_frames)])

    def _open(self, video_id: str) -> FeatureFile:
        if self._files is None:
            self._files = self._open_all()
        file: FeatureFile = self._files[self._shard_of[video_id]]
        return file

    def _open_all(self) -> list[FeatureFile]:
        allow_open_files(len(self._shard_keys))
        return [FeatureFile(Shard(self._root, FEATURES_STAGE, key), extras=self._extras) for key in self._shard_keys]
