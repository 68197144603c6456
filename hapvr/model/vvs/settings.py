"""Settings of VVS: its three modules, and how it is trained."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hapvr.settings import Rate, Settings

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Width = Annotated[int, Field(ge=1)]


class DistractorSettings(Settings):
    """Easy distractor elimination: which frames carry no content."""

    hidden: tuple[Width, Width] = Field(default=(960, 240), description="widths of the two hidden layers")
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    temperature: Positive = 1.0


class SaliencySettings(Settings):
    """Suppression weights from the self-similarities of neighbouring frames."""

    width: Annotated[int, Field(ge=2, multiple_of=2)] = Field(
        default=128, description="channels of the bottleneck; the encoder has four times as many, in 8 heads"
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    temperature: Positive = 1.0
    label_rule: Literal["clipped", "plain"] = Field(
        default="clipped",
        description="a frame is salient above the mean of the clipped similarities, or as the best one (`clipped`, the "
        "release), or above the mean of the raw ones (`plain`, the paper)",
    )


class TopicSettings(Settings):
    """Suppression weights from how near a frame is to the whole video."""

    temperature: Positive = 512.0
    initial: Literal["topic", "constant"] = Field(
        default="topic", description="state that is refined: similarity to the video's mean, or 0.5"
    )
    refine: bool = Field(default=True, description="false: the initial state is the weight")
    hierarchy: bool = Field(default=True, description="the last layer sees all layers; false: only the last but one")


class VvsSettings(Settings):
    """VVS (Jo et al., AAAI 2024): one vector per video; with a switch for each row of its ablations."""

    family: Literal["vvs"] = "vvs"
    distractor_discrimination: bool = Field(
        default=True, description="drop frames without content; needs pooled vectors"
    )
    temporal_saliency: bool = True
    topic_guidance: bool = True
    distractor: DistractorSettings = DistractorSettings()
    saliency: SaliencySettings = SaliencySettings()
    topic: TopicSettings = TopicSettings()
    injected_rates: tuple[Rate, Rate] = Field(
        default=(0.2, 0.5), description="fewest and most distractor frames that training inserts, as a part of the clip"
    )
    max_magnitude: Positive | None = Field(
        default=None,
        description="frames of a smaller magnitude are distractors; 40 is the paper's for ResNet-50; null: the 9 % of a batch's "
        "frames with the smallest magnitude",
    )
    frame_loss: bool = Field(default=True, description="train the triplet of refined frame similarities")

    def scoring(self) -> dict[str, Any]:
        """The settings that decide an embedding, as values of JSON. What only training uses is left out."""
        unused: dict[str, Any] = {"distractor": {"dropout"}, "saliency": {"dropout", "label_rule"}}
        unused |= {"injected_rates": True, "max_magnitude": True, "frame_loss": True}
        return self.model_dump(mode="json", exclude=unused)
