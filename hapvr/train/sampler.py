"""Which videos are in which batch: a function of (seed, number) alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from hapvr.errors import DataError
from hapvr.seeding import numpy_rng

COMPARED_GROUPS = 1024
"""Groups among which look-alikes are looked for, since all pairs of their videos are compared."""


class BatchSampler:
    """Which videos are in which batch.

    Videos are drawn by epoch: groups in a seeded order, the videos of each one after the other, cut
    into batches of `batch_videos`; the rest of an epoch is left out. Rank r of `world_size` gets
    the r-th part of a batch. A batch larger than the collection becomes the collection.

    groups: videos whose clips show each other, which so are mostly in one batch; every other video
    is a group of its own. Raises DataError with fewer than two videos for each rank: there would be
    no negatives."""

    def __init__(
        self,
        video_ids: Iterable[str],
        *,
        batch_videos: int,
        seed: int,
        groups: Iterable[Sequence[str]] = (),
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        videos = set(video_ids)
        if len(videos) < 2 * world_size:
            raise DataError(
                f"training: {len(videos)} videos can be trained on, and negatives need at "
                f"least {2 * world_size}; add "
                "videos, or see the reasons in the index of training_views"
            )

        grouped = [sorted(group) for group in groups]
        single = [[video_id] for video_id in videos.difference(*grouped)]
        self._groups = sorted(grouped + single)
        self.batch_videos = min(batch_videos, len(videos) // world_size * world_size)
        self._per_epoch = len(videos) // self.batch_videos
        self._seed = seed
        self._rank = rank
        self._world_size = world_size
        self._last: tuple[int, list[str]] = (-1, [])

    def videos(self, number: int) -> list[str]:
        """The videos of a batch, of all ranks."""
        epoch, position = divmod(number, self._per_epoch)
        if self._last[0] != epoch:
            order = numpy_rng(self._seed, "epoch", epoch).permutation(len(self._groups))
            self._last = (epoch, [video_id for index in order for video_id in self._groups[index]])

        return self._last[1][position * self.batch_videos : (position + 1) * self.batch_videos]

    def rank_slice(self) -> slice:
        """The places of this rank's videos in a batch."""
        share = self.batch_videos // self._world_size
        return slice(self._rank * share, (self._rank + 1) * share)


def drawn_part(video_ids: Iterable[str], *, rate: float) -> set[str]:
    """About `rate` of the videos, always the same ones: a video is drawn by its id alone."""
    if rate >= 1:
        return set(video_ids)
    return {name for name in video_ids if numpy_rng(0, "training part", name).random() < rate}


def look_alikes(
    groups: Sequence[Sequence[str]],
    means: Mapping[str, Tensor],
    *,
    copies: Mapping[str, str],
    size: int,
) -> list[list[str]]:
    """Groups joined with those that look most like them until they hold `size` videos: a batch of
    hard negatives.

    means: [D], the mean region of a video.
    copies: names of groups of copies; groups that hold copies of each other stay apart, as these
    would be negatives of each other."""
    joined: list[list[str]] = []
    for begin in range(0, len(groups), COMPARED_GROUPS):
        block = groups[begin : begin + COMPARED_GROUPS]
        alike = _likeness(block, means, copies)
        for chain in _chains(alike, [len(group) for group in block], size=size):
            joined.append([name for place in chain for name in block[place]])

    return joined


def _likeness(
    groups: Sequence[Sequence[str]], means: Mapping[str, Tensor], copies: Mapping[str, str]
) -> NDArray[np.float32]:
    """[G, G], how alike two groups look: as the two videos of them that do most. -inf where they
    hold copies of each other, and on the diagonal."""
    names = [name for group in groups for name in group]
    vectors = F.normalize(torch.stack([means[name] for name in names]), dim=-1)
    cosines = (vectors @ vectors.T).numpy()
    kinds = np.array([copies.get(name, f"no copy: {name}") for name in names])
    are_copies = kinds[:, None] == kinds

    starts = np.cumsum([0] + [len(group) for group in groups[:-1]])
    alike = np.maximum.reduceat(np.maximum.reduceat(cosines, starts, 0), starts, 1)
    same = np.logical_or.reduceat(np.logical_or.reduceat(are_copies, starts, 0), starts, 1)
    alike[same] = -np.inf
    return np.asarray(alike, np.float32)


def _chains(alike: NDArray[np.float32], sizes: Sequence[int], *, size: int) -> Iterator[list[int]]:
    """The groups that are joined: each begins with the first that is left, and takes what looks
    most like one of its members until it holds `size` videos, or only copies are left.

    alike: [G, G], see `_likeness`.
    sizes: videos of each group."""
    left = list(range(len(sizes)))
    while left:
        chain = [left.pop(0)]
        while left and sum(sizes[place] for place in chain) < size:
            likeness = alike[np.ix_(chain, left)]
            is_excluded = np.asarray(np.isinf(likeness).any(0))
            best = int(np.where(is_excluded, -np.inf, likeness.max(0)).argmax())
            if is_excluded[best]:
                break
            chain.append(left.pop(best))

        yield chain
