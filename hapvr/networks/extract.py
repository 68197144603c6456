"""Frames to features: batches across videos through a frozen network, results back per video.

A processor runs networks, and the ONNX files of bundles, by OpenVINO, which is imported here alone,
where it is first used, and without torch. It needs a third to a half of torch's processor time, and
runs any length of batch or video.
"""

from __future__ import annotations

import io
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from hapvr.errors import ConfigError, DataError, on_processor
from hapvr.files import read_bytes
from hapvr.model.settings import NUM_REGIONS
from hapvr.networks.packaged import PACKAGES, PackagedBackbone, packaged_backbone
from hapvr.networks.settings import BATCH_FRAMES, BackboneConfig, Precision

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from hapvr.networks.backbone import Backbone, Teacher
    from hapvr.networks.whitening import Whitening

Item = TypeVar("Item")
Frames = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]
Embed = Callable[[Frames], Vectors]
"""Frames to vectors: [B, 3, S, S] uint8 -> [B, ...] float32."""

OPERATIONS = """
Add AveragePool Cast Clip Concat Conv Div Erf Expand Gather Gelu GlobalAveragePool HardSigmoid
HardSwish Identity LayerNormalization MatMul Max MaxPool Mul Neg Pad Pow ReduceL2 ReduceMax
ReduceMean ReduceSum Relu Reshape Resize Shape Sigmoid Sign Slice Softmax Split Sqrt Squeeze Sub
Tanh TopK Transpose Unsqueeze
"""
"""What our ONNX files may be made of: no control flow; of indexes only Gather's, which OpenVINO
compares with the length."""

READ_AHEAD = 2
"""Clips decoded while the network is busy; this bounds memory."""

_kept: dict[str, CompiledNetwork] = {}
_one_at_a_time = threading.RLock()


class CompiledNetwork:
    """A network ready to run: arrays in, its first output out. Any thread may call it; one at a
    time runs. It pins no thread to a processor: other processes work at the same time."""

    def __init__(
        self,
        model: Path | bytes | Any,
        *,
        num_threads: int | None = None,
        precision: Precision = "float32",
    ) -> None:
        """model: an ONNX file, its content, or what `convert` gives. num_threads: None for all
        processors that this process may use. precision: bfloat16 is taken where the processor
        multiplies it. Raises DataError for a file that cannot be read."""
        import openvino

        self._tensor = openvino.Tensor
        with _one_at_a_time:
            core = _core()
        half = precision == "bfloat16" and "BF16" in core.get_property(
            "CPU", "OPTIMIZATION_CAPABILITIES"
        )
        properties = {
            "INFERENCE_PRECISION_HINT": "bf16" if half else "f32",
            "INFERENCE_NUM_THREADS": num_threads or len(os.sched_getaffinity(0)),
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,
            # Operations prepared for sizes seen before: 5000 by default, which is a megabyte more
            # for each new pair of lengths of videos. 64 are as fast for batches, and cost a tenth
            # for pairs that all have lengths of their own.
            "CPU_RUNTIME_CACHE_CAPACITY": "64",
        }
        self._name = model if isinstance(model, Path) else "it"
        try:
            if isinstance(model, Path | bytes):
                # before anything is converted, which already computes constants: others may never
                # end, or read foreign memory
                kinds = set(
                    _operations(
                        memoryview(model if isinstance(model, bytes) else read_bytes(model))
                    )
                )
                if found := kinds - set(OPERATIONS.split()):
                    raise RuntimeError(f"not in our networks: {', '.join(sorted(found))[:99]!a}")
                frontend = openvino.frontend.FrontEndManager().load_by_framework("onnx")
                model = frontend.convert(
                    frontend.load(model if isinstance(model, Path) else io.BytesIO(model))
                )
            self._request: Any = core.compile_model(model, "CPU", properties).create_infer_request()
        except Exception as error:  # the converter raises classes of its own
            raise DataError(f"OpenVINO cannot load {self._name} ({_last_line(error)})") from error
        self._lock = threading.Lock()

    def __call__(self, *inputs: npt.NDArray[Any]) -> Vectors:
        """Raises DataError for a network that does not take these."""
        try:
            with self._lock:
                for place, values in enumerate(
                    inputs
                ):  # a tenth of what `infer` itself takes to look at arrays
                    tensor = self._tensor(np.ascontiguousarray(values), shared_memory=True)
                    self._request.set_input_tensor(place, tensor)
                self._request.infer(share_outputs=True)
                return np.array(self._request.get_output_tensor(0).data)
        except (RuntimeError, ValueError) as error:
            raise DataError(
                f"OpenVINO cannot run {self._name} ({_last_line(error)}); export it again"
            ) from error


