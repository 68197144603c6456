"""Settings of TCA's network."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hapvr.settings import Settings


class TcaSettings(Settings):
    """TCA (Shao et al., WACV 2021): a transformer over frames, trained on the cosine of video vectors."""

    family: Literal["tca"] = "tca"
    layers: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1, description="encoder layers; they start with equal weights"
    )
    heads: Annotated[int, Field(ge=1)] = Field(default=8, description="must divide the values per region")
    feedforward: Annotated[int, Field(ge=1)] = 2048
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.5, description="in training; 0.5: the paper, 0.2: its release"
    )
    level: Literal["video", "frame"] = Field(
        default="video",
        description="what two videos are compared by: the cosine of their vectors (TCA_c), or Chamfer similarity of their "
        "frames (TCA_f); the weights are the same",
    )
    symmetric_chamfer: bool = Field(default=False, description="level `frame`: the mean of both directions (TCA_sym)")

    @model_validator(mode="after")
    def _check(self) -> TcaSettings:
        if self.level == "video" and self.symmetric_chamfer:
            raise ValueError("symmetric_chamfer compares frames: set level: frame, or leave it out")
        return self

    def scoring(self) -> dict[str, Any]:
        """The settings that decide a score, as values of JSON. Dropout is left out."""
        return self.model_dump(mode="json", exclude={"dropout"})
