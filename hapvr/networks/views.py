"""Views of sampled frames: which ones a video gets, and their clips. Cached and online views are both drawn here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from hapvr.augment.settings import ViewsConfig
from hapvr.augment.temporal import draw_window
from hapvr.data.frames import VideoFrames
from hapvr.seeding import numpy_rng
from hapvr.video.frames import decode_jpegs

Strength = Literal["weak", "strong"]

VIDEO_IN_VIDEO_PROBABILITY = 0.3
"""Of another video pasted on a strong view (S2VS 3.2)."""
GROUP_VIDEOS = 4
"""Cached views take their donors within fixed groups of this many videos, which training draws one after the other."""


@dataclass(frozen=True)
class ViewPlan:
    """What determines a view, together with the configuration: equal plans give equal clips.

    index: seeds the augmentations. window: seeds the stretch of 2T frames that the clip is cut from. window_part:
    (number, count), the stretch starts in this one of `count` equal parts of the video. donor_id: the video that is
    combined with it (video-in-video), "" for none.
    """

    video_id: str
    index: int
    strength: Strength
    window: int
    window_part: tuple[int, int] = (0, 1)
    donor_id: str = ""


def plan_cached_views(video_ids: Sequence[str], config: ViewsConfig) -> dict[str, list[ViewPlan]]:
    """The views of each video of a shard, weak ones first; their windows are spread over the video."""
    groups = {video_id: group for group in donor_groups(video_ids, seed=config.seed) for video_id in group}
    plans: dict[str, list[ViewPlan]] = {}
    for video_id in video_ids:
        others = [other for other in groups[video_id] if other != video_id]
        plans[video_id] = []
        for index in range(config.num_weak + config.num_strong):
            strength: Strength = "weak" if index < config.num_weak else "strong"
            window = config.window_of(index)
            donor_id = "" if strength == "weak" else choose_donor(video_id, index, others, config)
            part = (window, config.num_windows)
            plans[video_id].append(ViewPlan(video_id, index, strength, window, part, donor_id))
    return plans


def choose_donor(video_id: str, index: int, others: Sequence[str], config: ViewsConfig) -> str:
    """The one of `others` that is combined with this strong view (S2VS 3.2), or "" for none."""
    draw = numpy_rng(config.seed, video_id, "takes_donor", index).random()
    if not others or draw >= VIDEO_IN_VIDEO_PROBABILITY:
        return ""
    return others[int(numpy_rng(config.seed, video_id, "donor", index).integers(len(others)))]


class ViewDrawer:
    """Draws the clips of plans.

    read: the sampled frames of a video. size_px: side of the square frames of a clip. Memory holds the decoded frames
    of the two videos that were read last.
    """

    def __init__(self, read: Callable[[str], VideoFrames], *, config: ViewsConfig, size_px: int) -> None:
        self._frames = lru_cache(maxsize=2)(
            lambda video: torch.from_numpy(decode_jpegs(read(video).jpegs)).contiguous()
        )
        self._config = config
        self._size_px = size_px

    def draw(self, plan: ViewPlan) -> Tensor:
        """The clip of a plan, [T, 3, S, S] uint8. The donor shows its own strong view of the same index."""
        from hapvr.augment.policy import draw_view, video_in_video  # loads torchvision

        frames, num_frames = self._frames(plan.video_id), self._config.num_frames
        rng = numpy_rng(self._config.seed, plan.video_id, "window", plan.window)
        window = draw_window(len(frames), num_frames=num_frames, rng=rng, part=plan.window_part)
        where = (self._config.seed, plan.video_id, plan.index)
        view = draw_view(frames, window, where, strength=plan.strength, num_frames=num_frames, size_px=self._size_px)
        if not plan.donor_id:
            return view
        return video_in_video(view, self.draw(replace(plan, video_id=plan.donor_id, donor_id="")), where)


def donor_groups(video_ids: Sequence[str], *, seed: int) -> list[list[str]]:
    """The videos of a shard in groups that take their donors from each other; the last one may be smaller."""
    ordered = sorted(video_ids)
    shuffled = [ordered[index] for index in numpy_rng(seed, "donor groups", len(ordered)).permutation(len(ordered))]
    return [shuffled[start : start + GROUP_VIDEOS] for start in range(0, len(shuffled), GROUP_VIDEOS)]
