"""The engine that runs networks on processors: OpenVINO, for frozen networks and for the ONNX files of bundles.

It needs a third to a half of torch's processor time, and runs any length of batch or video. It is imported here alone,
where it is first used, and without torch.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hapvr.errors import DataError
from hapvr.networks.settings import Precision

if TYPE_CHECKING:
    from torch import Tensor, nn

LEAST_COSINE = 0.95
"""Minimum cosine between the vectors of a converted network and torch's; half precision gives 0.99 and more."""

KEPT_OPERATIONS = "64"
"""Operations prepared for sizes seen before. By default it keeps 5000 of them, which is a megabyte more for each new pair of
lengths of videos; 64 are as fast for batches, and cost a tenth for pairs that all have lengths of their own."""

CONTROL_FLOW = frozenset({"If", "Loop", "TensorIterator"})
"""Operations that run others, which our ONNX files have none of: a loop may never end."""

_cores: list[Any] = []
_kept: dict[str, CompiledNetwork] = {}
_one_at_a_time = threading.RLock()


class EngineError(DataError):
    """The engine cannot run this network here; the message says why, as the end of a sentence."""


class CompiledNetwork:
    """A network ready to run: arrays in, its first output out. Any thread may call it; one at a time runs.

    It pins no thread to a processor: other processes work at the same time.
    """

    def __init__(
        self, model: Path | bytes | Any, *, num_threads: int | None = None, precision: Precision = "float32"
    ) -> None:
        """model: an ONNX file, its content, or what `convert` gives. num_threads: None for all processors that this process may use.

        precision: bfloat16 is taken where the processor multiplies it. Raises EngineError for a file that cannot be read.
        """
        core = _core()
        half = precision == "bfloat16" and "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        properties = {
            "INFERENCE_PRECISION_HINT": "bf16" if half else "f32",
            "INFERENCE_NUM_THREADS": num_threads or len(os.sched_getaffinity(0)),
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,
            "CPU_RUNTIME_CACHE_CAPACITY": KEPT_OPERATIONS,
        }
        name = model if isinstance(model, Path) else "it"
        try:
            if isinstance(model, Path | bytes):
                model = core.read_model(model)
                if found := CONTROL_FLOW & {operation.get_type_name() for operation in model.get_ops()}:
                    raise RuntimeError(f"it has control flow: {', '.join(sorted(found))}")
            self._request: Any = core.compile_model(model, "CPU", properties).create_infer_request()
        except RuntimeError as error:
            raise EngineError(f"OpenVINO cannot load {name} ({_last_line(error)})") from error
        self._lock = threading.Lock()

    def __call__(self, *inputs: NDArray[Any]) -> NDArray[np.float32]:
        with self._lock:
            self._request.infer([np.ascontiguousarray(values) for values in inputs], share_inputs=True)
            found: NDArray[np.float32] = self._request.get_output_tensor(0).data.copy()
            return found


def compile_frozen(
    network: nn.Module, run: Callable[[Tensor], Tensor], *, key: str, crop_px: int, precision: Precision
) -> CompiledNetwork:
    """A frozen network with what comes before and after it, [B, 3, crop_px, crop_px] uint8 -> [B, ...] float32, for any B.

    run: the function in float32 torch, which uses `network`. key: all that determines its result; the same one is
    converted once in a process. Takes seconds. Raises EngineError for a network that OpenVINO cannot convert.
    """
    import openvino
    import torch

    class FrameFunction(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network  # so that its weights are known

        def forward(self, frames: Tensor) -> Tensor:
            return run(frames)

    with _one_at_a_time, torch.no_grad(), torch.autocast("cpu", enabled=False):
        if key in _kept:
            return _kept[key]
        probe = torch.randint(0, 256, (3, 3, crop_px, crop_px), dtype=torch.uint8, generator=torch.Generator())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of tracing: sizes become constants, as they shall
                model = openvino.convert_model(FrameFunction().eval(), example_input=probe[:2])
            model.reshape([-1, 3, crop_px, crop_px])
        except Exception as error:  # the converter raises RuntimeError, TypeError, ValueError and classes of its own
            raise EngineError(f"OpenVINO cannot convert it ({_last_line(error)})") from error
        made = CompiledNetwork(model, num_threads=torch.get_num_threads(), precision=precision)
        wanted, found = run(probe), torch.from_numpy(made(probe.numpy()))
        # a network whose code takes the batch for a constant would give something else, without a word
        if found.shape != wanted.shape or torch.cosine_similarity(wanted, found, dim=-1).min() < LEAST_COSINE:
            raise EngineError("OpenVINO gives other vectors than torch")
        return _kept.setdefault(key, made)


def _last_line(error: Exception) -> str:
    """What OpenVINO says of an error at its end."""
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    return said[-1][:200] if said else type(error).__name__


def _core() -> Any:
    """The one `Core` of this process, which keeps it forever.

    The CPU plugin that a Core loads gives its thread a signal stack, and puts back the former one when it goes. If two of
    them go in the order in which they came, the thread is left with a stack that was freed, and the next signal that
    Python handles ends the process.
    """
    with _one_at_a_time:
        if not _cores:
            import openvino

            _cores.append(openvino.Core())
        return _cores[0]
