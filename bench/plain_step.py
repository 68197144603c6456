"""HAP-VR's score and training step from their equations, one pair of videos at a time, for the
benchmarks to compare with."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.train.similarity import TrainingModule

FRAME_WEIGHT = 6.0
VIDEO_WEIGHT = 4.0
INFONCE_WEIGHT = 1.0
SSHN_WEIGHT = 3.0
DELTA = 0.05
VIDEO_RHO = 0.10
FRAME_RHO = 5.0
TEMPERATURE = 0.03


def plain_step(
    step: TrainingModule, regions: Tensor, labels: Tensor, frame_labels: Tensor, pair_index: Tensor
) -> Tensor:
    """The total loss [] of a batch, with the weights of `step`; arguments as for it."""
    weights = dict(step.network.named_parameters())
    clips = [attend(clip, weights) for clip in regions]
    frames = {}
    rows = []
    overshoot = regions.new_zeros(())
    for i, query in enumerate(clips):
        row = []
        for j, reference in enumerate(clips):
            frame = frame_similarity(query, reference)
            raw = compare(frame, weights)
            refined = raw.clamp(-1, 1)
            overshoot = overshoot + (raw - refined).abs().sum()
            row.append(refined.max(dim=1).values.mean())
            frames[i, j] = frame

        rows.append(torch.stack(row))

    video = torch.stack(rows) / 2 + 0.5
    return _objective(video, labels, frames, frame_labels, pair_index) + overshoot


def attend(features: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """x <- sigmoid(u . tanh(W x + b)) x. features: [T, R, D]."""
    hidden = torch.tanh(
        features @ weights["attention.transform.weight"].T + weights["attention.transform.bias"]
    )
    return features * torch.sigmoid(hidden @ weights["attention.context_vector.weight"].T)


def frame_similarity(query: Tensor, reference: Tensor) -> Tensor:
    """[T_q, T_r] of two videos [T, R, D]: the mean over the query's regions of the largest
    product."""
    return torch.einsum("tid,sjd->tsij", query, reference).max(dim=3).values.mean(dim=2)


def compare(frame: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """The output of the network's convolutions for frame similarities [T_q, T_r]."""
    hidden = frame[None, None]
    for layer in ("conv1", "conv2"):
        hidden = F.conv2d(
            hidden,
            weights[f"comparator.{layer}.weight"],
            weights[f"comparator.{layer}.bias"],
            padding=1,
        )
        hidden = F.max_pool2d(F.relu(hidden), 2)

    hidden = F.relu(
        F.conv2d(
            hidden, weights["comparator.conv3.weight"], weights["comparator.conv3.bias"], padding=1
        )
    )
    return F.conv2d(hidden, weights["comparator.output.weight"], weights["comparator.output.bias"])[
        0, 0
    ]


def _objective(
    video: Tensor,
    labels: Tensor,
    frames: dict[tuple[int, int], Tensor],
    frame_labels: Tensor,
    pair_index: Tensor,
) -> Tensor:
    own = torch.eye(len(video), dtype=torch.bool, device=video.device)
    positive = (labels > 0) & ~own
    negative = labels < 0
    video_ap = torch.stack(
        [_row_loss(row, positive[i], negative[i], VIDEO_RHO) for i, row in enumerate(video)]
    ).mean()
    infonce = []
    for i, row in enumerate(video):
        negatives = (row[negative[i]] / TEMPERATURE).exp().sum()
        for j in positive[i].nonzero().flatten().tolist():
            match = (row[j] / TEMPERATURE).exp()
            infonce.append(-(match / (match + negatives)).log())

    hardest = torch.stack([row[negative[i]].max() for i, row in enumerate(video)])
    sshn = (
        -(1 - hardest).clamp(min=1e-3).log().mean() - video.diagonal().clamp(min=1e-3).log().mean()
    )
    frame_ap = []
    for (i, j), pair_labels in zip(pair_index.tolist(), frame_labels, strict=True):
        if i == j:
            continue
        for row, row_labels in zip(frames[i, j], pair_labels, strict=True):
            if (row_labels > 0).any():
                frame_ap.append(_row_loss(row, row_labels > 0, row_labels < 0, FRAME_RHO))

    return (
        FRAME_WEIGHT * torch.stack(frame_ap).mean()
        + VIDEO_WEIGHT * video_ap
        + INFONCE_WEIGHT * torch.stack(infonce).mean()
        + SSHN_WEIGHT * sshn
    )


def _row_loss(row: Tensor, positive: Tensor, negative: Tensor, rho: float) -> Tensor:
    """QuadLinear-AP of one row: the mean over positives (HAP-VR Eq. 10, 11)."""
    losses = []
    for i in positive.nonzero().flatten().tolist():
        difference = (row[negative] - row[i]) / DELTA
        bound = torch.where(difference >= 0, 2 * difference + 1, (difference.clamp(-1, 0) + 1) ** 2)
        above = (row[positive] > row[i]).sum()
        ratio = bound.sum() / (1 + rho * above)
        losses.append(ratio / (1 + ratio))

    return torch.stack(losses).mean()
