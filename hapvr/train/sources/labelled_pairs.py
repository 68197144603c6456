"""Batches of labelled pairs of videos, each with negatives among the distractors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.config import Config
from hapvr.data.features import EXTRAS_SETTING, STAGE, VIEWS_STAGE, FeatureFile, ViewFile
from hapvr.data.filesystem import DataRoot, allow_open_files
from hapvr.data.shards import Shard
from hapvr.errors import DataError
from hapvr.model.settings import VvsSettings, needs_extras
from hapvr.seeding import numpy_rng
from hapvr.train.batch import STRENGTHS, Batch
from hapvr.train.pair_labels import CopiedSegment, PairLabels, video_length_s
from hapvr.train.sources.mining import nearest_distractors, survey
from hapvr.train.sources.source import SourceInputs


@dataclass(frozen=True)
class Clip:
    """A part of a video, or a stored view of it.

    start: its first frame; view: the number of the view instead, -1 for none. host_id: the video
    that the view shows as well, "" for none."""

    video_id: str
    start: int = 0
    view: int = -1
    host_id: str = ""


class LabelledPairs:
    """Item `number` is a batch of labelled pairs, each with `negatives_per_pair` distractors.

    Every pair comes once in an epoch, in a seeded order; the rest of an epoch is left out. With
    `single_rate` some batches are of single distractors instead, whose weak view is the anchor and
    whose strong view is the positive.

    Raises DataError for features of several kinds, and without a pair that is long enough."""

    dims: int
    extras_dims: int
    num_videos: int
    num_keys: int
    batch_items: int
    clips_per_item: int

    def __init__(self, inputs: SourceInputs) -> None:
        config = inputs.config
        self._root = inputs.root
        self._shard_keys = inputs.shard_keys
        self._config = config
        self._pairs_config = config.train.pairs
        self._seed = config.train.seed
        self._extras = needs_extras(config.train.network)
        self._num_frames: dict[str, int] = {}
        self._shard_of: dict[str, int] = {}
        self._read_shards()

        labels = PairLabels.read(inputs.folder, self._shard_of)
        self._distractors = labels.distractors
        self._segments = self._pairs_of(labels)
        self._pairs = sorted(self._segments)
        paired = {video for pair in self._pairs for video in pair}
        self._videos = [*sorted(paired), *self._distractors]
        self._number_of = {video_id: number for number, video_id in enumerate(self._videos)}
        self._linked = self._pair_codes()

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
        made = Shard(root, STAGE, shard_keys[0]).require({})
        return {"backbone": made.settings["backbone"]}

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

        times = self._times(segment.query)
        shared = _frames_between(times, segment.query_start_s, segment.query_end_s)
        frames_per_s = len(times) / video_length_s(times)
        least = max(1, round(self._pairs_config.min_overlap_s * frames_per_s))
        first, last = self._window_limits(segment.query, shared, least)
        start = int(rng.integers(first, last + 1))

        end = start + self._config.views.num_frames
        shown = shared[(shared >= start) & (shared < end)]
        copies = _copied_frames(segment, times[shown], self._times(segment.reference))
        first, last = self._window_limits(segment.reference, copies, least)
        positive = int(rng.integers(first, last + 1))
        return [Clip(segment.query, start), Clip(segment.reference, positive)]

    def _window_limits(self, video_id: str, frames: Any, least: int) -> tuple[int, int]:
        """The first and the last start of a clip that shows `least` of these frames, in order, or
        all of them where they are fewer."""
        size = self._config.views.num_frames
        least = min(least, size, len(frames))
        longest = max(self._num_frames[video_id] - size, 0)
        first = max(int(frames[least - 1]) - size + 1, 0)
        last = int(frames[-least])
        return min(first, longest), max(min(last, longest), min(first, longest))

    def _clips_of_single(self, video_id: str, rng: np.random.Generator) -> list[Clip]:
        """A weak and a strong view of one window of the video."""
        settings = self._config.views
        hosts = self._views[self._shard_of[video_id]].hosts[video_id]
        window = int(rng.integers(settings.num_windows))
        clips = []
        for indices in settings.indices_of(window):
            view = indices[int(rng.integers(len(indices)))]
            clips.append(Clip(video_id, view=view, host_id=hosts[view]))
        return clips

    def _negatives(
        self, anchor: str, rng: np.random.Generator, *, avoided: Collection[str] = ()
    ) -> list[Clip]:
        """Clips of distractors, none of the anchor itself or of a video that its views show."""
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
        """A clip that starts anywhere where it is whole; at 0 in a shorter video."""
        longest = max(self._num_frames[video_id] - self._config.views.num_frames, 0)
        return Clip(video_id, int(rng.integers(longest + 1)))

    def _batch(self, number: int, clips: Sequence[Clip], *, of_pairs: bool) -> Batch:
        """The batch of these clips. of_pairs: their anchors are of labelled pairs."""
        regions = []
        lengths = []
        for clip in clips:
            frames = self._read(clip)
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

    def _read(self, clip: Clip) -> Tensor:
        """The frames of a clip: [t, R + k, D], fewer than a clip has in a short video."""
        shard = self._shard_of[clip.video_id]
        if clip.view >= 0:
            return self._views[shard].read(clip.video_id)[clip.view]
        last = clip.start + self._config.views.num_frames
        return torch.from_numpy(self._files[shard].regions(clip.video_id, clip.start, last))

    def _filled(self, frames: Tensor) -> Tensor:
        """Frames [t, ...] made T: shown again (VVS), or padded with zeros (TCA)."""
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
        """[A, E, R + k, D], easy frames of distractors for each anchor, of which training inserts
        some: E = 0 where it inserts none. None for a network that does not discriminate them."""
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
            file = self._files[self._shard_of[video_id]]
            frames.append(torch.from_numpy(file.regions(video_id, frame, frame + 1)))
        return torch.cat(frames).view(num_drawn, count, *frames[0].shape[1:])

    def _read_shards(self) -> None:
        """Which videos there are, how long, and of which dimensions their features are."""
        first = Shard(self._root, STAGE, self._shard_keys[0]).require({}).settings
        for number, key in enumerate(self._shard_keys):
            shard = Shard(self._root, STAGE, key)
            shard.require(dict(first))
            file = FeatureFile(shard, extras=self._extras)
            self.dims = file.dims
            self.extras_dims = file.settings[EXTRAS_SETTING] if self._extras else 0
            self._shard_of |= dict.fromkeys(file.video_ids, number)
            self._num_frames |= dict(shard.index().select("video_id", "num_rows").iter_rows())

    def _pairs_of(self, labels: PairLabels) -> dict[tuple[str, str], list[CopiedSegment]]:
        """The segments of each pair of videos, whichever of them is the query, that are long
        enough."""
        segments = defaultdict[tuple[str, str], list[CopiedSegment]](list)
        for copy in labels.copies:
            if copy.shorter_s < self._pairs_config.min_overlap_s:
                continue
            pair = (copy.query, copy.reference)
            turned = (copy.reference, copy.query)
            if turned in segments:
                segments[turned].append(copy.swapped())
            else:
                segments[pair].append(copy)
        if not segments:
            raise DataError(
                f"training: none of {len(labels.copies)} copied segments has "
                f"{self._pairs_config.min_overlap_s:g} s; lower train.pairs.min_overlap_s"
            )
        return dict(segments)

    def _pair_codes(self) -> Any:
        """int64: a number for each ordered pair of videos that share footage."""
        codes = []
        for first, second in self._pairs:
            one, other = self._number_of[first], self._number_of[second]
            codes += [one * len(self._videos) + other, other * len(self._videos) + one]
        return np.array(codes)

    def _single_videos(self) -> list[str]:
        """Distractors that have views, where the training uses them."""
        if not self._pairs_config.single_rate:
            return []
        drawn = {"views": self._config.views.model_dump(mode="json")}
        for key in self._shard_keys:
            Shard(self._root, VIEWS_STAGE, key).require(drawn)
        viewed = {video_id for file in self._views for video_id in file.video_ids}
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
        if not (is_hard or self._extras):
            return
        network = self._config.train.network
        limit = network.max_magnitude if isinstance(network, VvsSettings) else None
        found = survey(
            self._videos,
            self._distractors,
            lambda video: torch.from_numpy(self._files[self._shard_of[video]].regions(video)),
            extras_dims=self.extras_dims,
            max_magnitude=limit,
        )
        self._easy = found.easy
        if is_hard:
            anchors = [*paired, *self._singles]
            place = {video_id: number for number, video_id in enumerate(self._distractors)}
            nearest = nearest_distractors(
                found.means[[self._number_of[video_id] for video_id in anchors]],
                found.means[len(paired) :],
                count=self._pairs_config.hard_negatives,
                own=torch.tensor([place.get(video_id, -1) for video_id in anchors]),
            )
            self._hard = dict(zip(anchors, nearest, strict=True))

    def _times(self, video_id: str) -> Any:
        """Seconds [T] of the frames of a video."""
        return np.array(self._files[self._shard_of[video_id]].times(video_id))

    @cached_property
    def _files(self) -> list[FeatureFile]:
        """The features of each shard."""
        allow_open_files(2 * len(self._shard_keys))
        return [
            FeatureFile(Shard(self._root, STAGE, key), extras=self._extras)
            for key in self._shard_keys
        ]

    @cached_property
    def _views(self) -> list[ViewFile]:
        """The views of each shard."""
        return [
            ViewFile(Shard(self._root, VIEWS_STAGE, key), extras=self._extras)
            for key in self._shard_keys
        ]

    def __getstate__(self) -> dict[str, Any]:
        # Open files do not travel to data workers; each opens its own.
        open_files = ("_files", "_views")
        return {name: value for name, value in self.__dict__.items() if name not in open_files}


def _frames_between(times: Any, start_s: float, end_s: float) -> Any:
    """int64: the frames at these times [T] that are between two moments, at least the nearest."""
    inside = np.flatnonzero((times >= start_s) & (times < end_s))
    return inside if len(inside) else np.array([np.abs(times - start_s).argmin()])


def _copied_frames(segment: CopiedSegment, query_times: Any, reference_times: Any) -> Any:
    """int64: the frames of the reference [T] that show what the query shows at some times."""
    rate = (segment.reference_end_s - segment.reference_start_s) / (
        segment.query_end_s - segment.query_start_s
    )
    copied_s = segment.reference_start_s + rate * (query_times - segment.query_start_s)
    return np.unique(np.abs(reference_times[:, None] - copied_s[None]).argmin(0))
