"""Settings of the frozen networks and of what is kept of their outputs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from hapvr.settings import Rate, Settings

Precision = Literal["float32", "bfloat16"]


class PretrainedWeights(Settings):
    """The published weights of the architecture, from the hub or its local cache."""

    source: Literal["pretrained"] = "pretrained"
    fallback: Literal["none", "random"] = Field(
        default="none",
        description="`random`: if they cannot be had, warn and use seeded random weights; for the demo only",
    )


class FileWeights(Settings):
    """A local .safetensors file, or a .pth file of plain tensors."""

    source: Literal["file"]
    path: Path


class RandomWeights(Settings):
    """Seeded random weights: for tests and for trying the chain without a network."""

    source: Literal["random"]
    seed: int = 0


class TorchScriptWeights(Settings):
    """A TorchScript file: a whole network, such as the published copy-detection networks (SSCD). `architecture` is not used."""

    source: Literal["torchscript"]
    path: Path


ArchitectureName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.]{1,120}$")]
Weights = Annotated[PretrainedWeights | FileWeights | RandomWeights | TorchScriptWeights, Field(discriminator="source")]


class FrozenNetworkConfig(Settings):
    """What backbone and teacher share: a network of timm (or a TorchScript file) whose weights are never trained."""

    architecture: ArchitectureName = Field(description="name of a timm network")
    options: dict[str, bool | int | float | str] = Field(
        default={}, description="more arguments of `timm.create_model`, e.g. `{pad_type: same}`"
    )
    mean: tuple[float, float, float] | None = Field(
        default=None, description="of pixels in [0, 1]; none: what timm states for the architecture"
    )
    std: tuple[float, float, float] | None = Field(default=None, description="as `mean`")
    weights: Weights = PretrainedWeights()
    batch_frames: Annotated[int, Field(ge=1)] = 32
    precision: Precision = Field(
        default="float32",
        description="of the network alone; changing it invalidates what the network has made. bfloat16 is taken where the "
        "processor or GPU multiplies it, about twice as fast, and float32 elsewhere; what either made is used together",
    )


REGION_KERNEL_RATES = (28 / 56, 14 / 28, 6 / 14, 3 / 7)
"""Side of the pooling kernels as a part of the map's side: those of the 56, 28, 14 and 7 px maps of a 224 px crop."""


def region_kernel(stage: int, side_px: int) -> tuple[int, int]:
    """Side and stride of the max pooling that makes regions of a map of this side."""
    kernel = max(1, round(REGION_KERNEL_RATES[stage] * side_px))
    return kernel, (kernel + 1) // 2


def resnet_gives_regions(crop_px: int) -> bool:
    """Whether all four maps of a ResNet, of 1/4 to 1/32 of the crop's side, are pooled to 3 x 3."""
    for stage in range(len(REGION_KERNEL_RATES)):
        side_px = math.ceil(crop_px / 2 ** (stage + 2))
        kernel, stride = region_kernel(stage, side_px)
        if side_px != 3 and (side_px - kernel) // stride + 1 != 3:
            return False
    return True


NUM_REGIONS = 9
"""Regions of L3-iMAC, in three rows of three."""


class BackboneConfig(FrozenNetworkConfig):
    """The frozen network g that gives region features (method 1.2)."""

    architecture: ArchitectureName = Field(
        default="resnet50.tv_in1k", description="name of a timm network that gives 3 x 3 regions"
    )
    crop_px: Annotated[int, Field(ge=64, le=1024)] = 224
    descriptor: Literal["regions", "imac", "l3_irmac"] = Field(
        default="regions",
        description="what is kept of a frame: the nine regions of L3-iMAC, or one vector, as TCA reads it",
    )

    @model_validator(mode="after")
    def _check(self) -> BackboneConfig:
        if self.architecture.startswith("resnet") and not self.options and not resnet_gives_regions(self.crop_px):
            usual = ", ".join(str(side) for side in (128, 160, 192, 224, 256) if resnet_gives_regions(side))
            raise ValueError(f"crop_px {self.crop_px} gives no 3 x 3 regions with a ResNet; e.g. {usual} do")
        return self

    @property
    def num_regions(self) -> int:
        """R, vectors of a frame."""
        return NUM_REGIONS if self.descriptor == "regions" else 1


class TeacherConfig(FrozenNetworkConfig):
    """The frozen network g' that gives pseudo labels (method 1.3)."""

    architecture: ArchitectureName = Field(
        default="vit_small_patch16_224.dino", description="name of a timm network that gives one vector per picture"
    )
    input: Literal["imagenet", "raw"] = Field(
        default="imagenet", description="`raw` repeats the release: pixels 0..255, no mean or deviation taken out"
    )
    crop_px: Annotated[int, Field(ge=64, le=1024)] | None = Field(
        default=None, description="side of the frames that the teacher sees; none: the backbone's"
    )


class WhiteningConfig(Settings):
    """PCA whitening of region vectors."""

    dims: Annotated[int, Field(ge=2, le=3840)] = 512
    max_regions: Annotated[int, Field(ge=2)] = 1_000_000
    eps: Annotated[float, Field(gt=0)] = 1e-7
    seed: int = 0


class FeaturesConfig(Settings):
    """What is kept of every frame in addition to its whitened regions."""

    pooled: bool = Field(
        default=False,
        description="the mean of the regions before whitening and its magnitude, also of training views; VVS needs them",
    )


class PseudoLabelSettings(Settings):
    """Frame pseudo labels from the teacher (HAP-VR Eq. 13, 14)."""

    top_rate: Rate = Field(default=0.35, description="r_t, the part of each row with the label 1")
    bottom_rate: Rate = Field(default=0.35, description="r_b, the part of each row with the label -1")
    exact: bool = Field(
        default=False, description="the release's exactly round(r*T) of each instead of the threshold of Eq. 14"
    )

    @model_validator(mode="after")
    def _check(self) -> PseudoLabelSettings:
        if self.top_rate + self.bottom_rate > 1 + 1e-9:
            raise ValueError(f"top_rate + bottom_rate must be at most 1, got {self.top_rate + self.bottom_rate:g}")
        return self
