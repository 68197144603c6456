"""Descriptors: one vector per sampled frame and one per video, from the regions that a similarity network weighs.

The dot product of two means of regions is the network's own frame similarity at `spatial_rate: 1`, where TopK-Chamfer
averages over all pairs of regions. So a shortlist by descriptors is the same model at its coarsest, without training.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BLANK = "blank"
FROZEN = "frozen"
LEVELS = (0, 128, 255)
GREYS = (16, 32, 64, 192)
"""Together the values of red, green and blue of the pictures of one colour."""

MAX_BLANK_SIMILARITY = 0.9
"""Maximum similarity with a picture of one colour; a frame above it is blank."""

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
    max_frozen_similarity: float = 0.999,
) -> FrameDescriptors:
    """The descriptors of a video's frames in time order.

    regions: [T, R, D], an embedding as `Networks.vectors` gives it. blank: [B, D] of pictures of one colour, see `blank_pictures`;
    None: such frames are not told from others. max_frozen_similarity: cosine with the last frame that can be found, above
    which a frame is frozen.
    """
    vectors = mean_directions(regions)
    reasons = np.full(len(vectors), "", dtype="<U6")
    reasons[~vectors.any(axis=1)] = BLANK
    if blank is not None and len(blank):
        reasons[(vectors @ blank.T).max(axis=1) > MAX_BLANK_SIMILARITY] = BLANK
    last = None
    for place in np.flatnonzero(reasons == ""):
        if last is not None and float(vectors[last] @ vectors[place]) > max_frozen_similarity:
            reasons[place] = FROZEN
        else:
            last = place
    return FrameDescriptors(vectors, reasons)


def video_descriptor(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """[D] of unit length: the mean of the descriptors [T, D] of the frames that can be found, T >= 1."""
    mean = vectors.astype(np.float64).mean(axis=0)
    return np.asarray(mean / max(float(np.linalg.norm(mean)), np.finfo(np.float32).tiny), np.float32)


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
