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
"""At most one of these augmentations changes a clip (S2VS 3.2 and Table 11)."""

Indices = NDArray[np.int64]

GROUP_VIDEOS = 4
"""Cached views take their hosts within fixed groups of this many videos, which training draws one
after the other."""


@dataclass(frozen=True)
class ViewPlan:
    """What determines a view, together with the configuration: equal plans give equal clips.

    index: seeds the augmentations
    window: seeds the stretch of 2T frames that the clip is cut from
    window_part: (number, count): the stretch starts in this one of `count` equal parts of the video
    host_id: the video on whose strong view this one is pasted (video-in-video), "" for none"""

    video_id: str
    index: int
    strength: Literal["weak", "strong"]
    window: int
    window_part: tuple[int, int] = (0, 1)
    host_id: str = ""


def plan_cached_views(video_ids: Sequence[str], config: ViewsConfig) -> dict[str, list[ViewPlan]]:
    """The views of each video of a shard, weak ones first; their windows are spread over the
    video."""
    plans: dict[str, list[ViewPlan]] = {video_id: [] for video_id in video_ids}
    for group in host_groups(video_ids, seed=config.seed):
        for video_id in group:
            others = [other for other in group if other != video_id]
            for index in range(config.num_weak + config.num_strong):
                plans[video_id].append(_plan_cached_view(video_id, index, others, config))

    return plans


def _plan_cached_view(
    video_id: str, index: int, others: Sequence[str], config: ViewsConfig
) -> ViewPlan:
    is_strong = index >= config.num_weak
    place = index - config.num_weak if is_strong else index
    window = place % config.num_windows
    return ViewPlan(
        video_id,
        index,
        "strong" if is_strong else "weak",
        window,
        window_part=(window, config.num_windows),
        host_id=choose_host(video_id, index, others, config) if is_strong else "",
    )


def host_groups(video_ids: Sequence[str], *, seed: int) -> list[list[str]]:
    """The videos of a shard in groups that take their hosts from each other; the last one may be
    smaller."""
    ordered = sorted(video_ids)
    order = numpy_rng(seed, "donor groups", len(ordered)).permutation(len(ordered))
    shuffled = [ordered[index] for index in order]
    return [
        shuffled[start : start + GROUP_VIDEOS] for start in range(0, len(shuffled), GROUP_VIDEOS)
    ]


def choose_host(video_id: str, index: int, others: Sequence[str], config: ViewsConfig) -> str:
    """The one of `others` that this strong view is pasted on, or "" for none (S2VS 3.2: every
    strong view is a donor with probability p_viv, and its host is drawn at random)."""
    if "video_in_video" not in config.strong or not others:
        return ""
    draw = numpy_rng(config.seed, video_id, "takes_donor", index).random()
    if draw >= config.video_in_video_rate:
        return ""
    return others[int(numpy_rng(config.seed, video_id, "donor", index).integers(len(others)))]


def draw_window(
    num_available: int, *, num_frames: int, rng: np.random.Generator, part: tuple[int, int] = (0, 1)
) -> Indices:
    """2 * num_frames consecutive frames from a random place; a shorter video is repeated to that
    length (method 3). part: (number, count); the stretch starts in this one of `count` equal parts
    of the places."""
    length = min(num_available, 2 * num_frames)
    num_starts = num_available - length + 1
    number, count = part
    first = num_starts * number // count
    start = int(rng.integers(first, max(first + 1, num_starts * (number + 1) // count)))
    return np.resize(np.arange(start, start + length), 2 * num_frames)


def crop_or_loop(indices: Indices, *, num_frames: int, rng: np.random.Generator) -> Indices:
    """num_frames consecutive entries from a random place; if there are fewer, they are repeated
    from the first one on. Only places with enough real frames are drawn: a quarter of the clip, or
    as many as there are."""
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
    segment_length: Literal["each", "once"] = "each",
    shuffled: float = 0.5,
    dropped: float = 0.3,
) -> Indices:
    """Cut the window into segments of 4 to max_segment_frames frames, and with these probabilities
    shuffle them and drop some (S2VS 3.2). A dropped segment is blanked or turned into noise with a
    probability of a quarter each, otherwise cut out; one segment is always kept. segment_length:
    see `ViewsConfig`.
    """
    segments = _cut(window, max_frames=max_segment_frames, rng=rng, once=segment_length == "once")
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


def _cut(
    window: Indices, *, max_frames: int, rng: np.random.Generator, once: bool
) -> list[Indices]:
    """Consecutive segments of random length; the last one takes what is left. once: all have the
    length of the first."""
    segments: list[Indices] = []
    rest = window
    length = 0
    while len(rest):
        if not once or not length:
            longest = max(MIN_SEGMENT_FRAMES, max_frames)
            length = int(rng.integers(MIN_SEGMENT_FRAMES, longest + 1))

        segments.append(rest[:length])
        rest = rest[length:]

    return segments


def draw_temporal(
    window: Indices,
    *,
    num_frames: int,
    rng: np.random.Generator,
    segment_length: Literal["each", "once"] = "each",
) -> Indices:
    """At most one temporal augmentation of the window, drawn by its probability, then [num_frames]
    of the result. segment_length: see `ViewsConfig`."""
    choice = rng.random()
    for name, probability in PROBABILITIES.items():
        if choice < probability:
            window = _augment(
                name, window, num_frames=num_frames, rng=rng, segment_length=segment_length
            )
            break

        choice -= probability

    return crop_or_loop(window, num_frames=num_frames, rng=rng)


def _augment(
    name: str,
    window: Indices,
    *,
    num_frames: int,
    rng: np.random.Generator,
    segment_length: Literal["each", "once"] = "each",
) -> Indices:
    if name == "shuffle_dropout":
        return shuffle_dropout(
            window, max_segment_frames=num_frames // 2, rng=rng, segment_length=segment_length
        )
    if name == "fast_forward":
        return window[:: int(rng.choice((2, 3, 4)))]
    if name == "slow_motion":
        return np.repeat(window, 2)
    if name == "reverse":
        return window[::-1]
    return _pause(window, num_frames=num_frames, rng=rng)


def _pause(window: Indices, *, num_frames: int, rng: np.random.Generator) -> Indices:
    """num_frames of the window around a frame that is shown again at least four times."""
    position = int(rng.integers(len(window)))
    longest = max(MIN_SEGMENT_FRAMES, num_frames // 2)
    num_paused = int(rng.integers(MIN_SEGMENT_FRAMES, longest + 1))
    # Cut around the pause first, so that the clip shows at least a part of it.
    start = min(max(0, position - num_frames // 2), max(0, len(window) - num_frames))
    around = window[start : start + num_frames]
    return np.insert(around, position - start, np.full(num_paused, window[position]))
