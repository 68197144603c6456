"""Frames to features: batches across videos through a frozen network, results back per video."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from hapvr.errors import on_processor
from hapvr.model.settings import NUM_REGIONS
from hapvr.networks.engine import CompiledNetwork, EngineError, compile_frozen
from hapvr.networks.packaged import PackagedBackbone, is_packaged, packaged_backbone
from hapvr.networks.settings import BATCH_FRAMES, BackboneConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from hapvr.networks.backbone import Backbone
    from hapvr.networks.teacher import Teacher
    from hapvr.networks.whitening import Whitening

Item = TypeVar("Item")
Frames = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]
Embed = Callable[[Frames], Vectors]
"""Frames to vectors: [B, 3, S, S] uint8 -> [B, ...] float32."""

READ_AHEAD = 2
"""Clips decoded while the network is busy; this bounds memory."""


def open_backbone(config: BackboneConfig, device: str, *, extras: bool = False) -> Backbone | PackagedBackbone:
    """The backbone of a configuration, without torch where a processor runs a packaged one. extras: see `region_embedder`.

    Raises as `load_backbone` and `packaged_backbone` do.
    """
    if on_processor(device) and is_packaged(config) and not extras:
        return packaged_backbone(config)
    from hapvr.networks.backbone import load_backbone

    return load_backbone(config)


def _embedder(
    frozen: Backbone | Teacher,
    method: str,
    device: torch.device,
    *,
    before: Callable[[Tensor], Tensor] = lambda frames: frames,
    after: Callable[[Tensor], Tensor] = lambda vectors: vectors,
) -> Embed:
    """Frames to vectors by a frozen network of torch, which is moved to `device`.

    A processor runs it by OpenVINO, into which it is converted at the first batch, a GPU by torch. Vectors agree to
    rounding. method: of `frozen`, that runs. before: what is done to the frames, and after: to the vectors, both on the
    device.
    """
    import torch

    frozen.network.to(device)

    @cache
    def run() -> Callable[[Tensor], Tensor]:
        in_torch: Callable[[Tensor], Tensor] = getattr(frozen, method)
        if device.type != "cpu":
            return in_torch
        exact = getattr(replace(frozen, precision="float32"), method)
        key = f"{method} {replace(frozen, network=None)}"  # type: ignore[arg-type]
        try:
            network = compile_frozen(frozen.network, exact, key=key, crop_px=frozen.crop_px, precision=frozen.precision)
        except EngineError as error:
            warnings.warn(f"{frozen.section}: it runs in torch, since {error}", stacklevel=3)
            return in_torch
        return lambda frames: torch.from_numpy(network(frames.numpy()))

    def embed(frames: Frames) -> Vectors:
        with torch.inference_mode():
            vectors = after(run()(before(torch.from_numpy(frames).to(device)))).cpu()
        return np.asarray(vectors.numpy())

    return embed


def region_embedder(
    backbone: Backbone | PackagedBackbone,
    whitening: Whitening | None,
    device: torch.device | str,
    *,
    extras: bool = False,
) -> Embed:
    """[B, 3, H, W] uint8 crops -> [B, 9, D] float32 regions; moves a network of torch to `device` once.

    whitening: none gives regions as the network has them. extras: append the pooled vector and magnitude of each frame, see
    `hapvr.model.frame_extras`.
    """
    if isinstance(backbone, PackagedBackbone):
        return CompiledNetwork(backbone.graph(whitening).SerializeToString(), precision=backbone.precision)
    import torch
    from torch.nn import functional as F

    device = choose_device(device)
    from hapvr.model.frame_extras import join_extras
    from hapvr.networks.backbone import frame_extras

    def whitened(regions: Tensor) -> Tensor:
        if whitening is None:
            return regions
        whitening.require(regions.shape[-1])
        return F.normalize((regions - mean) @ scale, dim=-1)

    def with_extras(vectors: Tensor) -> Tensor:
        return join_extras(whitened(vectors[:, :NUM_REGIONS]), *frame_extras(vectors))

    if whitening is not None:
        mean, scale = (torch.from_numpy(part).to(device) for part in (whitening.mean, whitening.scale))
    if extras:
        return _embedder(backbone, "regions_and_means", device, after=with_extras)
    return _embedder(backbone, "regions", device, after=whitened)


def teacher_embedder(teacher: Teacher, device: torch.device | str) -> Embed:
    """[B, 3, S, S] uint8 crops -> [B, D'] float32 embeddings; moves the network to `device` once."""
    return _embedder(teacher, "embed", choose_device(device), before=teacher.resized)


def embed_by_networks(
    clips: Iterable[tuple[str, Frames]], networks: Sequence[Embed], *, batch_frames: int = BATCH_FRAMES
) -> Iterator[tuple[str, list[Vectors]]]:
    """Run each network over the frames of many clips, a full batch at a time whatever the clips' lengths.

    clips: (key, [N, 3, H, W] uint8), all of one size, made in a thread READ_AHEAD of them in advance. Yields (key, [N, ...]
    of each network) in order. Memory holds one batch, the results of its clips, and the clips made in advance.
    """
    waiting: deque[tuple[str, int]] = deque()
    pending: Frames = np.empty(0, np.uint8)
    made: list[list[Vectors]] = [[] for _ in networks]
    num_made = 0

    def run(batch: Frames) -> Iterator[tuple[str, list[Vectors]]]:
        nonlocal made, num_made
        for results, embed in zip(made, networks, strict=True):
            results.append(embed(batch))
        num_made += len(batch)
        while waiting and num_made >= waiting[0][1]:
            key, count = waiting.popleft()
            joined = [np.concatenate(results) for results in made]
            yield key, [values[:count] for values in joined]
            made, num_made = [[values[count:]] for values in joined], num_made - count

    for key, frames in read_ahead(clips):
        waiting.append((key, len(frames)))
        pending = np.concatenate([pending, frames]) if len(pending) else frames
        while len(pending) >= batch_frames:
            yield from run(pending[:batch_frames])
            pending = pending[batch_frames:]
    if len(pending):
        yield from run(pending)


def read_ahead(items: Iterable[Item]) -> Generator[Item, None, None]:
    """The same items, made in a thread READ_AHEAD of them in advance; an exception comes after the items before it."""
    iterator = iter(items)
    end: Any = object()
    with ThreadPoolExecutor(1, "read ahead") as thread:
        made = deque(thread.submit(next, iterator, end) for _ in range(READ_AHEAD))
        try:
            while (item := made.popleft().result()) is not end:
                made.append(thread.submit(next, iterator, end))
                yield item
        finally:
            for waiting in made:
                waiting.cancel()
            if isinstance(iterator, Generator):
                thread.submit(iterator.close)


def choose_device(name: str | torch.device) -> torch.device:
    """`auto` is the first CUDA device where there is one."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)
