"""Settings of the networks of all families."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from hapvr.settings import Rate, Settings

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Width = Annotated[int, Field(ge=1)]


class DistractorSettings(Settings):
    """Easy distractor elimination: which frames carry no content."""

    hidden: tuple[Width, Width] = Field(
        default=(960, 240), description="widths of the two hidden layers"
    )
    dropout: float = Field(default=0.5, ge=0, lt=1)
    temperature: Positive = 1.0


class SaliencySettings(Settings):
    """Suppression weights from the self-similarities of neighbouring frames."""

    width: int = Field(default=128, ge=2, multiple_of=2)
    """channels of the bottleneck; the encoder has four times as many, in 8 heads"""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    attention: Literal["frame", "video"] = "frame"
    """what the encoder attends to: each frame to itself alone (`frame`, the release), or to all
    frames of its video (`video`, the paper)"""
    temperature: Positive = 1.0
    label_rule: Literal["clipped", "plain"] = "clipped"
    """a frame is salient above the mean of the clipped similarities, or as the best one (`clipped`,
    the release), or above the mean of the raw ones (`plain`, the paper)"""


class TopicSettings(Settings):
    """Suppression weights from how near a frame is to the whole video."""

    temperature: Positive = 512.0
    initial: Literal["topic", "constant", "random"] = "topic"
    """state that is refined: similarity to the video's mean, 0.5, or random numbers (VVS Table 6)
    """
    refine: bool = Field(default=True, description="false: the initial state is the weight")
    hierarchy: bool = Field(
        default=True, description="the last layer sees all layers; false: only the last but one"
    )


class VvsSettings(Settings):
    """VVS (Jo et al., AAAI 2024): one vector per video; with a switch for each row of its
    ablations."""

    family: Literal["vvs"] = "vvs"
    distractor_discrimination: bool = True
    """drop frames without content; needs pooled vectors"""
    temporal_saliency: bool = True
    topic_guidance: bool = True
    distractor: DistractorSettings = DistractorSettings()
    saliency: SaliencySettings = SaliencySettings()
    topic: TopicSettings = TopicSettings()
    injected_rates: tuple[Rate, Rate] = (0.2, 0.5)
    """fewest and most distractor frames that training inserts, as a part of the clip"""
    injection: Literal["block", "scattered"] = "block"
    """`block`: one frame, repeated in one place (the release); `scattered`: several frames, between
    those of the clip (the paper)"""
    max_magnitude: Positive | None = None
    """frames of a smaller magnitude are distractors; the paper has 40 for ResNet-50; null: the 9 %
    of smallest magnitude among a batch's frames or, in training on labelled pairs, among the frames
    of all distractors"""
    frame_loss: bool = Field(
        default=True, description="train the triplet of refined frame similarities"
    )


class TcaSettings(Settings):
    """TCA (Shao et al., WACV 2021): a transformer over frames, trained on the cosine of video
    vectors."""

    family: Literal["tca"] = "tca"
    layers: int = Field(
        default=1, ge=1, le=64, description="encoder layers; they start with equal weights"
    )
    heads: int = Field(default=8, ge=1, description="must divide the values per region")
    feedforward: int = Field(default=2048, ge=1)
    dropout: float = Field(
        default=0.5, ge=0, lt=1, description="in training; 0.5: the paper, 0.2: its release"
    )
    level: Literal["video", "frame"] = "video"
    """how two videos are compared: by the cosine of their vectors (TCA_c), or by Chamfer similarity
    of their frames (TCA_f); the weights are the same"""
    symmetric_chamfer: bool = Field(
        default=False, description="level `frame`: the mean of both directions (TCA_sym)"
    )


DEFAULT_FAMILY: Literal["similarity"] = "similarity"
"""The family of configurations and stored networks that name none."""

NUM_REGIONS = 9
"""Regions of a frame (L3-iMAC), in three rows of three."""

COMPARATOR_STEP = 4
"""The comparator halves both time axes twice, so it needs clips of at least 4 frames."""

COMPARATOR_REACH = 8
"""Rows beyond a strip that its result depends on: 1 + 2 + 4, rounded up to the comparator's step.
"""


def doubled_length(length: int, least: int = COMPARATOR_STEP) -> int:
    """How many frames the comparator sees of a clip that is repeated as a whole while it has fewer
    than `least`."""
    while length < least:
        length *= 2
    return length


def strips(num_rows: int, *, height: int) -> Iterator[tuple[slice, slice]]:
    """The parts in which the comparator refines many rows: the rows of each, and which of its
    refined rows are kept. height: of a part, with the rows beyond its ends that the convolutions
    see."""
    step = COMPARATOR_STEP
    reach = COMPARATOR_REACH
    whole = num_rows // step * step
    kept_height = max(height - 2 * reach, step) // step * step
    for start in range(0, whole, kept_height):
        end = min(start + kept_height, whole)
        before = min(start, reach)
        after = num_rows if end == whole else min(end + reach, num_rows)
        yield slice(start - before, after), slice(before // step, (before + end - start) // step)


class NetworkSettings(Settings):
    """The trained part: attention and comparator around TopK-Chamfer (HAP-VR 3.3.1)."""

    family: Literal["similarity"] = DEFAULT_FAMILY
    """which model is trained; another family has other settings, see below"""
    spatial_rate: Rate = Field(
        default=0.10, description="k_s, top-k rate over regions; 0: Chamfer, 1: average"
    )
    temporal_rate: Rate = Field(
        default=0.03, description="k_t, top-k rate over frames; 0: Chamfer, 1: average"
    )
    attention: bool = Field(default=True, description="weigh regions")
    attention_form: Literal["gated", "cosine", "linear"] = "gated"
    """`gated`: HAP-VR, S2VS, DnS; `linear`: ViSiL's release; `cosine`: that with a context vector
    of norm 1"""
    binary_bits: int = Field(default=0, ge=0)
    """length of the binary codes that replace attention (DnS); 0: none"""
    comparator: bool = Field(
        default=True, description="refine frame similarities with the convolutional network"
    )
    comparator_init: Literal["random", "identity"] = "random"
    """`identity`: training starts from the largest similarity of each 4 x 4 block"""
    padding_mode: Literal["zeros", "replicate"] = "zeros"
    """what the comparator's convolutions see beyond the edges; `replicate`: the edge repeated, as
    in ViSiL"""
    min_frames: int = Field(default=COMPARATOR_STEP, ge=COMPARATOR_STEP, le=1024)
    """the comparator gets shorter clips doubled until they have this many frames; 4: S2VS, DnS,
    ViSiL; 8: HAP-VR's release"""
    symmetric_chamfer: bool = Field(
        default=False, description="both directions at each level, as ViSiL_sym does"
    )

    @model_validator(mode="after")
    def _check(self) -> NetworkSettings:
        if self.binary_bits and self.attention:
            raise ValueError(
                f"binary_bits: got {self.binary_bits} with attention: true; codes replace "
                "attention, so set "
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


def family_of(settings: Any) -> str:
    """The family that settings name, as a model or as a mapping; the similarity network where they
    name none."""
    named = (
        settings.get("family")
        if isinstance(settings, Mapping)
        else getattr(settings, "family", None)
    )
    return str(named or DEFAULT_FAMILY)[:40]


def needs_extras(settings: AnyNetworkSettings) -> bool:
    """Whether a network of these settings reads pooled vectors and magnitudes of frames, see
    `hapvr.model.family`."""
    return isinstance(settings, VvsSettings) and settings.distractor_discrimination


def extras_rows(extras_dims: int, dims: int) -> int:
    """Rows of `dims` values that C pooled values and a magnitude take."""
    return -(-(extras_dims + 1) // dims)


AnyNetworkSettings = Annotated[
    Annotated[NetworkSettings, Tag("similarity")]
    | Annotated[TcaSettings, Tag("tca")]
    | Annotated[VvsSettings, Tag("vvs")],
    Discriminator(family_of),
]
"""The settings of a network of any family."""
