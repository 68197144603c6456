"""Which executor runs a frozen network, torch or OpenVINO, and with `precision: auto` in which precision.

OpenVINO runs convolutional networks 1.5 to 3.8 times as fast on processors, and transformers hardly faster
(docs/experiments.md). A conversion takes seconds. So `auto` runs the first frames in torch, unless a stage has said that
many are to come. Then it converts the network, compares and times both on a probe batch, and keeps conversion and
measurement in a cache, from which later processes start at once. Whatever executor made them, features agree to
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
from hapvr.features.conversions import CONVERSION_FILE, Measured, Run, conversion_of
from hapvr.features.openvino_network import (
    FrameFunction,
    OpenVINONetwork,
    OpenVINOUnavailable,
    convert,
    require_openvino,
)
from hapvr.features.settings import ExecutorChoice, Precision, PrecisionChoice
from hapvr.seeding import torch_rng

PATIENCE_FRAMES = 128
"""`auto` converts after so many frames: about where a conversion has paid for itself."""

PROBE_FRAMES = 8
AGREEMENT: dict[Precision, float] = {"float32": 0.99999, "bfloat16": 0.999, "float16": 0.999}
"""Lowest cosine of a probe's vectors to torch's in float32 at which an executor counts as giving the same."""

FORMAT = 2
"""Of what is converted and measured; another one makes all of it anew."""

MEASURED_PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
"""Between which `precision: auto` chooses. The first runs until it has."""


@dataclass(frozen=True)
class FrozenFunction:
    """A frozen network with what comes before and after it.

    run: [B, 3, crop_px, crop_px] uint8 on the network's device and a precision -> [B, ..., C] float32. content: all that
    determines the result, for the name of a conversion. section: of the configuration, for messages.
    """

    network: nn.Module
    run: Callable[[Tensor, Precision], Tensor]
    content: Mapping[str, Any]
    crop_px: int
    precision: PrecisionChoice
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
        self._precisions = MEASURED_PRECISIONS if function.precision == "auto" else (function.precision,)
        self._use_torch(self._precisions[0])
        self._decided = self._choice == "torch" and len(self._precisions) == 1
        self._deciding = threading.Lock()
        self._num_frames = 0
        self._used: dict[str, None] = {}

    @property
    def used(self) -> str:
        """What ran so far, e.g. `torch, openvino 2026.4.1`; empty if nothing did. With `precision: auto` it is named, too."""
        return ", ".join(self._used)

    def __call__(self, frames: Tensor) -> Tensor:
        """Raises ConfigError if OpenVINO is asked for and cannot be used."""
        with self._deciding:
            if not self._decided:
                self._decide_when_due(len(frames))
        self._used[self._name] = None
        return self._run(frames)

    def expect(self, num_frames: int) -> None:
        """Say that so many frames are to come: if a conversion pays for them, it is made before the first."""
        self._num_frames += num_frames

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
                measured = stored.measured(self._measure)
            chosen = self._chosen(measured)
            if chosen.executor == "openvino":
                self._use_openvino(OpenVINONetwork(stored.folder / CONVERSION_FILE, precision=chosen.precision), chosen)
            else:
                self._use_torch(chosen.precision)
        except OpenVINOUnavailable as error:
            if self._choice == "openvino":
                raise self._refused(str(error)) from error
            self._warn(error)
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
            "openvino": "not asked for" if self._choice == "torch" else require_openvino(),
            "torch": torch.__version__,
            "processor": processor(self.device),
        }

    def _chosen(self, measured: Measured) -> Run:
        """The fastest of those that agree with torch. Raises OpenVINOUnavailable if that is asked for and none does."""
        agree = [run for run in measured.runs if run.agreement >= AGREEMENT[run.precision]]
        converted = [run for run in agree if run.executor == "openvino"]
        if self._choice != "torch" and not converted:
            worst = min((run.agreement for run in measured.runs if run.executor == "openvino"), default=0.0)
            error = OpenVINOUnavailable(
                measured.unavailable or f"OpenVINO gives other vectors than torch: their cosine is {worst:.6f}"
            )
            if self._choice == "openvino":
                raise error
            self._warn(error)
        first = measured.runs[0]  # torch in the precision that is asked for needs no excuse
        allowed = converted if self._choice == "openvino" else [first, *agree]
        return min(allowed, key=lambda run: run.seconds)

    def _measure(self, folder: Path) -> Measured:
        """Convert into a folder, and time all that could run; a network that cannot be converted is a result too."""
        function, path = self._function, folder / CONVERSION_FILE
        runners: dict[tuple[ExecutorChoice, Precision], Callable[[Tensor], Tensor]] = {
            ("torch", precision): self._torch(precision) for precision in self._precisions
        }
        unavailable = ""
        if self._choice != "torch":
            try:
                exact = FrameFunction(function.network, self._torch("float32"))
                convert(exact, crop_px=function.crop_px, path=path)
                for precision in self._precisions:
                    runners["openvino", precision] = OpenVINONetwork(path, precision=precision)
            except OpenVINOUnavailable as error:
                unavailable = str(error)
        probe = probe_frames(function.crop_px).to(self.device)
        with torch.inference_mode():
            wanted = function.run(probe, "float32").double()
            found = {name: run(probe).double() for name, run in runners.items()}  # prepares them for this size, too
            agreements = {name: _lowest_cosine(wanted, vectors) for name, vectors in found.items()}
            seconds: dict[tuple[ExecutorChoice, Precision], list[float]] = {name: [] for name in runners}
            for _ in range(2):
                for name, run in reversed(runners.items()):
                    seconds[name].append(timed(run, probe))
        return Measured(tuple(Run(*name, agreements[name], min(seconds[name])) for name in runners), unavailable)

    def _torch(self, precision: Precision) -> Callable[[Tensor], Tensor]:
        return lambda frames: self._function.run(frames, precision)

    def _use_torch(self, precision: Precision) -> None:
        self._run: Callable[[Tensor], Tensor] = self._torch(precision)
        self._name = self._named("torch", precision)

    def _use_openvino(self, network: OpenVINONetwork, run: Run) -> None:
        self._run = network
        self._name = self._named(f"openvino {network.version}", run.precision)

    def _named(self, executor: str, precision: Precision) -> str:
        return executor if len(self._precisions) == 1 else f"{executor} {precision}"

    def _warn(self, error: OpenVINOUnavailable) -> None:
        warnings.warn(f"{self.section}: it runs in torch, since {error}", stacklevel=5)

    def _refused(self, reason: str) -> ConfigError:
        return ConfigError(
            f"{self.section}.executor: openvino is asked for, but {reason}; set {self.section}.executor to auto or torch"
        )


def timed(run: Callable[[Tensor], Tensor], probe: Tensor) -> float:
    """Seconds until the result of a run on a probe batch is in main memory."""
    start = time.perf_counter()
    run(probe).cpu()
    return time.perf_counter() - start


def _lowest_cosine(wanted: Tensor, found: Tensor) -> float:
    return float(F.cosine_similarity(wanted, found, dim=-1).min())


def probe_frames(crop_px: int) -> Tensor:
    """[PROBE_FRAMES, 3, crop_px, crop_px] uint8: seeded patterns, from coarse to fine."""
    rng = torch_rng("executor probe")
    frames = []
    for number in range(PROBE_FRAMES):
        cells = 4 * 2 ** (number % 5)
        coarse = torch.randint(0, 256, (1, 3, cells, cells), generator=rng, dtype=torch.uint8).float()
        frames.append(F.interpolate(coarse, size=(crop_px, crop_px), mode="bilinear").round().to(torch.uint8))
    return torch.cat(frames)


def processor(device: torch.device) -> str:
    """A GPU's name, or a digest of the processor's name and instructions."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    said = sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]
