"""Settings of serving."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hapvr.settings import Settings

ScoresDtype = Literal["float32", "bfloat16"]
"""Precision of embeddings and comparisons of a loaded bundle."""


class ServingConfig(Settings):
    """Limits of one request to a registered model; stored with it. HAPVR_<NAME> in the environment replaces a value.

    A video, pair or request above a limit gives rows with an error. A request's own parameters can only lower them.
    """

    max_pairs: Annotated[int, Field(ge=1)] = Field(default=10_000, description="pairs of one request")
    max_frame_pairs: Annotated[int, Field(ge=1)] = Field(
        default=1_000_000_000, description="pairs of a query's and a reference's frame, of all pairs of one request"
    )
    max_bytes: Annotated[int, Field(ge=1)] = Field(default=2_000_000_000, description="size of a video file")
    max_frames: Annotated[int, Field(ge=1)] = Field(default=3600, description="sampled frames of a video")
    video_timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=120.0, description="for decoding one video, the second try with another decoder included"
    )
    request_timeout_s: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="for a whole request; none: as long as it takes, or as the model server allows"
    )
