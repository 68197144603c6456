"""Descriptors: one vector per sampled frame and one per video, from the regions that a similarity network weighs.

The dot product of two means of regions is the network's own frame similarity at `spatial_rate: 1`, where TopK-Chamfer
averages over all pairs of regions. So a shortlist by descriptors is the same model at its coarsest, without training.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.features.weights import state_sha256
from hapvr.model.family import VideoNetwork
from hapvr.search.settings import DescriptorSettings

BLANK = "blank"
FROZEN = "frozen"
LEVELS = (0, 128, 255)
GREYS = (16, 32, 64, 192)
"""Together the values of red, green and blue of the pictures of one colour."""


@dataclass(frozen=True)
class FrameDescriptors:
    """vectors: [T, D] float32 of unit length, zero where a frame gives none. reasons: [T], why a frame cannot be found:
    `blank`, it shows one colour; `frozen`, it shows what the last frame showed; "" for those that can."""

    vectors: npt.NDArray[np.float32]
    reasons: npt.NDArray[np.str_]

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        """[T], the frames that can be found."""
        return np.asarray(self.reasons == "")


def frame_descriptors(
    regions: Tensor, *, blank: npt.NDArray[np.float32] | None = None, settings: DescriptorSettings | None = None
) -> FrameDescriptors:
    """The descriptors of a video's frames in time order.

    regions: [T, R, D] from `VideoNetwork.embed`. blank: [B, D] of pictures of one colour, see `blank_descriptors`;
    None: such frames are not told from others.
    """
    settings = settings or DescriptorSettings()
    vectors = _means(regions)
    reasons = np.full(len(vectors), "", dtype="<U6")
    reasons[~vectors.any(axis=1)] = BLANK
    if blank is not None and len(blank):
        reasons[(vectors @ blank.T).max(axis=1) > settings.max_blank_similarity] = BLANK
    last = None
    for place in np.flatnonzero(reasons == ""):
        if last is not None and float(vectors[last] @ vectors[place]) > settings.max_frozen_similarity:
            reasons[place] = FROZEN
        else:
            last = place
    return FrameDescriptors(vectors, reasons)


def video_descriptor(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """[D] of unit length: the mean of the descriptors [T, D] of the frames that can be found, T >= 1."""
    mean = vectors.astype(np.float64).mean(axis=0)
    return np.asarray(mean / max(float(np.linalg.norm(mean)), np.finfo(np.float32).tiny), np.float32)


def blank_pictures(crop_px: int) -> Tensor:
    """[B, 3, crop_px, crop_px] uint8: pictures of one colour, black, white, greys and colours between."""
    colours = [*itertools.product(LEVELS, repeat=3), *((grey, grey, grey) for grey in GREYS)]
    return torch.tensor(colours, dtype=torch.uint8)[:, :, None, None].expand(-1, -1, crop_px, crop_px)


def blank_descriptors(network: VideoNetwork, regions: Tensor) -> npt.NDArray[np.float32]:
    """[B, d] unit vectors. regions: [B, R, D], features of `blank_pictures`, each a video of one frame."""
    with torch.inference_mode():
        return _means(network.embed(regions[:, None])[:, 0])


def network_digest(network: VideoNetwork) -> str:
    """16 hex digits; equal for networks that score alike."""
    text = json.dumps([network.scoring_settings(), state_sha256(network.state_dict())], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _means(regions: Tensor) -> npt.NDArray[np.float32]:
    return np.asarray(F.normalize(regions.float().mean(dim=-2), dim=-1).detach().cpu().numpy(), np.float32)
