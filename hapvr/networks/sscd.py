"""SSCD in torch, from a file of its authors: for GPUs, and for those who do not want the package.

The network of Pizzi et al., "A self-supervised descriptor for image copy detection", CVPR 2022
(section 4.1): a ResNet-50, GeM pooling with p = 3, and a linear layer to 512 values of unit length.
The published files `*.torchvision.pt` (MIT licence) fit it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.errors import DataError
from hapvr.model.archive import read_archive
from hapvr.model.checkpoint import MAX_MISMATCHES, describe_mismatches
from hapvr.networks import weights
from hapvr.networks.batches import Embed
from hapvr.networks.packaged import WeightsIdentity, stated_settings
from hapvr.networks.settings import COPY_NETWORKS, BackboneConfig
from hapvr.networks.torch_runtime import choose_device, torch_embedder, whitened
from hapvr.networks.whitening import Whitening
from hapvr.seeding import seeded

TRUNK = "resnet50"
PREFIX = "backbone."
"""What the published files put before the names of torchvision."""
POOLING_POWER = 3.0
LEAST_ACTIVATION = 1e-6


class SSCDNetwork(nn.Module):
    """Normalised pixels [B, 3, H, W] -> unit vectors [B, 512]."""

    def __init__(self) -> None:
        import timm

        super().__init__()
        self.trunk: Any = timm.create_model(
            TRUNK, num_classes=COPY_NETWORKS["sscd"].dims, global_pool="", zero_init_last=False
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """GeM pooling: the p-th root of the mean p-th power over positions."""
        maps: Tensor = self.trunk.forward_features(pixels)
        powers = maps.float().clamp(min=LEAST_ACTIVATION).pow(POOLING_POWER)
        pooled = powers.mean((2, 3)).pow(1 / POOLING_POWER)
        return F.normalize(self.trunk.fc(pooled).float(), dim=-1)


@dataclass(frozen=True)
class SSCD(weights.FrozenNetwork):
    """SSCD as a `FrameEncoder`."""

    section: ClassVar[str] = "backbone"

    num_vectors: ClassVar[int] = 1
    """R, vectors of a frame."""

    def regions(self, frames: Tensor) -> Tensor:
        """frames: [B, 3, crop_px, crop_px] uint8. Returns [B, 1, 512] float32 unit vectors."""
        vectors: Tensor = self.output(frames)
        return vectors[:, None]

    def embedder(self, whitening: Whitening | None, device: str, *, extras: bool = False) -> Embed:
        """See `FrameEncoder`."""
        assert not extras, "the configuration refuses these"
        place = choose_device(device)
        return torch_embedder(self, "regions", place, after=whitened(whitening, place))


def load_sscd(config: BackboneConfig) -> SSCD:
    """SSCD with the weights of a configuration. Raises DataError for a file that does not fill the
    network."""
    with seeded(config.weights.seed):
        network = SSCDNetwork()
    if config.weights.path is not None:
        _fill(network, config.weights.path)
    network.eval().requires_grad_(False).to(memory_format=torch.channels_last)
    identity = WeightsIdentity(
        config.architecture, config.weights.source, weights.state_sha256(network.state_dict())
    )
    return SSCD(
        network=network,
        identity=identity,
        settings=stated_settings(config, identity),
        crop_px=config.crop_px,
        mean=weights.IMAGENET_MEAN,
        std=weights.IMAGENET_STD,
        precision=config.precision,
    )


def _fill(network: SSCDNetwork, path: Path) -> None:
    """Load a published file, which must have every tensor, each in the right shape."""
    state = {name.removeprefix(PREFIX): values for name, values in read_archive(path)[0].items()}
    if mismatches := describe_mismatches(network.trunk.state_dict(), state):
        raise DataError(
            f"weights: {path} does not fit sscd: {'; '.join(mismatches[:MAX_MISMATCHES])}; give a "
            "file *.torchvision.pt of a ResNet-50 of SSCD's authors"
        )

    network.trunk.load_state_dict(state)
