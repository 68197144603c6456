"""The teacher g': frames to one embedding each (DINO ViT-S/16, [CLS] of the last block; HAP-VR 3.4)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from hapvr.config import TeacherConfig
from hapvr.features.backbone import normalize_imagenet
from hapvr.features.weights import WeightsIdentity, create_network


@dataclass(frozen=True)
class Teacher:
    """A frozen network and what it is. input: `imagenet`, or `raw` (pixels 0..255, as the release feeds it)."""

    network: nn.Module
    identity: WeightsIdentity
    input: str
    dims: int

    def embed(self, frames: Tensor) -> Tensor:
        """frames: [B, 3, S, S] uint8, S the crop it was loaded for. Returns [B, D'] float32, not normalised."""
        pixels = normalize_imagenet(frames) if self.input == "imagenet" else frames.float()
        embeddings: Tensor = self.network(pixels)
        return embeddings


def load_teacher(config: TeacherConfig, *, crop_px: int) -> Teacher:
    """The teacher of a configuration, for frames of crop_px (its position embeddings are resampled if they must be).

    Raises WeightsUnavailableError.
    """
    network, identity = create_network(
        config.architecture, config.weights, num_classes=0, global_pool="token", img_size=crop_px
    )
    return Teacher(network, identity, config.input, int(network.num_features))  # type: ignore[arg-type]
