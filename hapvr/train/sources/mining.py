"""What a training on labelled pairs looks up once: the distractors most like a video, and the
distractors' frames without content."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.model.family import split_extras

EASY_RATE = 0.09
"""The part of all frames that count as easy distractors if no magnitude is given; the paper's 40 is
about this quantile of the distractors of VCDB (VVS, Table A)."""
COMPARED_ANCHORS = 1024
"""How many anchors are compared with all distractors at once."""

ReadFeatures = Callable[[str], Tensor]
"""All frames of a video: [T, R + k, D]."""


@dataclass(frozen=True)
class EasyFrames:
    """Frames of distractors that show next to nothing (VVS, Easy Distractor Elimination Stage).

    videos: int32 [F], numbers of distractors. frames: int32 [F], the frame of each."""

    videos: npt.NDArray[np.int32]
    frames: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.videos)


@dataclass(frozen=True)
class Survey:
    """One reading of all videos of a training.

    means: [N, D] unit vectors, the mean over frames and regions of each video. easy: of the
    distractors; None where the network does not discriminate them."""

    means: Tensor
    easy: EasyFrames | None


def survey(
    videos: Sequence[str],
    distractors: Iterable[str],
    read: ReadFeatures,
    *,
    extras_dims: int,
    max_magnitude: float | None,
) -> Survey:
    """Read each video once.

    read: with frame extras where extras_dims > 0. max_magnitude: frames of a smaller magnitude are
    easy; None: the EASY_RATE of the smallest."""
    number_of = {video_id: number for number, video_id in enumerate(distractors)}
    means = []
    numbers = []
    frames = []
    magnitudes = []
    for video_id in videos:
        features = read(video_id)
        regions = features
        if extras_dims:
            regions, _, magnitude = split_extras(features, extras_dims=extras_dims)
            if video_id in number_of:
                numbers.append(np.full(len(magnitude), number_of[video_id], np.int32))
                frames.append(np.arange(len(magnitude), dtype=np.int32))
                magnitudes.append(magnitude.float().numpy())

        means.append(F.normalize(regions.float().mean((0, 1)), dim=-1))

    easy = None
    if extras_dims:
        easy = _easy_frames(
            np.concatenate(numbers),
            np.concatenate(frames),
            np.concatenate(magnitudes),
            max_magnitude=max_magnitude,
        )

    return Survey(means=torch.stack(means), easy=easy)


def _easy_frames(
    videos: npt.NDArray[np.int32],
    frames: npt.NDArray[np.int32],
    magnitudes: npt.NDArray[np.float32],
    *,
    max_magnitude: float | None,
) -> EasyFrames:
    """The frames below the limit, or the smallest one where there are none."""
    limit = np.quantile(magnitudes, EASY_RATE) if max_magnitude is None else max_magnitude
    is_easy = magnitudes < limit
    if not is_easy.any():
        is_easy = magnitudes == magnitudes.min()
    return EasyFrames(videos=videos[is_easy], frames=frames[is_easy])


def nearest_distractors(
    anchors: Tensor, distractors: Tensor, *, count: int, own: Tensor
) -> npt.NDArray[np.int32]:
    """The distractors most like each anchor, the nearest first: hard negatives.

    anchors: unit vectors [A, D]. distractors: unit vectors [N, D]. own: int64 [A], the distractor
    that an anchor is itself, which is never its own negative, or -1. Returns int32 [A, count],
    fewer columns where there are fewer distractors."""
    available = len(distractors) - int(bool((own >= 0).any()))
    count = min(count, available)
    nearest = []
    for start in range(0, len(anchors), COMPARED_ANCHORS):
        cosines = anchors[start : start + COMPARED_ANCHORS] @ distractors.T
        selves = own[start : start + COMPARED_ANCHORS]
        rows = (selves >= 0).nonzero().flatten()
        cosines[rows, selves[rows]] = -torch.inf
        nearest.append(cosines.topk(count, dim=1).indices)

    return torch.cat(nearest).numpy().astype(np.int32)
