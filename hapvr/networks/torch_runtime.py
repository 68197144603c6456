"""Frozen networks of torch, frames to vectors: a GPU runs them in torch, a CPU in OpenVINO, to
which they are converted at the first batch. Vectors agree to rounding."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.errors import ConfigError, DataError
from hapvr.networks.batches import Embed, Frames, Vectors
from hapvr.networks.openvino_runtime import CompiledNetwork, convert_from_torch
from hapvr.networks.whitening import Whitening

LEAST_AGREEMENT = 0.95
"""The least cosine between vectors of OpenVINO and torch; half precision gives 0.99 and more."""

_compiled: dict[str, CompiledNetwork] = {}
_one_at_a_time = threading.RLock()


class Graph(nn.Module):
    """A function of one or two tensors, and the module whose weights it uses, for converters to
    other formats."""

    def __init__(self, run: Callable[..., Tensor], network: nn.Module) -> None:
        super().__init__()
        self.run = run
        self.network = network

    def forward(self, first: Tensor, second: Tensor | None = None) -> Tensor:
        return self.run(first) if second is None else self.run(first, second)


def choose_device(name: str | torch.device) -> torch.device:
    """`auto` is the first CUDA device where there is one. Raises ConfigError for `cuda` where there
    is none."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "device is cuda, and torch finds no GPU that it can use; set device: auto, or cpu"
        )

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def whitened(whitening: Whitening | None, device: torch.device) -> Callable[[Tensor], Tensor]:
    """A function that whitens regions [..., C] on a device: `Whitening.apply`, or the identity
    without one."""
    if whitening is None:
        return lambda regions: regions
    mean = torch.from_numpy(whitening.mean).to(device)
    scale = torch.from_numpy(whitening.scale).to(device)

    def apply(regions: Tensor) -> Tensor:
        whitening.require(regions.shape[-1])
        return F.normalize((regions - mean) @ scale, dim=-1)

    return apply


def torch_embedder(
    frozen: Any,
    method: str,
    device: torch.device,
    *,
    before: Callable[[Tensor], Tensor] = lambda frames: frames,
    after: Callable[[Tensor], Tensor] = lambda vectors: vectors,
) -> Embed:
    """Frames to vectors by a frozen network of torch (`FrozenNetwork`), which is moved to `device`.
    method: the one of `frozen` that runs. before: applied to the frames; after: applied to the
    vectors; both on the device."""
    frozen.network.to(device)

    @cache
    def run() -> Callable[[Tensor], Tensor]:
        in_torch: Callable[[Tensor], Tensor] = getattr(frozen, method)
        if device.type != "cpu":
            return in_torch
        try:
            network = _compile(frozen, method)
        except DataError as error:
            warnings.warn(f"{frozen.section}: it runs in torch, since {error}")
            return in_torch

        return lambda frames: torch.from_numpy(network(frames.numpy()))

    def embed(frames: Frames) -> Vectors:
        with torch.inference_mode():
            shown = before(torch.from_numpy(np.ascontiguousarray(frames)).to(device))
            vectors = after(run()(shown))
        return np.asarray(vectors.cpu().numpy())

    return embed


def _compile(frozen: Any, method: str) -> CompiledNetwork:
    """A method of a frozen network, [B, 3, crop_px, crop_px] uint8 -> [B, ...] float32, for any B.
    It is converted once per process, which takes seconds. Raises DataError for a method that
    OpenVINO cannot convert."""
    run = getattr(replace(frozen, precision="float32"), method)
    key = f"{method} {replace(frozen, network=None)}"

    with _one_at_a_time, torch.no_grad(), torch.autocast("cpu", enabled=False):
        if key in _compiled:
            return _compiled[key]
        size = (3, frozen.crop_px, frozen.crop_px)
        probe = torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=torch.Generator())
        model = convert_from_torch(run, probe[:2])
        network = CompiledNetwork(
            model, num_threads=torch.get_num_threads(), precision=frozen.precision
        )
        # A network whose code takes the batch size for a constant would silently give something
        # else.
        wanted = run(probe)
        vectors = torch.from_numpy(network(probe.numpy()))
        if vectors.shape != wanted.shape:
            raise DataError("OpenVINO gives other vectors than torch")
        if torch.cosine_similarity(wanted, vectors, dim=-1).min() < LEAST_AGREEMENT:
            raise DataError("OpenVINO gives other vectors than torch")
        return _compiled.setdefault(key, network)
