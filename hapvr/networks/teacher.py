"""The teacher g': frames to one embedding each (DINO ViT-S/16, [CLS] of the last block; HAP-VR 3.4).

Its embeddings become pseudo labels: which frames of two clips it finds alike (Eq. 13 and 14). Any network of timm that
gives one vector per picture can be the teacher.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.errors import ConfigError
from hapvr.networks.packaged import WeightsIdentity, stated_settings
from hapvr.networks.settings import PseudoLabelSettings, TeacherConfig
from hapvr.networks.weights import FrozenNetwork, create_embedding_network, pixel_statistics


@dataclass(frozen=True)
class Teacher(FrozenNetwork):
    """dims: D'."""

    section: ClassVar[str] = "teacher"

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
        embeddings: Tensor = self.output(frames)
        return embeddings.float()


def load_teacher(config: TeacherConfig, *, crop_px: int) -> Teacher:
    """The teacher of a configuration, for frames of crop_px unless the configuration names a crop of its own.

    Raises DataError for weights that cannot be had or do not fit, ConfigError for an architecture that timm
    does not know or that gives no single vector.
    """
    network, identity = create_embedding_network(config)
    mean, std = pixel_statistics(config)
    settings = stated_settings(config, identity) | ({} if config.crop_px is None else {"crop_px": config.crop_px})
    side = config.crop_px or crop_px
    dims = _embedding_dims(network, identity, side)
    return Teacher(network, identity, settings, side, mean, std, config.precision, dims=dims)


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


def pseudo_labels(query: Tensor, reference: Tensor, settings: PseudoLabelSettings) -> Tensor:
    """Ternary labels of all frame pairs from teacher embeddings (HAP-VR Eq. 13 and 14).

    query: [..., T, D]; reference: [..., T', D]; both finite, and leading dimensions broadcast. For each query frame, the
    part `top_rate` of reference frames with the largest cosine is positive (1), the part `bottom_rate` with the smallest
    is negative (-1), and the rest is ignored (0). Returns int8 [..., T, T'].

    A frame is in the top if less than top_rate of its row lies strictly above it. Cosines that are equal to within 1e-6
    share a label, and a frame that is both top and bottom is ignored.
    """
    # At least float32: half precision makes ties of distinct cosines.
    dtype = torch.promote_types(torch.promote_types(query.dtype, reference.dtype), torch.float32)
    with torch.no_grad():
        cosine = F.normalize(query.to(dtype), dim=-1) @ F.normalize(reference.to(dtype), dim=-1).transpose(-1, -2)
        # Products of equal frames may differ in the last bits, but must tie.
        values = (cosine * 2**20).round().contiguous()
        ordered, size = values.sort(-1).values, values.shape[-1]
        above = size - torch.searchsorted(ordered, values, right=True)
        below = torch.searchsorted(ordered, values)
        # The margin keeps a product such as 0.14 * 50 = 7.000000000000001 from admitting an eighth frame.
        top, bottom = above < settings.top_rate * size - 1e-9, below < settings.bottom_rate * size - 1e-9
        return top.to(torch.int8) - bottom.to(torch.int8)
