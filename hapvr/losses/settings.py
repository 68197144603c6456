"""Settings of the training objective."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hapvr.settings import Settings

Option = float | str
"""A value of an option of a ranking loss."""

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ObjectiveSettings(Settings):
    """Terms of the loss, their weights and constants (HAP-VR Eq. 15). A weight of 0 leaves a term out.

    The AP losses are those of `hapvr.losses.registry`; their options are each loss's own, e.g. `delta` and `rho` of
    quadlinear_ap, and what is not given is the paper's (delta 0.05; rho 0.10 for videos, 5 for frames).
    """

    frame_ap_loss: str = "quadlinear_ap"
    frame_ap_weight: Weight = 6.0
    frame_ap_options: dict[str, Option] = Field(default_factory=dict)
    video_ap_loss: str = "quadlinear_ap"
    video_ap_weight: Weight = 4.0
    video_ap_options: dict[str, Option] = Field(default_factory=dict)
    infonce_weight: Weight = 1.0
    temperature: Annotated[float, Field(gt=0)] = Field(default=0.03, description="tau of InfoNCE")
    hard_negative_weight: Weight = Field(default=3.0, description="lambda_s, of both halves of SSHN")
    regularization_weight: Weight = Field(
        default=1.0, description="of how far the comparator's raw output leaves [-1, 1]"
    )
    across_queries: bool = Field(
        default=False,
        description="the video AP loss and InfoNCE rank the pairs of all queries of a batch in one list, as micro-AP does; "
        "false: the clips of each query by themselves, as in the papers",
    )
    include_self: bool = Field(default=False, description="count the self pair as a positive, as the release does")
