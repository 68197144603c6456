"""The backbone g: frames to region vectors (L3-iMAC over four ResNet stages, method 1.2; ViSiL, HAP-VR 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.config import BackboneConfig, Precision
from hapvr.errors import ArgumentError
from hapvr.features.execution import network_settings, run_network
from hapvr.features.weights import WeightsIdentity, create_network

NUM_REGIONS = 9
STAGES = (1, 2, 3, 4)
# Kernels for the 56, 28, 14 and 7 px maps of a 224 px frame.
KERNEL_RATES = (28 / 56, 14 / 28, 6 / 14, 3 / 7)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Backbone:
    """A frozen network and what it is."""

    network: nn.Module
    identity: WeightsIdentity
    crop_px: int
    precision: Precision = "float32"

    @property
    def settings(self) -> dict[str, str]:
        """What determines the maps of a crop: weights and precision, as features and models record it."""
        return network_settings(self.identity, self.precision)

    def regions(self, frames: Tensor) -> Tensor:
        """frames: [B, 3, H, W] uint8, H = W = crop_px. Returns [B, 9, C] float32 unit vectors, before whitening."""
        pixels = normalize_imagenet(frames).contiguous(memory_format=torch.channels_last)
        return region_vectors(run_network(self.network, pixels, self.precision, section="backbone"))


def load_backbone(config: BackboneConfig) -> Backbone:
    """Load the backbone of a configuration.

    If it is to be compiled, its first call does so. Raises WeightsUnavailableError.
    """
    network, identity = create_network(config.architecture, config.weights, features_only=True, out_indices=STAGES)
    network.to(memory_format=torch.channels_last)
    if config.compile:
        network.compile()
    return Backbone(network, identity, config.crop_px, config.precision)


def normalize_imagenet(frames: Tensor) -> Tensor:
    """[B, 3, H, W] uint8 -> float32 normalised by ImageNet's mean and standard deviation."""
    mean = torch.tensor(IMAGENET_MEAN, device=frames.device).view(3, 1, 1)
    std = torch.tensor(IMAGENET_STD, device=frames.device).view(3, 1, 1)
    return (frames.float() / 255 - mean) / std


def region_vectors(maps: Sequence[Tensor]) -> Tensor:
    """L3-iMAC: feature maps to unit region vectors.

    maps: one [B, C_l, H_l, W_l] per stage. Each is max-pooled with a kernel of about half its size and half that
    stride to 3 x 3, L2-normalised over channels, concatenated, L2-normalised. Returns [B, 9, sum C_l].
    Raises ArgumentError if a map does not give 3 x 3 regions.
    """
    pooled = []
    for stage, (feature_map, rate) in enumerate(zip(maps, KERNEL_RATES, strict=True)):
        kernel = max(1, round(rate * feature_map.shape[-1]))
        regions = F.max_pool2d(feature_map, kernel, stride=(kernel + 1) // 2)
        if regions.shape[-2:] != (3, 3):
            raise ArgumentError(
                f"regions: map {stage} of size {tuple(feature_map.shape[-2:])} gives {tuple(regions.shape[-2:])} regions, "
                f"wanted (3, 3); use square frames of 224 px or a similar multiple of 32"
            )
        pooled.append(F.normalize(regions.float(), dim=1))
    vectors = torch.cat(pooled, dim=1)
    return F.normalize(vectors.flatten(2).transpose(1, 2), dim=-1)


def center_crop(frames: Tensor, size_px: int) -> Tensor:
    """[B, 3, H, W] -> [B, 3, size_px, size_px]; frames whose short side differs from 8/7 size_px are resized to it first."""
    short_side = round(size_px * 256 / 224)
    height, width = frames.shape[-2:]
    if min(height, width) != short_side:
        scale = short_side / min(height, width)
        size = (max(size_px, round(height * scale)), max(size_px, round(width * scale)))
        resized = F.interpolate(frames.float(), size=size, mode="bilinear", antialias=True)
        frames = resized.round().clamp(0, 255).to(frames.dtype)
        height, width = size
    top, left = (height - size_px) // 2, (width - size_px) // 2
    return frames[..., top : top + size_px, left : left + size_px]
