"""Settings of VVS: its three modules, the injection of distractors, and the weights of its losses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hapvr.settings import Rate, Settings

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Width = Annotated[int, Field(ge=1)]


class DistractorSettings(Settings):
    """Easy distractor elimination: which frames carry no content."""

    hidden: tuple[Width, Width] = Field(default=(960, 240), description="widths of the two hidden layers")
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    temperature: Positive = 1.0
    threshold: Rate = Field(
        default=0.5, description="frames of a confidence above it are kept when a video is embedded"
    )


class SaliencySettings(Settings):
    """Suppression weights from the self-similarities of neighbouring frames."""

    width: Annotated[int, Field(ge=2, multiple_of=2)] = Field(
        default=128, description="channels of the bottleneck; the encoder has four times as many, in 8 heads"
    )
    attention: Literal["frame", "temporal"] = Field(
        default="frame",
        description="`frame`: frames do not see each other in the encoder, as in the release; `temporal`: they do, "
        "as the paper describes it",
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
    initial: Literal["topic", "constant", "random"] = Field(
        default="topic",
        description="state that is refined: similarity to the video's mean, 0.5, or fixed random numbers",
    )
    refine: bool = Field(default=True, description="false: the initial state is the weight")
    hierarchy: bool = Field(default=True, description="the last layer sees all layers; false: only the last but one")


class InjectionSettings(Settings):
    """Distractor frames that training inserts into anchors."""

    min_rate: Rate = Field(default=0.2, description="fewest inserted frames, as a part of the clip")
    max_rate: Rate = Field(default=0.5, description="most inserted frames")
    max_magnitude: Positive | None = Field(
        default=None,
        description="frames of a smaller magnitude are distractors; 40 is the paper's for ResNet-50; null: `easy_rate`",
    )
    easy_rate: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.09, description="without max_magnitude this part of a batch's frames, those of the smallest magnitude"
    )

    @model_validator(mode="after")
    def _check(self) -> InjectionSettings:
        if self.min_rate > self.max_rate:
            raise ValueError(f"min_rate: got {self.min_rate}, wanted at most max_rate {self.max_rate}")
        return self


class SuppressionObjective(Settings):
    """Weights of the four losses and their margin. A weight of 0 leaves a loss out."""

    margin: Positive = 0.5
    video_weight: Weight = Field(default=1.0, description="of the triplet of video vectors; needs topic_guidance")
    frame_weight: Weight = Field(default=1.0, description="of the triplet of refined frame similarities")
    saliency_weight: Weight = 1.0
    distractor_weight: Weight = 0.5
    regularization_weight: Weight = Field(
        default=0.5, description="within the frame loss, of how far the comparator leaves [-1, 1]"
    )

    def weights(self) -> dict[str, float]:
        """The weight of each loss by its name."""
        return {name: getattr(self, f"{name}_weight") for name in ("video", "frame", "saliency", "distractor")}


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
    injection: InjectionSettings = InjectionSettings()
    objective: SuppressionObjective = SuppressionObjective()

    def scoring(self) -> dict[str, Any]:
        """The settings that decide an embedding, as values of JSON. What only training uses is left out."""
        return self.model_dump(
            mode="json",
            exclude={
                "injection": True,
                "objective": True,
                "distractor": {"dropout"},
                "saliency": {"dropout", "label_rule"},
            },
        )
