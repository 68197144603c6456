"""Which executor runs a frozen network: torch or OpenVINO.

OpenVINO runs convolutional networks 1.5 to 3.8 times as fast on processors, and transformers hardly faster
(docs/experiments.md). A conversion takes seconds. So `auto` runs
the first frames in torch. Then it converts the network, compares and times both on a probe batch, and keeps conversion
and measurement in a cache, from which later processes start at once. Whatever executor made them, features agree to
rounding, so the executor is no part of what features are.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr import __version__
from hapvr.errors import ConfigError
from hapvr.features.conversions import CONVERSION_FILE, Measured, conversion_of
from hapvr.features.openvino_network import (
    FrameFunction,
    OpenVINONetwork,
    OpenVINOUnavailable,
    convert,
    require_openvino,
)
from hapvr.features.settings import ExecutorChoice, Precision
from hapvr.seeding import torch_rng

PATIENCE_FRAMES = 128
"""`auto` converts after so many frames: about where a conversion has paid for itself."""

PROBE_FRAMES = 8
AGREEMENT: dict[Precision, float] = {"float32": 0.99999, "bfloat16": 0.999, "float16": 0.999}
"""Lowest cosine of a probe's vectors to torch's in float32 at which an executor counts as giving the same."""

FORMAT = 1
"""Of what is converted; another one makes all conversions anew."""


@dataclass(frozen=True)
class FrozenFunction:
    """A frozen network with what comes before and after it.

    run: [B, 3, crop_px, crop_px] uint8 on the network's device -> [B, ..., C] float32, in `precision`. exact: the same in
    float32. content: all that determines the result, for the name of a conversion. section: of the configuration, for
    messages.
    """

    network: nn.Module
    run: Callable[[Tensor], Tensor]
    exact: Callable[[Tensor], Tensor]
    content: Mapping[str, Any]
    crop_px: int
    precision: Precision
    section: str


class Executor:
    """Runs a frozen function on batches of crops: [B, 3, S, S] uint8 -> [B, ..., C] float32, both on `device`."""

    def __init__(self, function: FrozenFunction, choice: ExecutorChoice, device: torch.device | str) -> None:
        """Moves the network to `device`. Raises ConfigError if OpenVINO is asked for on a GPU."""
        self._function = function
        self.device = torch.device(device)
        self.section = function.section
        self._choice: ExecutorChoice = choice if self.device.type == "cpu" else "torch"
        if choice == "openvino" and self._choice == "torch":
            raise self._refused(f"the device is {self.device.type}")
        function.network.to(self.device)
        self._faster: OpenVINONetwork | None = None
        self._decided = self._choice == "torch"
        self._deciding = threading.Lock()
        self._num_frames = 0
        self._used: dict[str, None] = {}

    @property
    def used(self) -> str:
        """What ran so far, e.g. `torch, openvino 2026.4.1`; empty if nothing did."""
        return ", ".join(self._used)

    def __call__(self, frames: Tensor) -> Tensor:
        """Raises ConfigError if OpenVINO is asked for and cannot be used."""
        with self._deciding:
            if not self._decided:
                self._decide_when_due(len(frames))
        if self._faster is not None:
            self._used[f"openvino {self._faster.version}"] = None
            return self._faster(frames)
        self._used["torch"] = None
        return self._function.run(frames)

    def decide(self) -> Executor:
        """Choose now, so that all frames are run by one executor. Returns itself."""
        with self._deciding:
            if not self._decided:
                self._decide_when_due(PATIENCE_FRAMES)
        return self

    def _decide_when_due(self, num_frames: int) -> None:
        self._num_frames += num_frames
        due = self._choice == "openvino" or self._num_frames >= PATIENCE_FRAMES
        try:
            stored = conversion_of(self.content())
            if not due and not stored.exists:
                return
            with torch.inference_mode(False):
                measured = stored.measured(self._convert)
            self._faster = self._chosen(measured, stored.folder / CONVERSION_FILE)
        except OpenVINOUnavailable as error:
            if self._choice == "openvino":
                raise self._refused(str(error)) from error
            warnings.warn(f"{self.section}: it runs in torch, since {error}", stacklevel=3)
        self._decided = True

    def content(self) -> dict[str, Any]:
        """All that determines a conversion and whether it is worth its while."""
        return {
            **self._function.content,
            "section": self.section,
            "crop_px": self._function.crop_px,
            "precision": self._function.precision,
            "format": FORMAT,
            "hapvr": __version__,
            "openvino": require_openvino(),
            "torch": torch.__version__,
            "processor": processor(),
        }

    def _chosen(self, measured: Measured, path: Path) -> OpenVINONetwork | None:
        if measured.unavailable:
            raise OpenVINOUnavailable(measured.unavailable)
        wanted = AGREEMENT[self._function.precision]
        if not measured.agreement >= wanted:
            raise OpenVINOUnavailable(
                f"OpenVINO gives other vectors than torch: their cosine is {measured.agreement:.6f}, wanted {wanted}"
            )
        if self._choice == "auto" and measured.openvino_s >= measured.torch_s:
            return None
        return OpenVINONetwork(path, precision=self._function.precision)

    def _convert(self, folder: Path) -> Measured:
        """Convert into a folder, and measure; a network that cannot be converted is a result too."""
        function = self._function
        path = folder / CONVERSION_FILE
        try:
            convert(FrameFunction(function.network, function.exact), crop_px=function.crop_px, path=path)
            converted = OpenVINONetwork(path, precision=function.precision)
        except OpenVINOUnavailable as error:
            return Measured(unavailable=str(error))
        probe = probe_frames(function.crop_px)
        seconds: dict[str, list[float]] = {"torch": [], "openvino": []}
        with torch.inference_mode():
            found, wanted = converted(probe), function.exact(probe)  # also prepares both for batches of this size
            for _ in range(2):
                for name, run in (("openvino", converted), ("torch", function.run)):
                    start = time.perf_counter()
                    run(probe)
                    seconds[name].append(time.perf_counter() - start)
        cosine = F.cosine_similarity(wanted.double(), found.double(), dim=-1).min()
        return Measured(float(cosine), min(seconds["torch"]), min(seconds["openvino"]))

    def _refused(self, reason: str) -> ConfigError:
        return ConfigError(
            f"{self.section}.executor: openvino is asked for, but {reason}; set {self.section}.executor to auto or torch"
        )


def probe_frames(crop_px: int) -> Tensor:
    """[PROBE_FRAMES, 3, crop_px, crop_px] uint8: seeded patterns, from coarse to fine."""
    rng = torch_rng("executor probe")
    frames = []
    for number in range(PROBE_FRAMES):
        cells = 4 * 2 ** (number % 5)
        coarse = torch.randint(0, 256, (1, 3, cells, cells), generator=rng, dtype=torch.uint8).float()
        frames.append(F.interpolate(coarse, size=(crop_px, crop_px), mode="bilinear").round().to(torch.uint8))
    return torch.cat(frames)


def processor() -> str:
    """A digest of the processor's name and instructions."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    said = sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]
