"""Batches of labelled pairs of videos, each with negatives among the distractors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.config import Config
from hapvr.data.features import STAGE, VIEWS_STAGE
from hapvr.data.filesystem import DataRoot
from hapvr.data.shards import Shard
from hapvr.errors import DataError
from hapvr.model.settings import VvsSettings
from hapvr.seeding import numpy_rng
from hapvr.train.batch import STRENGTHS, Batch
from hapvr.train.pair_labels import CopiedSegment, PairLabels, read_pair_labels
from hapvr.train.sources.mining import nearest_distractors, survey
from hapvr.train.sources.pair_features import Clip, PairFeatures
from hapvr.train.sources.shared_footage import Pair, WindowDraw, segments_by_pair
from hapvr.train.sources.source import LabelInputs, SourceInputs


class LabelledPairs:
    """Item `number` is a batch of labelled pairs, each with `negatives_per_pair` distractors.

    Every pair comes once in an epoch, in a seeded order; an incomplete last batch is dropped. With
    `single_rate` some batches consist of single distractors instead, whose weak view is the anchor
    and whose strong view is the positive.

    Raises DataError for features of several kinds, and if no pair is long enough."""

    dims: int
    extras_dims: int
    num_videos: int
    num_keys: int
    batch_items: int
    clips_per_item: int

    def __init__(self, inputs: SourceInputs) -> None:
        config = inputs.config
        self._config = config
        self._pairs_config = config.train.pairs
        self._seed = config.train.seed
        self._features = PairFeatures(inputs.root, inputs.shard_keys, config)
        self._windows = WindowDraw(
            num_frames=config.views.num_frames, min_overlap_s=self._pairs_config.min_overlap_s
        )
        labels = PairLabels.read(inputs.folder, self._features.video_ids)
        self._distractors = labels.distractors
        self._segments = self._pairs_of(labels)
        self._pairs = sorted(self._segments)
        paired = {video for pair in self._pairs for video in pair}
        self._videos = [*sorted(paired), *self._distractors]
        self._number_of = {video_id: number for number, video_id in enumerate(self._videos)}
        self._linked = self._pair_codes()

        self.dims = self._features.dims
        self.extras_dims = self._features.extras_dims
        self.num_videos = len(self._videos)
        self.num_keys = len(self._distractors)
        self.batch_items = min(config.train.batch_videos, len(self._pairs))
        self.clips_per_item = len(STRENGTHS) + self._pairs_config.negatives_per_pair
        self._singles = self._single_videos()
        self._survey_distractors(sorted(paired))

    @staticmethod
    def reads(config: Config) -> tuple[str, ...]:
        """Features, and with `single_rate` views of distractors."""
        return (STAGE, VIEWS_STAGE) if config.train.pairs.single_rate > 0 else (STAGE,)

    @staticmethod
    def frozen_networks(
        root: DataRoot, shard_keys: Sequence[str], config: Config
    ) -> dict[str, dict[str, Any]]:
        """The backbone that made the features of the first shard."""
        provenance = Shard(root, STAGE, shard_keys[0]).require({})
        return {"backbone": provenance.settings["backbone"]}

    @staticmethod
    def labels(inputs: LabelInputs) -> PairLabels:
        """Pairs and distractors, see `train.pairs`."""
        if inputs.begun is not None:
            return PairLabels.read(inputs.begun, inputs.video_ids)
        return read_pair_labels(
            inputs.config.train.pairs,
            resolve=inputs.resolve,
            video_ids=inputs.video_ids,
            length_s=inputs.length_s,
        )

    def __getitem__(self, number: int) -> Batch:
        rate = self._pairs_config.single_rate
        num_singles = int(number * rate)
        if int((number + 1) * rate) > num_singles:
            return self._single_batch(number, num_singles)
        return self._pair_batch(number, number - num_singles)

    def finish(self, item: Any) -> Batch:
        """The batch of an item."""
        batch: Batch = item
        return batch

    def _pair_batch(self, number: int, place: int) -> Batch:
        """The batch of labelled pairs at this place of all such batches."""
        chosen = self._of_epoch("pairs", len(self._pairs), place, size=self.batch_items)
        clips: list[Clip] = []
        for position, index in enumerate(chosen):
            rng = numpy_rng(self._seed, "pair", number, position)
            segments = self._segments[self._pairs[index]]
            segment = segments[int(rng.integers(len(segments)))]
            if self._pairs_config.swap and rng.uniform() < 0.5:
                segment = segment.swapped()
            clips += self._clips_of_pair(segment, rng)
            clips += self._negatives(segment.query, rng)

        return self._batch(number, clips, of_pairs=True)

    def _single_batch(self, number: int, place: int) -> Batch:
        """The batch of single distractors at this place of all such batches."""
        size = min(self.batch_items, len(self._singles))
        chosen = self._of_epoch("singles", len(self._singles), place, size=size)
        clips: list[Clip] = []
        for position, index in enumerate(chosen):
            rng = numpy_rng(self._seed, "single", number, position)
            video_id = self._singles[index]
            views = self._clips_of_single(video_id, rng)
            clips += views
            shown = {clip.host_id for clip in views}
            clips += self._negatives(video_id, rng, avoided=shown)

        return self._batch(number, clips, of_pairs=False)

    def _of_epoch(self, name: str, total: int, place: int, *, size: int) -> list[int]:
        """`size` of `total` numbers: part `place` of one seeded order after the other."""
        epoch, position = divmod(place, total // size)
        order = numpy_rng(self._seed, name, epoch).permutation(total)
        return [int(index) for index in order[position * size : (position + 1) * size]]

    def _clips_of_pair(self, segment: CopiedSegment, rng: np.random.Generator) -> list[Clip]:
        """Anchor and positive: anywhere in their videos, or where both show the shared footage."""
        if not self._pairs_config.min_overlap_s:
            return [self._anywhere(video, rng) for video in (segment.query, segment.reference)]

        query_start, reference_start = self._windows.starts(
            segment,
            self._features.times(segment.query),
            self._features.times(segment.reference),
            rng,
        )
        return [Clip(segment.query, query_start), Clip(segment.reference, reference_start)]

    def _clips_of_single(self, video_id: str, rng: np.random.Generator) -> list[Clip]:
        """A weak and a strong view of one window of the video."""
        settings = self._config.views
        hosts = self._features.hosts(video_id)
        window = int(rng.integers(settings.num_windows))
        clips = []
        for indices in settings.indices_of(window):
            view = indices[int(rng.integers(len(indices)))]
            clips.append(Clip(video_id, view=view, host_id=hosts[view]))

        return clips

    def _negatives(
        self, anchor: str, rng: np.random.Generator, *, avoided: Collection[str] = ()
    ) -> list[Clip]:
        """Clips of distractors, but not of the anchor itself or of a video that its views show."""
        count = self._pairs_config.negatives_per_pair
        if self._pairs_config.negatives == "hard":
            candidates = self._hard[anchor]
        else:
            candidates = np.arange(len(self._distractors))

        order = rng.choice(candidates, min(len(candidates), count + 2), replace=False)
        others = [self._distractors[int(index)] for index in order]
        others = [video for video in others if video != anchor and video not in avoided]
        if not others:
            raise DataError(
                f"training: {anchor} has no negatives besides what its views show; add distractors"
            )

        while len(others) < count:
            others += others
        return [self._anywhere(video, rng) for video in others[:count]]

    def _anywhere(self, video_id: str, rng: np.random.Generator) -> Clip:
        """A whole clip from anywhere in the video; from the beginning of a shorter video."""
        longest = max(self._features.num_frames[video_id] - self._config.views.num_frames, 0)
        return Clip(video_id, int(rng.integers(longest + 1)))

    def _batch(self, number: int, clips: Sequence[Clip], *, of_pairs: bool) -> Batch:
        """The batch of these clips. of_pairs: their anchors are of labelled pairs."""
        regions = []
        lengths = []
        for clip in clips:
            frames = self._features.read(clip)
            lengths.append(len(frames))
            regions.append(self._filled(frames))

        labels = self._labels([clip.video_id for clip in clips])
        sources = [
            [self._number_of[clip.video_id], self._number_of.get(clip.host_id, -1)]
            for clip in clips
        ]
        num_anchors = len(clips) // self.clips_per_item
        return Batch(
            regions=torch.stack(regions),
            labels=labels,
            frame_labels=None,
            pair_index=(labels > 0).nonzero(),
            first_row=0,
            video_ids=tuple(clip.video_id for clip in clips),
            source_ids=torch.tensor(sources),
            num_frames=None if self._config.train.repeat_short_clips else torch.tensor(lengths),
            clips_per_item=self.clips_per_item,
            easy_frames=self._draw_easy(number, num_anchors if of_pairs else 0, num_anchors),
        )

    def _filled(self, frames: Tensor) -> Tensor:
        """Frames [t, ...] extended to T: repeated (VVS), or padded with zeros (TCA)."""
        size = self._config.views.num_frames
        if self._config.train.repeat_short_clips:
            return frames[torch.arange(size) % len(frames)]
        return F.pad(frames, (0, 0, 0, 0, 0, size - len(frames)))

    def _labels(self, video_ids: Sequence[str]) -> Tensor:
        """int8 [B, B]: 1 for clips of one video or of a labelled pair, -1 for others."""
        numbers = np.array([self._number_of[video_id] for video_id in video_ids])
        same = numbers[:, None] == numbers[None]
        paired = np.flatnonzero(numbers < self.num_videos - self.num_keys)
        codes = numbers[paired][:, None] * self.num_videos + numbers[paired][None]
        same[np.ix_(paired, paired)] |= np.isin(codes, self._linked)
        return torch.from_numpy(np.where(same, 1, -1).astype(np.int8))

    def _draw_easy(self, number: int, num_drawn: int, num_anchors: int) -> Tensor | None:
        """[A, E, R + k, D], easy frames of distractors for each anchor, some of which training
        inserts; E = 0 if it inserts none. None for a network that does not discriminate them."""
        network = self._config.train.network
        if self._easy is None or not isinstance(network, VvsSettings):
            return None
        if not num_drawn:
            return torch.empty(num_anchors, 0, 1, 1, dtype=torch.float16)
        count = int(max(network.injected_rates) * self._config.views.num_frames)
        rng = numpy_rng(self._seed, "easy frames", number)
        frames = []
        for index in rng.integers(len(self._easy), size=num_drawn * count):
            video_id = self._distractors[int(self._easy.videos[index])]
            frame = int(self._easy.frames[index])
            frames.append(self._features.regions(video_id, frame, frame + 1))

        return torch.cat(frames).view(num_drawn, count, *frames[0].shape[1:])

    def _pairs_of(self, labels: PairLabels) -> dict[Pair, list[CopiedSegment]]:
        """The segments of each pair that are long enough."""
        min_length_s = self._pairs_config.min_overlap_s
        segments = segments_by_pair(labels.copies, min_length_s=min_length_s)
        if not segments:
            raise DataError(
                f"training: none of {len(labels.copies)} copied segments has "
                f"{min_length_s:g} s; lower train.pairs.min_overlap_s"
            )

        return segments

    def _pair_codes(self) -> Any:
        """int64: a number for each ordered pair of videos that share footage."""
        codes = []
        for query_id, reference_id in self._pairs:
            query = self._number_of[query_id]
            reference = self._number_of[reference_id]
            codes.append(query * len(self._videos) + reference)
            codes.append(reference * len(self._videos) + query)

        return np.array(codes)

    def _single_videos(self) -> list[str]:
        """Distractors that have views, where the training uses them."""
        if not self._pairs_config.single_rate:
            return []
        viewed = self._features.viewed_videos()
        singles = [video_id for video_id in self._distractors if video_id in viewed]
        if not singles:
            raise DataError(
                "training: train.pairs.single_rate needs views of distractors, and none has any; "
                "run `hapvr extract`, or set it to 0"
            )

        return singles

    def _survey_distractors(self, paired: Sequence[str]) -> None:
        """Find hard negatives and easy frames, where the training needs them."""
        self._easy = None
        self._hard: dict[str, Any] = {}
        is_hard = self._pairs_config.negatives == "hard"
        if not is_hard and not self.extras_dims:
            return
        network = self._config.train.network
        limit = network.max_magnitude if isinstance(network, VvsSettings) else None
        surveyed = survey(
            self._videos,
            self._distractors,
            self._features.regions,
            extras_dims=self.extras_dims,
            max_magnitude=limit,
        )
        self._easy = surveyed.easy
        if is_hard:
            anchors = [*paired, *self._singles]
            place = {video_id: number for number, video_id in enumerate(self._distractors)}
            nearest = nearest_distractors(
                surveyed.means[[self._number_of[video_id] for video_id in anchors]],
                surveyed.means[len(paired) :],
                count=self._pairs_config.hard_negatives,
                own=torch.tensor([place.get(video_id, -1) for video_id in anchors]),
            )
            self._hard = dict(zip(anchors, nearest, strict=True))
