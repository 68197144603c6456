"""The teacher g': frames to one embedding each (DINO ViT-S/16, [CLS] of the last block; HAP-VR 3.4)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from hapvr.config import Precision, TeacherConfig
from hapvr.features.backbone import normalize_imagenet
from hapvr.features.execution import network_settings, run_network
from hapvr.features.weights import WeightsIdentity, create_network


@dataclass(frozen=True)
class Teacher:
    """A frozen network and what it is. input: `imagenet`, or `raw` (pixels 0..255, as the release feeds it)."""

    network: nn.Module
    identity: WeightsIdentity
    input: str
    dims: int
    precision: Precision = "float32"

    @property
    def settings(self) -> dict[str, str]:
        """What determines the embeddings of an input: weights and precision, as embeddings record it."""
        return network_settings(self.identity, self.precision)

    def embed(self, frames: Tensor) -> Tensor:
        """frames: [B, 3, S, S] uint8, S the crop it was loaded for. Returns [B, D'] float32, not normalised."""
        pixels = normalize_imagenet(frames) if self.input == "imagenet" else frames.float()
        embeddings: Tensor = run_network(self.network, pixels, self.precision, section="teacher")
        return embeddings.float()


def load_teacher(config: TeacherConfig, *, crop_px: int) -> Teacher:
    """Load the teacher of a configuration for frames of crop_px. Position embeddings are resampled if the size differs.

    If it is to be compiled, its first call does so. Raises WeightsUnavailableError.
    """
    network, identity = create_network(
        config.architecture, config.weights, num_classes=0, global_pool="token", img_size=crop_px
    )
    if config.compile:
        network.compile()
    return Teacher(network, identity, config.input, int(network.num_features), config.precision)  # type: ignore[arg-type]
