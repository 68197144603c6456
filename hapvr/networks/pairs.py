"""Which clips of a training batch belong together, from the videos they were cut from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor


class KnownPairs:
    """Pairs of different videos that show the same footage or incident, by id; the order of the two says nothing."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._partners: dict[str, set[str]] = {}
        for one, other in pairs:
            self._partners.setdefault(one, set()).add(other)
            self._partners.setdefault(other, set()).add(one)
        self._group_of: dict[str, str] = {}
        for start in sorted(self._partners):
            waiting = [] if start in self._group_of else [start]
            while waiting:
                video_id = waiting.pop()
                if video_id not in self._group_of:
                    self._group_of[video_id] = start
                    waiting += self._partners[video_id]

    @property
    def video_ids(self) -> tuple[str, ...]:
        """The videos of all pairs, sorted."""
        return tuple(sorted(self._partners))

    def are_paired(self, one: str, other: str) -> bool:
        """Whether the two are a pair themselves."""
        return other in self._partners.get(one, ())

    def group(self, video_id: str) -> str:
        """The first of all videos that a chain of pairs joins to this one; itself if there is none."""
        return self._group_of.get(video_id, video_id)


NO_PAIRS = KnownPairs()


def video_pair_labels(sources: Sequence[Collection[str]], known: KnownPairs = NO_PAIRS) -> Tensor:
    """Labels of all pairs of clips: 1 if they share a source video, -1 if not (S2VS section 3.3).

    sources: for each of B clips the ids of the videos it shows, two for video-in-video. Clips of a known pair are labelled
    1 too; clips that only a chain of pairs joins, of whatever videos, are labelled 0, which the losses ignore. Returns
    int8 [B, B], symmetric, 1 on the diagonal.
    """
    videos = sorted({video for ids in sources for video in ids})
    column = {video: number for number, video in enumerate(videos)}
    shows = torch.zeros(len(sources), len(videos), dtype=torch.int32)
    for position, ids in enumerate(sources):
        shows[position, [column[video] for video in ids]] = 1
    groups = torch.tensor([column.setdefault(known.group(video), len(column)) for video in videos])
    joined = (groups[:, None] == groups).int()
    paired = torch.eye(len(videos), dtype=torch.int32)
    for one, other in joined.triu(1).nonzero().tolist():
        paired[one, other] = paired[other, one] = int(known.are_paired(videos[one], videos[other]))
    labels = torch.full((len(sources), len(sources)), -1, dtype=torch.int8)
    labels[shows @ joined @ shows.T > 0] = 0
    labels[shows @ paired @ shows.T > 0] = 1
    return labels


def positive_pairs(labels: Tensor, *, include_self: bool = False) -> Tensor:
    """Row and column of each positive pair, row by row. labels: int8 [B, B] ternary. Returns int64 [P, 2].

    include_self: whether a clip paired with itself counts, as it does in the HAP-VR release.
    """
    pairs = (labels > 0).nonzero()
    return pairs if include_self else pairs[pairs[:, 0] != pairs[:, 1]]
