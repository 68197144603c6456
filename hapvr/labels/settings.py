"""Settings of the pseudo labels."""

from __future__ import annotations

from pydantic import Field, model_validator

from hapvr.settings import Rate, Settings


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
