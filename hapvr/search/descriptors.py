"""Descriptors: one vector per sampled frame, one per video and one per region of a video, from the regions that a
similarity network weighs.

The dot product of two means of regions is the network's own frame similarity at `spatial_rate: 1`, where TopK-Chamfer
averages over all pairs of regions. So a shortlist by descriptors is the same model at its coarsest, without training.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hapvr.search.settings import DescriptorSettings

BLANK = "blank"
FROZEN = "frozen"
LEVELS = (0, 128, 255)
GREYS = (16, 32, 64, 192)
"""Together the values of red, green and blue of the pictures of one colour."""

SHORTEST = 1e-12
"""Length below which a mean has no direction."""


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
    regions: npt.NDArray[np.floating],
    *,
    blank: npt.NDArray[np.float32] | None = None,
    settings: DescriptorSettings | None = None,
) -> FrameDescriptors:
    """The descriptors of a video's frames in time order.

    regions: [T, R, D], an embedding as `Networks.vectors` gives it. blank: [B, D] of pictures of one colour, see `blank_pictures`;
    None: such frames are not told from others.
    """
    settings = settings or DescriptorSettings()
    vectors = mean_directions(regions)
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


def region_descriptors(regions: npt.NDArray[np.floating], kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """[r, D] of unit length, r <= R: the means over time of each region, of the frames that can be found.

    A picture in another picture fills a few regions throughout, and means of whole frames hardly show it. regions:
    [T, R, D] as for `frame_descriptors`, kept: [T]. Regions of which attention makes nothing are left out; nothing is
    left of frames that are one region each, as their mean is the video's descriptor.
    """
    if regions.shape[1] == 1 or not kept.any():
        return np.zeros((0, regions.shape[2]), np.float32)
    means = np.asarray(regions[kept], np.float64).mean(axis=0)
    lengths = np.linalg.norm(means, axis=1)
    said = lengths > SHORTEST
    return np.asarray(means[said] / lengths[said, None], np.float32)


def mean_directions(regions: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """[..., D] of unit length, or zero: the means of regions [..., R, D]."""
    means = np.asarray(regions, np.float32).mean(axis=-2)
    lengths = np.sqrt((means**2).sum(axis=-1, keepdims=True)).clip(min=SHORTEST)
    return np.asarray(means / lengths, np.float32)


def blank_pictures(crop_px: int) -> npt.NDArray[np.uint8]:
    """[B, 3, crop_px, crop_px]: pictures of one colour, black, white, greys and colours between.

    `mean_directions` of their regions, each embedded as a video of one frame, are the `blank` of `frame_descriptors`.
    """
    colours = [*itertools.product(LEVELS, repeat=3), *((grey, grey, grey) for grey in GREYS)]
    values = np.array(colours, np.uint8)[:, :, None, None]
    return np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], crop_px, crop_px)))
