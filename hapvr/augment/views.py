"""Which views a video gets, and which of its frames each shows: arithmetic on frame indices,
without a pixel.

Temporal augmentations return int64 arrays of indices into the video, in the order in which a clip
shows them; BLANK and NOISE stand for frames without a source.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hapvr.augment.settings import ViewsConfig
from hapvr.seeding import numpy_rng

BLANK = -1
NOISE = -2
MIN_SEGMENT_FRAMES = 4
PROBABILITIES = {
    "shuffle_dropout": 0.5,
    "fast_forward": 0.1,
    "slow_motion": 0.1,
    "reverse": 0.1,
    "pause": 0.1,
}
"""At most one of these changes a clip (S2VS 3.2)."""

Indices = NDArray[np.int64]

GROUP_VIDEOS = 4
"""Cached views take their donors within fixed groups of this many videos, which training draws one
after the other."""


@dataclass(frozen=True)
class ViewPlan:
    """What determines a view, together with the configuration: equal plans give equal clips.

    index: seeds the augmentations. window: seeds the stretch of 2T frames that the clip is cut
    from. window_part: (number, count), it starts in this one of `count` equal parts of the video.
    donor_id: the video that is combined with it (video-in-video), "" for none."""

    video_id: str
    index: int
    strength: Literal["weak", "strong"]
    window: int
    window_part: tuple[int, int] = (0, 1)
    donor_id: str = ""


def plan_cached_views(video_ids: Sequence[str], config: ViewsConfig) -> dict[str, list[ViewPlan]]:
    """The views of each video of a shard, weak ones first; their windows are spread over the
    video."""
    groups = {
        video_id: group for group in donor_groups(video_ids, seed=config.seed) for video_id in group
    }
    plans: dict[str, list[ViewPlan]] = {}
    for video_id in video_ids:
        others = [other for other in groups[video_id] if other != video_id]
        plans[video_id] = []
        for index in range(config.num_weak + config.num_strong):
            strong = index >= config.num_weak
            window = (index - config.num_weak if strong else index) % config.num_windows
            donor_id = choose_donor(video_id, index, others, config) if strong else ""
            part = (window, config.num_windows)
            plans[video_id].append(
                ViewPlan(video_id, index, "strong" if strong else "weak", window, part, donor_id)
            )
    return plans


def donor_groups(video_ids: Sequence[str], *, seed: int) -> list[list[str]]:
    """The videos of a shard in groups that take their donors from each other; the last one may be
    smaller."""
    ordered = sorted(video_ids)
    shuffled = [
        ordered[index]
        for index in numpy_rng(seed, "donor groups", len(ordered)).permutation(len(ordered))
    ]
    return [
        shuffled[start : start + GROUP_VIDEOS] for start in range(0, len(shuffled), GROUP_VIDEOS)
    ]


def choose_donor(video_id: str, index: int, others: Sequence[str], config: ViewsConfig) -> str:
    """The one of `others` that is combined with this strong view, with a probability of 0.3 (S2VS
    3.2), or "" for none."""
    draw = numpy_rng(config.seed, video_id, "takes_donor", index).random()
    if not others or draw >= 0.3:
        return ""
    return others[int(numpy_rng(config.seed, video_id, "donor", index).integers(len(others)))]


def draw_window(
    num_available: int, *, num_frames: int, rng: np.random.Generator, part: tuple[int, int] = (0, 1)
) -> Indices:
    """2 * num_frames consecutive frames at a random place; a shorter video is repeated to that
    length (method 3). part: (number, count); the stretch starts in this one of `count` equal parts
    of the places."""
    length = min(num_available, 2 * num_frames)
    num_starts = num_available - length + 1
    number, count = part
    first = num_starts * number // count
    start = int(rng.integers(first, max(first + 1, num_starts * (number + 1) // count)))
    return np.resize(np.arange(start, start + length), 2 * num_frames)


def crop_or_loop(indices: Indices, *, num_frames: int, rng: np.random.Generator) -> Indices:
    """num_frames consecutive entries at a random place; fewer entries are shown again from the
    first one on. Of the possible places only those with enough real frames are drawn from: a
    quarter of the clip, or as many as there are."""
    if len(indices) <= num_frames:
        return np.resize(indices, num_frames)
    real = np.concatenate([[0], np.cumsum(indices >= 0)])
    num_real = real[num_frames:] - real[:-num_frames]
    enough = min(int(num_real.max()), math.ceil(0.25 * num_frames))
    start = int(rng.choice(np.flatnonzero(num_real >= enough)))
    return indices[start : start + num_frames].copy()


def shuffle_dropout(
    window: Indices,
    *,
    max_segment_frames: int,
    rng: np.random.Generator,
    shuffled: float = 0.5,
    dropped: float = 0.3,
) -> Indices:
    """Cut into segments of 4..max_segment_frames frames; by these probabilities shuffle them, drop
    some (S2VS 3.2). A dropped segment is blanked or turned to noise with a probability of a quarter
    each, otherwise cut out; one segment is always kept.
    """
    segments: list[Indices] = []
    rest = window
    while len(rest):
        length = int(
            rng.integers(MIN_SEGMENT_FRAMES, max(MIN_SEGMENT_FRAMES, max_segment_frames) + 1)
        )
        segments.append(rest[:length])
        rest = rest[length:]
    if rng.random() < shuffled:
        segments = [segments[position] for position in rng.permutation(len(segments))]
    is_dropped = rng.random(len(segments)) < dropped
    is_dropped[rng.integers(len(segments))] = False
    shown: list[Indices] = []
    for segment, drop in zip(segments, is_dropped, strict=True):
        if not drop:
            shown.append(segment)
        elif rng.random() < 0.5:
            shown.append(np.full(len(segment), BLANK if rng.random() < 0.5 else NOISE))
    return np.concatenate(shown)


def draw_temporal(window: Indices, *, num_frames: int, rng: np.random.Generator) -> Indices:
    """At most one temporal augmentation of the window, drawn by its probability, then [num_frames]
    of the result."""
    choice = rng.random()
    for name, probability in PROBABILITIES.items():
        if choice < probability:
            window = _augment(name, window, num_frames=num_frames, rng=rng)
            break
        choice -= probability
    return crop_or_loop(window, num_frames=num_frames, rng=rng)


def _augment(name: str, window: Indices, *, num_frames: int, rng: np.random.Generator) -> Indices:
    if name == "shuffle_dropout":
        return shuffle_dropout(window, max_segment_frames=num_frames // 2, rng=rng)
    if name == "fast_forward":
        return window[:: int(rng.choice((2, 3, 4)))]
    if name == "slow_motion":
        return np.repeat(window, 2)
    if name == "reverse":
        return window[::-1]
    position = int(rng.integers(len(window)))
    num_paused = int(rng.integers(MIN_SEGMENT_FRAMES, max(MIN_SEGMENT_FRAMES, num_frames // 2) + 1))
    # cut to num_frames around the pause first, so that the clip shows at least a part of it
    start = min(max(0, position - num_frames // 2), max(0, len(window) - num_frames))
    around = window[start : start + num_frames]
    return np.insert(around, position - start, np.full(num_paused, window[position]))
