"""Embedded videos of any lengths one after the other, and how many of them are compared at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much is computed at once. No score depends on it.

    query_frames, reference_frames: frames of the videos that are scored together; a longer video is scored alone.
    product_bytes: region similarities before they are reduced. batch_elements: frame similarities in a comparator batch of
    several pairs. strip_elements: frame similarities in a strip of one large pair. workers: threads that compute pairs
    independently, with one core each; 0: one thread, and torch spreads each operation over the cores.
    """

    query_frames: int = 1024
    reference_frames: int = 256
    product_bytes: int = 2**20
    batch_elements: int = 2**16
    strip_elements: int = 2**21
    workers: int = 0

    @classmethod
    def for_device(cls, device: torch.device) -> Limits:
        """Limits for the cores of a processor and their caches, or for the memory of an accelerator."""
        if device.type == "cpu":
            num_threads = torch.get_num_threads()
            return cls(workers=num_threads if num_threads > 1 else 0)
        return cls(
            query_frames=2**13, reference_frames=2**13, product_bytes=2**30, batch_elements=2**23, strip_elements=2**24
        )


@dataclass(frozen=True)
class PackedVideos:
    """Embeddings of videos one after the other. frames: [sum of lengths, R, D]; lengths: frames of each video, >= 1."""

    frames: Tensor
    lengths: tuple[int, ...]

    @classmethod
    def from_videos(cls, videos: Sequence[Tensor]) -> PackedVideos:
        """Pack embeddings [T, R, D] of any lengths T."""
        return cls(torch.cat(list(videos)), tuple(len(video) for video in videos))

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First row of each video."""
        return tuple(accumulate(self.lengths[:-1], initial=0))

    def part(self, first: int, last: int) -> PackedVideos:
        """The videos from `first` to `last` - 1."""
        end = self.starts[last - 1] + self.lengths[last - 1]
        return PackedVideos(self.frames[self.starts[first] : end], self.lengths[first:last])