def _operations(data: memoryview, fields: tuple[int, ...] = (7, 1, 4)) -> Iterator[str]:
    """The kind of each operation of an ONNX file, which is a protobuf. fields: the way to
    `graph.node.op_type`."""
    place = 0

    def number() -> int:
        nonlocal place
        start, place = place, 1 + next(end for end in range(place, place + 10) if data[end] < 128)
        return sum((byte & 127) << 7 * shift for shift, byte in enumerate(data[start:place]))

    while place < len(data):
        field, kind = divmod(number() % 2**32, 8)
        value = number() if kind in (0, 2) else 0
        size = {1: 8, 2: value, 5: 4}.get(kind, 0)
        part, place = data[place : place + size], place + size
        if kind not in (0, 1, 2, 5) or (
            field == 25 and len(fields) == 3
        ):  # a function of the file may have any name
            yield "unreadable parts or functions"
        elif kind == 2 and field == fields[0]:
            yield from (
                _operations(part, fields[1:]) if fields[1:] else [str(part, "utf-8", "replace")]
            )


def _last_line(error: Exception) -> str:
    """What OpenVINO says of an error at its end."""
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    return said[-1][:200] if said else type(error).__name__


@cache
def _core() -> Any:
    """The one `Core` of this process, which keeps it forever. The CPU plugin that a Core loads
    gives its thread a signal stack, and puts back the former one when it goes. If two of them go in
    the order in which they came, the thread is left with a stack that was freed, and the next
    signal that Python handles ends the process."""
    import openvino

    return openvino.Core()


def open_backbone(
    config: BackboneConfig, device: str, *, extras: bool = False
) -> Backbone | PackagedBackbone:
    """The backbone of a configuration, without torch where a processor runs a packaged one. extras:
    see `region_embedder`. Raises as `load_backbone` and `packaged_backbone` do."""
    packaged = (
        config.weights.source == "packaged"
        and config.architecture.removesuffix(".in1k") in PACKAGES
    )
    if (
        packaged
        and on_processor(device)
        and not (config.options or extras)
        and config.descriptor == "regions"
    ):
        return packaged_backbone(config)
    from hapvr.networks.backbone import load_backbone

    return load_backbone(config)


def region_embedder(
    backbone: Backbone | PackagedBackbone,
    whitening: Whitening | None,
    device: torch.device | str,
    *,
    extras: bool = False,
) -> Embed:
    """[B, 3, H, W] uint8 crops -> [B, 9, D] float32 regions; moves a network of torch to `device`
    once. whitening: none gives regions as the network has them. extras: append the pooled vector
    and magnitude of each frame, see `hapvr.model.family`."""
    if isinstance(backbone, PackagedBackbone):
        return CompiledNetwork(
            backbone.graph(whitening).SerializeToString(), precision=backbone.precision
        )
    import torch
    from torch.nn import functional as F

    from hapvr.model.family import join_extras
    from hapvr.networks.backbone import frame_extras

    device = choose_device(device)
    if whitening is not None:
        mean, scale = (
            torch.from_numpy(part).to(device) for part in (whitening.mean, whitening.scale)
        )

    def finish(vectors: Tensor) -> Tensor:
        regions = vectors[:, :NUM_REGIONS]
        if whitening is not None:
            whitening.require(regions.shape[-1])
            regions = F.normalize((regions - mean) @ scale, dim=-1)
        return join_extras(regions, *frame_extras(vectors)) if extras else regions

    return _embedder(backbone, "regions_and_means" if extras else "regions", device, after=finish)


