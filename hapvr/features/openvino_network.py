"""A frozen network in OpenVINO: converted from torch, stored as a file, and run on a processor.

OpenVINO is imported here alone, and where it is first used. Its telemetry stays off: with the package
`openvino-telemetry`, which it depends on, merely importing it would send a message to its makers.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from hapvr.features.settings import Precision

HINTS: dict[Precision, tuple[str, str]] = {
    "float32": ("f32", "FP32"),
    "bfloat16": ("bf16", "BF16"),
    "float16": ("f16", "FP16"),
}
"""By precision: what OpenVINO calls it, and the capability that a processor needs for it."""

TELEMETRY = "openvino_telemetry"

_cores: list[Any] = []
_one_at_a_time = threading.Lock()


class OpenVINOUnavailable(Exception):
    """OpenVINO cannot run this network here; the message says why, as the end of a sentence."""


class FrameFunction(nn.Module):
    """A frozen network with what comes before and after it: [B, 3, S, S] uint8 -> [B, ...] float32."""

    def __init__(self, network: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.network = network
        self.function = function

    def forward(self, frames: Tensor) -> Tensor:
        return self.function(frames)


def require_openvino() -> str:
    """The installed version. Raises OpenVINOUnavailable without it, or on a processor that it does not support."""
    try:
        found = version("openvino")
    except PackageNotFoundError:
        raise OpenVINOUnavailable("OpenVINO is not installed (`pip install openvino`)") from None
    if torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "NO AVX"):
        raise OpenVINOUnavailable("this processor has no AVX2")
    return found


def convert(function: FrameFunction, *, crop_px: int, path: Path) -> None:
    """Write the function as `path` (.xml) and its weights beside it (.bin), for batches of any length.

    Raises OpenVINOUnavailable for a network that OpenVINO cannot convert.
    """
    openvino = _openvino()
    example = torch.zeros(2, 3, crop_px, crop_px, dtype=torch.uint8)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of tracing: sizes become constants, as they shall
            model = openvino.convert_model(function.eval(), example_input=example)
        model.reshape([-1, 3, crop_px, crop_px])
        openvino.save_model(model, path, compress_to_fp16=False)
    except Exception as error:  # the converter raises RuntimeError, TypeError, ValueError and classes of its own
        said = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
        raise OpenVINOUnavailable(f"OpenVINO cannot convert it ({said.strip()[:200]})") from error


class OpenVINONetwork:
    """A stored conversion, ready to run: [B, 3, S, S] uint8 -> [B, ...] float32, both on the CPU. Any thread may call it.

    It takes as many threads as torch does, of the processors that this process may use, and pins none of them: other
    processes work beside it.
    """

    def __init__(self, path: Path, *, precision: Precision) -> None:
        """Raises OpenVINOUnavailable if the file cannot be read or the processor lacks the precision."""
        self.version = require_openvino()
        hint, capability = HINTS[precision]
        core = _core()
        if capability not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise OpenVINOUnavailable(f"this processor has no instructions for {precision}")
        try:
            compiled = core.compile_model(path, "CPU", _properties(hint))
        except RuntimeError as error:
            raise OpenVINOUnavailable(f"OpenVINO cannot load it ({str(error).splitlines()[-1][:200]})") from error
        self._request: Any = compiled.create_infer_request()
        self._lock = threading.Lock()

    def __call__(self, frames: Tensor) -> Tensor:
        with self._lock:
            self._request.infer([frames.contiguous().numpy()], share_inputs=True)
            return torch.from_numpy(self._request.get_output_tensor(0).data.copy())


def _properties(hint: str) -> dict[str, Any]:
    threads = min(torch.get_num_threads(), len(os.sched_getaffinity(0)))
    return {
        "INFERENCE_PRECISION_HINT": hint,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
    }


def _core() -> Any:
    """The one `Core` of this process, which keeps it for ever.

    The CPU plugin that a Core loads gives its thread a signal stack, and puts back the former one when it goes. If two of
    them go in the order in which they came, the thread is left with a stack that was freed, and the next signal that
    Python handles ends the process.
    """
    with _one_at_a_time:
        if not _cores:
            _cores.append(_openvino().Core())
        return _cores[0]


def _openvino() -> ModuleType:
    """The library, imported as if its telemetry package were not installed: it then has a stand-in that sends nothing."""
    if "openvino" not in sys.modules:
        absent = TELEMETRY not in sys.modules
        if absent:
            sys.modules[TELEMETRY] = None  # type: ignore[assignment]
        try:
            import openvino  # noqa: F401
        finally:
            if absent:
                del sys.modules[TELEMETRY]
    return sys.modules["openvino"]
