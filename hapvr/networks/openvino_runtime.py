"""Networks on a CPU, by OpenVINO: packaged files, the ONNX files of bundles, and converted networks
of torch.

OpenVINO is imported only here, on first use. It needs a third to a half of torch's processor time,
and takes batches and videos of any length.
"""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hapvr.errors import DataError
from hapvr.files import read_bytes
from hapvr.networks.settings import Precision
from hapvr.processors import processors

if TYPE_CHECKING:
    from torch import Tensor

Vectors = npt.NDArray[np.float32]

OPERATIONS = """
    Add AveragePool Cast Clip Concat Constant Conv DequantizeLinear Div Erf Expand Gather Gelu Gemm
    GlobalAveragePool HardSigmoid HardSwish Identity LayerNormalization MatMul Max MaxPool Mul Neg
    Pad Pow QuantizeLinear ReduceL2 ReduceMax ReduceMean ReduceSum Relu Reshape Resize Shape Sigmoid
    Sign Slice Softmax Split Sqrt Squeeze Sub Tanh TopK Transpose Unsqueeze
"""
"""The operations that ONNX files may contain: no control flow, and indexing only by Gather, whose
indexes OpenVINO compares with the length."""

_one_at_a_time = threading.RLock()


class CompiledNetwork:
    """A network ready to run: arrays in, its first output out. Threads may share it; one at a time
    runs. It pins no thread to a processor, since other processes work at the same time."""

    def __init__(
        self,
        model: Path | bytes | Any,
        *,
        num_threads: int | None = None,
        precision: Precision = "float32",
        is_known: bool = False,
    ) -> None:
        """model: an ONNX file, its content, or what `convert_from_torch` gives.
        num_threads: None: one per processor, see `hapvr.processors`.
        precision: bfloat16 is taken where the processor multiplies it.
        is_known: whether the caller has compared the file with a digest of this release; any other
        file is first read as data.

        Raises:
            DataError: for a file that cannot be read.
        """
        import openvino

        self._tensor = openvino.Tensor
        self._name = model if isinstance(model, Path) else "it"
        self._lock = threading.Lock()
        with _one_at_a_time:
            core = _core()

        half = False
        if precision == "bfloat16":
            half = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        properties = {
            "INFERENCE_PRECISION_HINT": "bf16" if half else "f32",
            "INFERENCE_NUM_THREADS": num_threads or processors(),
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,
            # Operations are prepared for sizes seen before, 5000 by default, which adds a megabyte
            # for each new pair of lengths of videos. 64 are as fast for batches, and cost a tenth
            # for pairs that all have lengths of their own.
            "CPU_RUNTIME_CACHE_CAPACITY": "64",
        }
        try:
            if isinstance(model, Path | bytes):
                model = _converted(model, is_known=is_known)
            self._request: Any = core.compile_model(model, "CPU", properties).create_infer_request()
        except Exception as error:  # the converter raises classes of its own
            raise DataError(f"OpenVINO cannot load {self._name} ({last_line(error)})") from error

    def __call__(self, *inputs: npt.NDArray[Any]) -> Vectors:
        """Raises DataError for a network that does not take these inputs."""
        try:
            with self._lock:
                for place, values in enumerate(inputs):
                    # a tenth of what `infer` itself takes to look at arrays
                    tensor = self._tensor(np.ascontiguousarray(values), shared_memory=True)
                    self._request.set_input_tensor(place, tensor)

                self._request.infer(share_outputs=True)
                return np.array(self._request.get_output_tensor(0).data)
        except (RuntimeError, ValueError) as error:
            raise DataError(
                f"OpenVINO cannot run {self._name} ({last_line(error)}); export it again"
            ) from error


def convert_from_torch(run: Callable[[Tensor], Tensor], example: Tensor) -> Any:
    """A function of torch as a model of OpenVINO, for any number of pictures of the example's size.
    Nothing that it computes with may need a gradient. Raises DataError for what cannot be
    converted."""
    import openvino
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tracing: sizes become constants, as intended
            # Given a module, OpenVINO describes each of its parts and traces it twice, which takes
            # longer for the same model.
            traced = torch.jit.trace(run, example, check_trace=False)  # type: ignore[no-untyped-call]
            model = openvino.convert_model(traced, example_input=example)

        model.reshape([-1, *example.shape[1:]])
    # the converter raises RuntimeError, TypeError, ValueError and classes of its own
    except Exception as error:
        raise DataError(f"OpenVINO cannot convert it ({last_line(error)})") from error

    return model


def last_line(error: Exception) -> str:
    """The last line of an error of OpenVINO, which tells the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__


def _converted(model: Path | bytes, *, is_known: bool) -> Any:
    """An ONNX file as a model of OpenVINO. An unknown file is first read as data, because
    converting computes constants, and other operations might never end, or read foreign memory."""
    import openvino

    content = model if isinstance(model, bytes) else read_bytes(model)
    if not is_known:
        _require_known_operations(content)
    frontend = openvino.frontend.FrontEndManager().load_by_framework("onnx")
    source = model if isinstance(model, Path) else io.BytesIO(content)
    return frontend.convert(frontend.load(source))


def _require_known_operations(content: bytes) -> None:
    """Raise RuntimeError for an ONNX file with operations beyond OPERATIONS, functions of its own,
    or values in other files."""
    import onnx

    model = onnx.load_model_from_string(content)
    unknown = {node.op_type for node in model.graph.node}.difference(OPERATIONS.split())
    if unknown or model.functions:
        named = ", ".join(sorted(unknown)) or "functions"
        raise RuntimeError(f"not in our networks: {named[:99]!a}")

    stored_elsewhere = onnx.TensorProto.EXTERNAL
    if any(values.data_location == stored_elsewhere for values in model.graph.initializer):
        raise RuntimeError("it has values in other files")
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g") or attribute.graphs:
                raise RuntimeError("it has graphs within operations")
            if attribute.t.data_location == stored_elsewhere:
                raise RuntimeError("it has values in other files")


@cache
def _core() -> Any:
    """The only `Core` of this process, which keeps it forever. The CPU plugin that a Core loads
    gives its thread a signal stack, and restores the former one when it is unloaded. If two of them
    are unloaded in the order in which they were loaded, the thread is left with a stack that was
    freed, and the next signal that Python handles ends the process."""
    import openvino

    return openvino.Core()
