"""The seam between frozen networks and everything that reads frame vectors.

A frame encoder turns each picture into R vectors: nine regions by a network in timm, or one vector
by a network that was made for copies. `open_encoder` knows all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from hapvr.errors import FULL_HINT, MissingPartError, is_installed, on_processor
from hapvr.networks.batches import Embed
from hapvr.networks.copies import FILES, ORIGIN, open_packaged_copy_network
from hapvr.networks.packaged import (
    WeightsIdentity,
    is_packaged,
    packaged_backbone,
    packaged_origin,
)
from hapvr.networks.settings import BackboneConfig, Precision

if TYPE_CHECKING:
    from hapvr.networks.whitening import Whitening


class FrameEncoder(Protocol):
    """A frozen network that describes frames."""

    @property
    def identity(self) -> WeightsIdentity:
        """Which weights it has."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that determine its vectors for a picture, as data and models record them."""

    @property
    def crop_px(self) -> int:
        """Side of the pictures that it sees."""

    @property
    def precision(self) -> Precision:
        """The precision of its arithmetic."""

    @property
    def num_vectors(self) -> int:
        """R, vectors of a frame."""

    def state(self) -> Mapping[str, NDArray[Any]] | None:
        """The weights that a bundle stores; None where they stay in their package."""

    def embedder(self, whitening: Whitening | None, device: str, *, extras: bool = False) -> Embed:
        """A function from pictures [B, 3, crop_px, crop_px] uint8 to unit vectors [B, R, D]
        float32.

        whitening: None gives the vectors as the network has them. extras: append the pooled vector
        and magnitude of each frame, see `hapvr.model.family`.
        """


def open_encoder(config: BackboneConfig, device: str, *, extras: bool = False) -> FrameEncoder:
    """The encoder of a configuration, without torch if it is a packaged one on a CPU.

    extras: whether its embedder has to give them, see `FrameEncoder.embedder`. Raises ConfigError
    for settings that do not fit, and DataError for weights that cannot be had.
    """
    in_package = config.weights.source == "packaged" and is_packaged(config.architecture)
    as_published = not config.options and config.descriptor == "regions"
    if in_package and as_published and on_processor(device) and not extras:
        return packaged_backbone(config)
    return open_reference_encoder(config)


def open_reference_encoder(config: BackboneConfig) -> FrameEncoder:
    """The encoder with which others of the same weights are checked: in torch, except for networks
    that stay in their package. Raises as `open_encoder` does."""
    if config.is_copy_network and config.weights.source == "packaged":
        return open_packaged_copy_network(config)
    _require_torch(config)
    if config.is_copy_network:
        from hapvr.networks.sscd import load_sscd

        return load_sscd(config)

    from hapvr.networks.backbone import load_backbone

    return load_backbone(config)


def weights_origin(architecture: str, source: str) -> str:
    """A sentence on the origin of weights in other people's packages; "" for other weights.

    source: see `Weights`
    """
    if source != "packaged":
        return ""
    if architecture in FILES:
        return ORIGIN
    return packaged_origin(architecture) if is_packaged(architecture) else ""


def _require_torch(config: BackboneConfig) -> None:
    """Raise MissingPartError where the network needs torch and torch is not installed."""
    if not is_installed("torch"):
        raise MissingPartError(
            f"backbone: {config.architecture} with {config.weights.source} weights needs torch; "
            f"{FULL_HINT}"
        )
