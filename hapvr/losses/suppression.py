"""The four losses of VVS: triplets of videos and of frame maps, saliency and distractors; which frames are salient."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.losses.rows import mean_where
from hapvr.model.settings import doubled_length
from hapvr.model.similarity import chamfer

WEIGHTS = {"video": 1.0, "frame": 1.0, "saliency": 1.0, "distractor": 0.5}
"""Of the losses in the total."""


def video_triplet(positive: Tensor, negative: Tensor, *, margin: float = 0.5) -> Tensor:
    """L_vi: mean over anchors of max(0, s- - s+ + margin).

    positive, negative: similarities [A] in [-1, 1] of each anchor with its positive and its negative. Returns [].
    """
    return (negative - positive + margin).clamp(min=0).mean()


def overshoot(maps: Tensor) -> Tensor:
    """psi: how far the raw cells of a map leave [-1, 1], summed; the mean over maps. maps: [A, t, t']. Returns []."""
    return (maps - F.hardtanh(maps)).abs().sum((1, 2)).mean()


def frame_loss(
    positive: Tensor, negative: Tensor, *, margin: float = 0.5, regularization_weight: float = 0.5
) -> Tensor:
    """L_fr = L_tri + weight (psi(M+) + psi(M-)), L_tri: `video_triplet` of the Chamfer similarities of clipped maps.

    positive, negative: raw maps [A, t, t'] of the comparator. Returns [].
    """
    scores = [chamfer(F.hardtanh(maps)) for maps in (positive, negative)]
    beyond = overshoot(positive) + overshoot(negative)
    return video_triplet(scores[0], scores[1], margin=margin) + regularization_weight * beyond


@torch.no_grad()
def saliency_labels(refined: Tensor, *, num_frames: int, rule: Literal["clipped", "plain"] = "clipped") -> Tensor:
    """Labels 1 (salient) and 0 of the anchor's frames.

    refined: raw frame similarities [A, t, t'] of anchor and positive after the comparator. A row is salient if its
    largest similarity exceeds a threshold. rule `clipped`: the mean over rows of the largest ones clipped to [-1, 1], and
    the best row is salient in any case (release); `plain`: the mean of the raw ones (paper). num_frames: T of the anchor;
    row k stands for the frames that nearest-neighbour stretching gives it, where an anchor of fewer than four frames
    counts as often as the comparator saw it. Returns float [A, T].
    """
    best = refined.amax(-1)
    if rule == "clipped":
        threshold = F.hardtanh(refined).amax(-1).mean(-1, keepdim=True)
        salient = (best > threshold) | (best == best.amax(-1, keepdim=True))
    else:
        salient = best > best.mean(-1, keepdim=True)
    rows = torch.arange(num_frames, device=refined.device) * refined.shape[1] // doubled_length(num_frames)
    return salient[:, rows].to(refined.dtype)


def saliency_loss(weights: Tensor, labels: Tensor) -> Tensor:
    """L_sa: binary cross-entropy of saliency weights in [0, 1] against labels 0 and 1, both [A, T], mean over frames."""
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    chosen = torch.where(labels > 0, weights, 1 - weights)
    # torch's own function refuses to run under autocast
    return -chosen.clamp(min=torch.finfo(torch.float32).tiny).log().mean()


def distractor_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """L_di: binary cross-entropy of confidences against labels 1 (content), 0 (distractor) and -1 (ignored).

    logits: [A, T], confidences before the sigmoid; labels: int8 [A, T]. Mean over frames with a label; 0 without any.
    """
    labelled = labels >= 0
    targets = labels.clamp(min=0).to(logits.dtype)
    losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return mean_where(losses, labelled)
