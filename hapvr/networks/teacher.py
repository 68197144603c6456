"""The teacher g': frames to one embedding each (DINO ViT-S/16, [CLS] of the last block; HAP-VR 3.4).

Any network of timm, or a TorchScript file, that gives one vector per picture can be the teacher.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.errors import ConfigError
from hapvr.networks.settings import TeacherConfig
from hapvr.networks.weights import (
    FrozenNetwork,
    WeightsIdentity,
    create_embedding_network,
    pixel_statistics,
    stated_settings,
)


@dataclass(frozen=True)
class Teacher(FrozenNetwork):
    """input: `imagenet` (mean and deviation taken out), or `raw` (pixels 0..255, as the release feeds it). dims: D'."""

    section: ClassVar[str] = "teacher"

    input: str = field(kw_only=True)
    dims: int = field(kw_only=True)

    def resized(self, frames: Tensor) -> Tensor:
        """[B, 3, S, S] uint8 -> the same frames with sides of crop_px."""
        if frames.shape[-1] == self.crop_px:
            return frames
        size = (self.crop_px, self.crop_px)
        resized = F.interpolate(frames.float(), size=size, mode="bilinear", antialias=True)
        return resized.round().clamp(0, 255).to(frames.dtype)

    def embed(self, frames: Tensor) -> Tensor:
        """frames: [B, 3, crop_px, crop_px] uint8. Returns [B, D'] float32, not normalised."""
        embeddings: Tensor = self.output(frames, raw=self.input == "raw")
        return embeddings.float()


def load_teacher(config: TeacherConfig, *, crop_px: int) -> Teacher:
    """The teacher of a configuration, for frames of crop_px unless the configuration names a crop of its own.

    Raises WeightsUnavailableError for weights that cannot be had or do not fit, ConfigError for an architecture that timm
    does not know or that gives no single vector.
    """
    network, identity = create_embedding_network(config)
    mean, std = pixel_statistics(config)
    settings = stated_settings(config, identity) | ({} if config.crop_px is None else {"crop_px": config.crop_px})
    side = config.crop_px or crop_px
    dims = _embedding_dims(network, identity, side)
    return Teacher(network, identity, settings, side, mean, std, config.precision, input=config.input, dims=dims)


@torch.inference_mode()
def _embedding_dims(network: nn.Module, identity: WeightsIdentity, crop_px: int) -> int:
    """Run one black frame, so that a network without one vector per picture is refused before any work is done."""
    try:
        output, said = network(torch.zeros(1, 3, crop_px, crop_px)), ""
    except (AssertionError, RuntimeError, ValueError) as error:
        output, said = None, f": {str(error).splitlines()[0][:200]}"
    if not isinstance(output, Tensor) or output.dim() != 2:
        raise ConfigError(
            f"teacher: {identity.architecture} gives no single vector for a crop of {crop_px} px{said}; set teacher.crop_px to "
            "what the network was made for, name another architecture, or give teacher.options such as {global_pool: avg}"
        )
    return int(output.shape[1])
