"""Frames to features: batches across videos through a frozen network, results back per video."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from hapvr.features.backbone import Backbone
from hapvr.features.whitening import Whitening

Item = TypeVar("Item")

READ_AHEAD = 2
"""Clips decoded while the network is busy; this bounds memory."""


def region_embedder(backbone: Backbone, whitening: Whitening, device: torch.device | str) -> Callable[[Tensor], Tensor]:
    """[B, 3, H, W] uint8 crops -> [B, 9, D] float32 whitened regions on the CPU; moves the network to `device` once."""
    backbone.network.to(device)
    moved = whitening.to(device)
    return lambda frames: moved.apply(backbone.regions(frames.to(device))).cpu()


@torch.inference_mode()
def embed_in_batches(
    clips: Iterable[tuple[str, Tensor]], embed: Callable[[Tensor], Tensor], *, batch_frames: int
) -> Iterator[tuple[str, Tensor]]:
    """Run `embed` over frames of many clips, `batch_frames` at a time whatever the clips' lengths.

    The clips are made in a thread, READ_AHEAD of them in advance, so that decoding and network overlap.

    clips: (key, [N, 3, H, W] uint8), all of one size. embed: [B, 3, H, W] -> [B, ...]. Yields (key, [N, ...]) in order.
    Memory holds one batch, the results of the clips in it, and the clips made in advance.
    """
    waiting: list[tuple[str, int]] = []
    pending = torch.empty(0)
    results: list[Tensor] = []
    frames_done = 0

    def finished() -> Iterator[tuple[str, Tensor]]:
        nonlocal results, frames_done
        while waiting and frames_done >= waiting[0][1]:
            key, count = waiting.pop(0)
            joined = torch.cat(results)
            yield key, joined[:count]
            results, frames_done = [joined[count:]], frames_done - count

    for key, frames in read_ahead(clips):
        waiting.append((key, len(frames)))
        pending = torch.cat([pending, frames]) if len(pending) else frames
        while len(pending) >= batch_frames:
            results.append(embed(pending[:batch_frames]))
            frames_done += batch_frames
            pending = pending[batch_frames:]
            yield from finished()
    if len(pending):
        results.append(embed(pending))
        frames_done += len(pending)
        yield from finished()


def read_ahead(items: Iterable[Item]) -> Generator[Item, None, None]:
    """The same items, made in a thread READ_AHEAD of them in advance; an exception comes after the items before it."""
    made: queue.Queue[tuple[Item] | BaseException | None] = queue.Queue(READ_AHEAD)
    stop = threading.Event()

    def put(entry: tuple[Item] | BaseException | None) -> None:
        while not stop.is_set():
            try:
                made.put(entry, timeout=0.1)
            except queue.Full:
                continue
            return

    def make() -> None:
        iterator = iter(items)
        try:
            for item in iterator:
                put((item,))
                if stop.is_set():
                    break
            put(None)
        except BaseException as error:
            put(error)
        finally:
            if isinstance(iterator, Generator):
                iterator.close()

    thread = threading.Thread(target=make, name="read ahead", daemon=True)
    thread.start()
    try:
        while (entry := made.get()) is not None:
            if isinstance(entry, BaseException):
                raise entry
            yield entry[0]
    finally:
        stop.set()
        thread.join()


def choose_device(name: str) -> torch.device:
    """`auto` is the first CUDA device where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)
