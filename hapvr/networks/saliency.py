"""Which frames of an anchor are salient: those that a positive clip shows as well."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.model.settings import COMPARATOR_STEP


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
    seen = num_frames
    while seen < COMPARATOR_STEP:
        seen *= 2
    rows = torch.arange(num_frames, device=refined.device) * refined.shape[1] // seen
    return salient[:, rows].to(refined.dtype)
