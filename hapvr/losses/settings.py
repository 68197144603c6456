"""Settings of the training objectives."""

from typing import Annotated, Literal

from pydantic import Field

from hapvr.settings import Settings

LossName = Literal[
    "mae",
    "mse",
    "contrastive",
    "triplet",
    "circle",
    "fast_ap",
    "dir",
    "blackbox_ap",
    "smooth_ap",
    "quadlinear_ap",
]
"""The rows of HAP-VR Table 2, see `hapvr.losses.objective`."""

Option = int | float | str
"""A value of an option of a ranking loss."""

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ObjectiveSettings(Settings):
    """Terms of the loss, their weights and constants (HAP-VR Eq. 15). A weight of 0 leaves a term
    out. Frames are ranked by quadlinear_ap, videos by a loss of `hapvr.losses.objective`. The
    options are each loss's own, e.g. `delta` and `rho` of quadlinear_ap; what is not given is the
    paper's (delta 0.05; rho 0.10 for videos, 5 for frames)."""

    frame_ap_weight: Weight = 6.0
    frame_ap_options: dict[str, Option] = Field(default_factory=dict)
    video_ap_loss: LossName = "quadlinear_ap"
    video_ap_weight: Weight = 4.0
    video_ap_options: dict[str, Option] = Field(default_factory=dict)
    infonce_weight: Weight = 1.0
    infonce_mean: Literal["queries", "pairs"] = "queries"
    """`queries`: the mean over queries of each query's mean (HAP-VR A.3, and both releases);
    `pairs`: the mean over all positive pairs (S2VS Eq. 2)"""
    temperature: float = Field(default=0.03, gt=0)
    """tau of InfoNCE; 0.03 in S2VS 4.3 and as the best of its Table 7; its Table 11 prints 0.07"""
    self_similarity_weight: Weight = Field(default=3.0, description="lambda_s, of -log s_kk")
    hard_negative_weight: Weight = Field(
        default=3.0, description="lambda_s, of the most similar negative"
    )
    regularization_weight: Weight = 1.0
    """of how far the comparator's raw output leaves [-1, 1]"""
    across_queries: bool = False
    """the video AP loss and InfoNCE rank the pairs of all queries of a batch in one list, as
    micro-AP does; false: the clips of each query by themselves, as in the papers"""


class ContrastSettings(Settings):
    """How a video vector learns (TCA 3.4): from an anchor's own positive against the videos of a
    memory bank. With views, the anchor is a weak view, the positive a strong view of the same
    video, and strong views of all videos enter the bank; with labelled pairs, distractors do."""

    loss: Literal["circle", "infonce"] = "circle"
    circle_form: Literal["paper", "released"] = "paper"
    """`paper`: Eq. 4; `released`: as the release computes it, which takes the first row of a batch
    for positives and all other rows for negatives"""
    margin: float = Field(
        default=0.25, ge=0, lt=1, description="m of the circle loss, on raw cosines"
    )
    scale: float = Field(default=256.0, gt=0, description="gamma of the circle loss")
    temperature: float = Field(default=0.07, gt=0, description="tau of InfoNCE, on raw cosines")
    bank_size: int | None = Field(default=None, ge=0)
    """video vectors in the bank; 0: no bank; null: half the training videos, at most 4096 (the
    paper's number), and no bank where that is less than what a step adds"""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """momentum of the key encoder, a running mean of the weights; 0: the current weights"""
    batch_negatives: bool = True
    """the positives of other videos of the batch are negatives too; the paper has only the bank"""
    bank_order: Literal["before", "after"] = "after"
    """when the vectors of a step enter the bank: `before` anchors are compared with it (the paper:
    the bank is the negatives of all batches of the step), or `after` that (the release)"""
    positive_gradients: bool = False
    """positives learn as anchors do, since one encoder is shared (the paper); false: only anchors
    do (the release)"""
