"""Batches across videos: frames of many clips through frozen networks, results back per clip."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hapvr.networks.settings import BATCH_FRAMES

Item = TypeVar("Item")
Frames = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]
Embed = Callable[[Frames], Vectors]
"""Frames to vectors: [B, 3, S, S] uint8 -> [B, ...] float32."""

READ_AHEAD = 2
"""How many clips are decoded while the network is busy; this limits memory."""


def opened_at_first_batch(open_network: Callable[[], Embed]) -> Embed:
    """A network that is opened when the first frames come, which takes up to a second: whoever
    finds all frames described needs none."""
    opened = cache(open_network)
    return lambda frames: opened()(frames)


def embed_by_networks(
    clips: Iterable[tuple[str, Frames]],
    networks: Sequence[Embed],
    *,
    batch_frames: int = BATCH_FRAMES,
) -> Iterator[tuple[str, list[Vectors]]]:
    """Run each network over the frames of many clips, in full batches whatever the clips' lengths.
    clips: (key, [N, 3, H, W] uint8), all of one size, made in a thread READ_AHEAD of them in
    advance. Yields (key, [N, ...] of each network) in order. Memory holds one batch, the results of
    its clips, and the clips made in advance."""
    waiting: deque[tuple[str, int]] = deque()
    pending: Frames = np.empty(0, np.uint8)
    results: list[list[Vectors]] = [[] for _ in networks]
    num_done = 0

    def run(batch: Frames) -> Iterator[tuple[str, list[Vectors]]]:
        nonlocal results, num_done
        for of_network, embed in zip(results, networks, strict=True):
            of_network.append(embed(batch))
        num_done += len(batch)
        while waiting and num_done >= waiting[0][1]:
            key, count = waiting.popleft()
            joined = [np.concatenate(of_network) for of_network in results]
            yield key, [values[:count] for values in joined]
            results = [[values[count:]] for values in joined]
            num_done -= count

    for key, frames in read_ahead(clips):
        waiting.append((key, len(frames)))
        pending = np.concatenate([pending, frames]) if len(pending) else frames
        while len(pending) >= batch_frames:
            yield from run(pending[:batch_frames])
            pending = pending[batch_frames:]

    if len(pending):
        yield from run(pending)


def read_ahead(items: Iterable[Item]) -> Generator[Item, None, None]:
    """The same items, made in a thread READ_AHEAD of them in advance; an exception comes after the
    items before it."""
    iterator = iter(items)
    end: Any = object()
    with ThreadPoolExecutor(1, "read ahead") as thread:
        waiting = deque(thread.submit(next, iterator, end) for _ in range(READ_AHEAD))
        try:
            item = waiting.popleft().result()
            while item is not end:
                waiting.append(thread.submit(next, iterator, end))
                yield item
                item = waiting.popleft().result()
        finally:
            for task in waiting:
                task.cancel()
            if isinstance(iterator, Generator):
                thread.submit(iterator.close)