def teacher_embedder(teacher: Teacher, device: torch.device | str) -> Embed:
    """[B, 3, S, S] uint8 crops -> [B, D'] float32 embeddings; moves the network to `device`
    once."""
    return _embedder(teacher, "embed", choose_device(device), before=teacher.resized)


def _embedder(
    frozen: Backbone | Teacher,
    method: str,
    device: torch.device,
    *,
    before: Callable[[Tensor], Tensor] = lambda frames: frames,
    after: Callable[[Tensor], Tensor] = lambda vectors: vectors,
) -> Embed:
    """Frames to vectors by a frozen network of torch, which is moved to `device`. A processor runs
    it by OpenVINO, into which it is converted at the first batch, a GPU by torch. Vectors agree to
    rounding. method: of `frozen`, that runs. before: what is done to the frames, and after: to the
    vectors, both on the device."""
    import torch

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
            return np.asarray(
                after(run()(before(torch.from_numpy(frames).to(device)))).cpu().numpy()
            )

    return embed


def _compile(frozen: Backbone | Teacher, method: str) -> CompiledNetwork:
    """A method of a frozen network, [B, 3, crop_px, crop_px] uint8 -> [B, ...] float32, for any B.
    The same one is converted once in a process, which takes seconds. Raises DataError for what
    OpenVINO cannot convert."""
    import openvino
    import torch

    from hapvr.networks.backbone import Graph

    run = getattr(replace(frozen, precision="float32"), method)
    key = f"{method} {replace(frozen, network=None)}"  # type: ignore[arg-type]

    with _one_at_a_time, torch.no_grad(), torch.autocast("cpu", enabled=False):
        if key in _kept:
            return _kept[key]
        size = (3, frozen.crop_px, frozen.crop_px)
        probe = torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=torch.Generator())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of tracing: sizes become constants, as they shall
                model = openvino.convert_model(
                    Graph(run, frozen.network).eval(), example_input=probe[:2]
                )
            model.reshape([-1, *size])
        # the converter raises RuntimeError, TypeError, ValueError and classes of its own
        except Exception as error:
            raise DataError(f"OpenVINO cannot convert it ({_last_line(error)})") from error
        made = CompiledNetwork(
            model, num_threads=torch.get_num_threads(), precision=frozen.precision
        )
        wanted, found = run(probe), torch.from_numpy(made(probe.numpy()))
        # A network whose code takes the batch for a constant would give something else, without a
        # word. Half precision gives a cosine of 0.99 and more.
        if (
            found.shape != wanted.shape
            or torch.cosine_similarity(wanted, found, dim=-1).min() < 0.95
        ):
            raise DataError("OpenVINO gives other vectors than torch")
        return _kept.setdefault(key, made)


def embed_by_networks(
    clips: Iterable[tuple[str, Frames]],
    networks: Sequence[Embed],
    *,
    batch_frames: int = BATCH_FRAMES,
) -> Iterator[tuple[str, list[Vectors]]]:
    """Run each network over the frames of many clips, a full batch at a time whatever the clips'
    lengths. clips: (key, [N, 3, H, W] uint8), all of one size, made in a thread READ_AHEAD of them
    in advance. Yields (key, [N, ...] of each network) in order. Memory holds one batch, the results
    of its clips, and the clips made in advance."""
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
    """The same items, made in a thread READ_AHEAD of them in advance; an exception comes after the
    items before it."""
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
    """`auto` is the first CUDA device where there is one. Raises ConfigError for `cuda` where there
    is none."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "device is cuda, and torch finds no GPU that it can use; set device: auto, or cpu"
        )
    return torch.device(name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
