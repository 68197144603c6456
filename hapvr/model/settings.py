"""Settings of the similarity network, and which families there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from hapvr.model.tca.settings import TcaSettings
from hapvr.model.vvs.settings import VvsSettings
from hapvr.settings import Rate, Settings

AttentionForm = Literal["gated", "cosine", "linear"]
ComparatorInit = Literal["random", "identity"]
PaddingMode = Literal["zeros", "replicate"]

DEFAULT_FAMILY: Literal["similarity"] = "similarity"
"""The family of configurations and stored networks that name none."""

NUM_REGIONS = 9
"""Regions of a frame (L3-iMAC), in three rows of three."""

COMPARATOR_STEP = 4
"""The comparator halves both time axes twice, so it needs clips of at least 4 frames."""


MAX_MIN_FRAMES = 1024
"""More would only cost memory, which grows with its square."""


class NetworkSettings(Settings):
    """The trained part: attention and comparator around TopK-Chamfer (HAP-VR 3.3.1)."""

    family: Literal["similarity"] = Field(
        default=DEFAULT_FAMILY, description="which model is trained; another family has other settings, see below"
    )
    spatial_rate: Rate = Field(default=0.10, description="k_s, top-k rate over regions; 0: Chamfer, 1: average")
    temporal_rate: Rate = Field(default=0.03, description="k_t, top-k rate over frames; 0: Chamfer, 1: average")
    attention: bool = Field(default=True, description="weigh regions")
    attention_form: AttentionForm = Field(
        default="gated",
        description="`gated`: HAP-VR, S2VS, DnS; `linear`: ViSiL's release; `cosine`: that with a context vector of norm 1",
    )
    binary_bits: Annotated[int, Field(ge=0)] = Field(
        default=0, description="length of the binary codes that replace attention (DnS); 0: none"
    )
    comparator: bool = Field(default=True, description="refine frame similarities by the convolutional network")
    comparator_init: ComparatorInit = Field(
        default="random", description="`identity`: training starts from the largest similarity of each 4 x 4 block"
    )
    padding_mode: PaddingMode = Field(
        default="zeros",
        description="what the comparator's convolutions see beyond the edges; `replicate`: the edge again, as ViSiL's do",
    )
    min_frames: Annotated[int, Field(ge=COMPARATOR_STEP, le=MAX_MIN_FRAMES)] = Field(
        default=COMPARATOR_STEP,
        description="the comparator gets shorter clips doubled until they have this many frames; "
        "4: S2VS, DnS, ViSiL; 8: HAP-VR's release",
    )
    symmetric_chamfer: bool = Field(default=False, description="both directions at each level, as ViSiL_sym does")

    @model_validator(mode="after")
    def _check(self) -> NetworkSettings:
        if self.binary_bits and self.attention:
            raise ValueError(
                f"binary_bits: got {self.binary_bits} with attention: true; codes replace attention, so set "
                "attention: false or binary_bits: 0"
            )
        return self

    @property
    def spatial(self) -> dict[str, Any]:
        """Arguments of `frame_similarity`."""
        return {"rate": self.spatial_rate, "symmetric": self.symmetric_chamfer}

    @property
    def temporal(self) -> dict[str, Any]:
        """Arguments of `chamfer` on refined similarities."""
        return {"rate": self.temporal_rate, "symmetric": self.symmetric_chamfer}

    def scoring(self) -> dict[str, Any]:
        """The settings that decide a score, as values of JSON. How weights are drawn is left out."""
        return self.model_dump(mode="json", exclude={"comparator_init"})


def family_of(settings: Any) -> str:
    """The family that settings name, as a model or as a mapping; the similarity network where they name none."""
    named = settings.get("family") if isinstance(settings, Mapping) else getattr(settings, "family", None)
    return str(named or DEFAULT_FAMILY)[:40]


def needs_extras(settings: AnyNetworkSettings) -> bool:
    """Whether a network of these settings reads pooled vectors and magnitudes of frames, see `hapvr.model.frame_extras`."""
    return isinstance(settings, VvsSettings) and settings.distractor_discrimination


AnyNetworkSettings = Annotated[
    Annotated[NetworkSettings, Tag("similarity")]
    | Annotated[TcaSettings, Tag("tca")]
    | Annotated[VvsSettings, Tag("vvs")],
    Discriminator(family_of),
]
"""The settings of a network of any family."""
