"""Frames to features: batches across videos through a frozen network, results back per video."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hapvr.features.backbone import Backbone, frame_side
from hapvr.features.executor import Executor, FrozenFunction
from hapvr.features.settings import NUM_REGIONS, Precision
from hapvr.features.teacher import Teacher
from hapvr.features.whitening import Whitening
from hapvr.model.side import join_side, split_side

Item = TypeVar("Item")

READ_AHEAD = 2
"""Clips decoded while the network is busy; this bounds memory."""


def separate_side(values: Tensor, side_dims: int) -> list[npt.NDArray[np.float32]]:
    """What `region_embedder` made, as stored columns: regions [B, 9, D], and with side_dims > 0 pooled [B, C], magnitude [B]."""
    if not side_dims:
        return [values.numpy()]
    regions, side = split_side(values, side_dims=side_dims)
    return [regions.numpy(), side.pooled.numpy(), side.magnitude.numpy()]


class Embedder:
    """Frames to vectors by a frozen network: [B, 3, S, S] uint8 -> [B, ...] float32 on the CPU."""

    def __init__(
        self,
        executor: Executor,
        *,
        before: Callable[[Tensor], Tensor] | None = None,
        after: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """before: what is done to the frames. after: what is done to the network's vectors, on the executor's device."""
        self.executor = executor
        self._before = before
        self._after = after

    def __call__(self, frames: Tensor) -> Tensor:
        given = frames.to(self.executor.device)
        vectors = self.executor(given if self._before is None else self._before(given))
        return (vectors if self._after is None else self._after(vectors)).cpu()

    def expect(self, num_frames: int) -> None:
        """Say that so many frames are to come, see `Executor.expect`."""
        self.executor.expect(num_frames)

    def environment(self) -> dict[str, str]:
        """What ran the network so far, for the provenance; it is no part of what the vectors are."""
        return {f"{self.executor.section}.executor": self.executor.used} if self.executor.used else {}


def region_embedder(
    backbone: Backbone, whitening: Whitening | None, device: torch.device | str, *, side: bool = False
) -> Embedder:
    """[B, 3, H, W] uint8 crops -> [B, 9, D] float32 regions on the CPU; moves the network to `device` once.

    whitening: none gives regions as the network has them. side: append the pooled vector and magnitude of each frame, see
    `hapvr.model.side`.
    """
    content = {**backbone.settings, "mean": backbone.mean, "std": backbone.std, "side": side}

    def run(frames: Tensor, precision: Precision) -> Tensor:
        chosen = replace(backbone, precision=precision)
        return chosen.regions_and_means(frames) if side else chosen.regions(frames)

    function = FrozenFunction(backbone.network, run, content, backbone.crop_px, backbone.precision, "backbone")
    executor = Executor(function, backbone.executor, device)
    moved = None if whitening is None else whitening.to(executor.device)

    def whitened(regions: Tensor) -> Tensor:
        return regions if moved is None else moved.apply(regions)

    def with_side(vectors: Tensor) -> Tensor:
        regions = vectors[:, :NUM_REGIONS]
        return join_side(whitened(regions), frame_side(vectors))

    return Embedder(executor, after=with_side if side else whitened)


def teacher_embedder(teacher: Teacher, device: torch.device | str) -> Embedder:
    """[B, 3, S, S] uint8 crops -> [B, D'] float32 embeddings on the CPU; moves the network to `device` once."""
    content = {**teacher.settings, "mean": teacher.mean, "std": teacher.std, "input": teacher.input}

    def run(frames: Tensor, precision: Precision) -> Tensor:
        return replace(teacher, precision=precision).embed(frames)

    function = FrozenFunction(teacher.network, run, content, teacher.crop_px, teacher.precision, "teacher")
    return Embedder(Executor(function, teacher.executor, device), before=teacher.resized)


@dataclass(frozen=True)
class FrameNetwork:
    """A frozen network and the size of its batches. embed: [B, 3, H, W] uint8 -> [B, ...] on the CPU; batch_frames: B."""

    embed: Callable[[Tensor], Tensor]
    batch_frames: int


def embed_in_batches(
    clips: Iterable[tuple[str, Tensor]], embed: Callable[[Tensor], Tensor], *, batch_frames: int
) -> Iterator[tuple[str, Tensor]]:
    """As `embed_by_networks`, with one network: yields (key, [N, ...]) in order."""
    for key, (values,) in embed_by_networks(clips, [FrameNetwork(embed, batch_frames)]):
        yield key, values


@torch.inference_mode()
def embed_by_networks(
    clips: Iterable[tuple[str, Tensor]], networks: Sequence[FrameNetwork]
) -> Iterator[tuple[str, list[Tensor]]]:
    """Run each network over the frames of many clips, a full batch at a time whatever the clips' lengths.

    The clips are made in a thread, READ_AHEAD of them in advance, so that decoding and networks overlap.

    clips: (key, [N, 3, H, W] uint8), all of one size. Yields (key, [N, ...] of each network) in order. For each network
    memory holds one batch and the results of the clips in it, and beside them the clips made in advance.
    """
    keys: deque[str] = deque()
    batchers = [_Batcher(network) for network in networks]

    def finished() -> Iterator[tuple[str, list[Tensor]]]:
        while all(batcher.finished for batcher in batchers):
            yield keys.popleft(), [batcher.finished.popleft() for batcher in batchers]

    for key, frames in read_ahead(clips):
        keys.append(key)
        for batcher in batchers:
            batcher.add(frames)
        yield from finished()
    for batcher in batchers:
        batcher.flush()
    yield from finished()


class _Batcher:
    """Collects the frames of clips into batches, and the batches' results into those of clips."""

    def __init__(self, network: FrameNetwork) -> None:
        self._network = network
        self._waiting: deque[int] = deque()
        """Frames of each clip that is not finished."""
        self._pending = torch.empty(0)
        self._results: list[Tensor] = []
        self._num_results = 0
        self.finished: deque[Tensor] = deque()
        """[N, ...] of each finished clip, in order."""

    def add(self, frames: Tensor) -> None:
        """Take the frames of one clip, and run all batches that are full."""
        self._waiting.append(len(frames))
        self._pending = torch.cat([self._pending, frames]) if len(self._pending) else frames
        size = self._network.batch_frames
        while len(self._pending) >= size:
            self._run(self._pending[:size])
            self._pending = self._pending[size:]

    def flush(self) -> None:
        """Run the last batch, which need not be full."""
        if len(self._pending):
            self._run(self._pending)

    def _run(self, batch: Tensor) -> None:
        self._results.append(self._network.embed(batch))
        self._num_results += len(batch)
        while self._waiting and self._num_results >= self._waiting[0]:
            count = self._waiting.popleft()
            joined = torch.cat(self._results)
            self.finished.append(joined[:count])
            self._results, self._num_results = [joined[count:]], self._num_results - count


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
