"""Settings of the frozen networks, and of which of their outputs are kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from hapvr.model.settings import NUM_REGIONS
from hapvr.settings import Rate, Settings
from hapvr.video.settings import Picture

Precision = Literal["float32", "bfloat16"]


class Weights(Settings):
    """Where the weights of a frozen network come from."""

    source: Literal["pretrained", "packaged", "file", "random"] = "pretrained"
    """`pretrained`: published for the architecture, from the hub or its local cache; `packaged`:
    from an installed Python package, for sscd_distilled, sscd, tf_efficientnet_lite0 and
    tf_efficientnet_lite2; `file`: .safetensors, or .pth of plain tensors; `random`: seeded, for
    tests"""
    path: Path | None = Field(default=None, description="of `source: file`")
    seed: int = Field(default=0, description="of `source: random`")

    @model_validator(mode="after")
    def _check(self) -> Weights:
        if (self.path is None) == (self.source == "file"):
            raise ValueError(
                f"source {self.source} {'needs a' if self.path is None else 'takes no'} `path`"
            )
        return self


ArchitectureName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.]{1,120}$")]


class FrozenNetworkConfig(Settings):
    """What backbone and teacher share: a network of timm whose weights are never trained."""

    architecture: ArchitectureName = Field(description="name of a timm network")
    options: dict[str, bool | int | float | str] = Field(default={})
    """more arguments of `timm.create_model`, e.g. `{pad_type: same}`"""
    weights: Weights = Weights()
    precision: Precision = "float32"
    """of the network alone; changing it invalidates everything that the network has made. bfloat16
    is used where the processor or GPU can multiply it, about twice as fast, and float32 elsewhere;
    the results of both may be mixed"""

    @field_validator("options")
    @classmethod
    def _bounded(
        cls, options: dict[str, bool | int | float | str]
    ) -> dict[str, bool | int | float | str]:
        for name, value in options.items():
            # how often parts of a network are repeated; sides and widths
            most = (
                128
                if any(word in name for word in ("depth", "layer", "block", "multiplier"))
                else 4096
            )
            if not isinstance(value, str) and not -most <= value <= most:
                raise ValueError(f"{name}: {value!s:.120} is not between {-most} and {most}")

        return options


BATCH_FRAMES = 32
"""How many frames a frozen network gets at once."""


@dataclass(frozen=True)
class CopyNetwork:
    """A network that gives one vector per frame, sees the whole picture, and whose vectors are
    compared as they are: nothing is whitened."""

    sources: tuple[str, ...]
    """where its weights may come from, see `Weights`; those that are `packaged` are in no bundle"""
    dims: int
    """values of a vector"""


COPY_NETWORKS = {
    "sscd": CopyNetwork(sources=("packaged", "file", "random"), dims=512),
    "sscd_distilled": CopyNetwork(sources=("packaged",), dims=512),
}
"""Networks that were made for copies, by architecture."""


def picture_of(architecture: str) -> Picture:
    """How a network of this architecture sees a frame, see `Picture`."""
    return "squeezed" if architecture in COPY_NETWORKS else "cropped"


class BackboneConfig(FrozenNetworkConfig):
    """The frozen network g that gives region features (method 1.2)."""

    architecture: ArchitectureName = "resnet50.tv_in1k"
    """name of a timm network that gives 3 x 3 regions; or sscd_distilled or sscd, which were made
    for copies and give one vector per frame"""
    crop_px: int = Field(default=224, ge=64, le=1024)
    descriptor: Literal["regions", "imac", "l3_irmac", "imac_released", "l3_irmac_released"] = (
        "regions"
    )
    """what is kept of a frame: the nine regions of L3-iMAC, or one vector, as TCA reads it: `imac`
    and `l3_irmac` as its paper has them, or as its release does"""

    @property
    def num_vectors(self) -> int:
        """R, vectors of a frame."""
        if self.architecture in COPY_NETWORKS or self.descriptor != "regions":
            return 1
        return NUM_REGIONS

    @property
    def copy_network(self) -> CopyNetwork | None:
        """What it is of COPY_NETWORKS; None for a network of regions."""
        return COPY_NETWORKS.get(self.architecture)

    @property
    def is_copy_network(self) -> bool:
        """Whether it is of COPY_NETWORKS."""
        return self.copy_network is not None

    @property
    def picture(self) -> Picture:
        """How it sees a frame."""
        return picture_of(self.architecture)

    @model_validator(mode="after")
    def _check_copy_network(self) -> BackboneConfig:
        network = self.copy_network
        if network is None:
            return self
        if self.weights.source not in network.sources:
            raise ValueError(
                f"weights.source is {self.weights.source}; {self.architecture} takes "
                f"{' or '.join(network.sources)}"
            )
        if self.options or self.descriptor != "regions":
            raise ValueError(f"{self.architecture} takes neither `options` nor `descriptor`")
        return self


class TeacherConfig(FrozenNetworkConfig):
    """The frozen network g' that gives pseudo labels (method 1.3)."""

    architecture: ArchitectureName = "vit_small_patch16_224.dino"
    """name of a timm network that gives one vector per picture"""
    crop_px: int | None = Field(default=None, ge=64, le=1024)
    """side of the frames that the teacher sees; null: the backbone's"""


class WhiteningConfig(Settings):
    """PCA whitening of region vectors."""

    dims: int = Field(default=512, ge=2, le=3840)
    max_regions: int = Field(default=1_000_000, ge=2)
    """how many vectors of training frames, drawn at random, it is fitted on"""


class FeaturesConfig(Settings):
    """What is kept of every frame in addition to its whitened regions."""

    pooled: bool = False
    """also the mean of the regions before whitening, and its magnitude, for training views too; VVS
    needs them"""


class PseudoLabelSettings(Settings):
    """Frame pseudo labels from the teacher (HAP-VR Eq. 13, 14)."""

    top_rate: Rate = Field(default=0.35, description="r_t, the part of each row with the label 1")
    bottom_rate: Rate = Field(
        default=0.35, description="r_b, the part of each row with the label -1"
    )

    @model_validator(mode="after")
    def _check(self) -> PseudoLabelSettings:
        if self.top_rate + self.bottom_rate > 1 + 1e-9:
            raise ValueError(
                f"top_rate + bottom_rate must be at most 1, got "
                f"{self.top_rate + self.bottom_rate:g}"
            )

        return self
