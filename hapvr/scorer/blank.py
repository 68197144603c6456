"""Frames that show one colour: two black frames are equal, but show nothing in common."""

import itertools

import numpy as np
import numpy.typing as npt

MAX_BLANK_SIMILARITY = 0.9
"""Cosine with a picture of one colour above which a frame is blank, by any network."""
MAX_BLANK_SIMILARITY_OF_COPIES = 0.7
"""The same for vectors made for copies; those of real pictures stay below 0.42."""


def mean_directions(regions: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """[..., D] of unit length, or zero: the means of regions [..., R, D]."""
    return unit(np.asarray(regions, np.float32).mean(axis=-2))


def unit(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Vectors [..., D], each of unit length; vectors without a direction are left as they are."""
    return np.asarray(
        vectors / np.linalg.norm(vectors, axis=-1, keepdims=True).clip(min=1e-12), np.float32
    )


def blank_pictures(crop_px: int) -> npt.NDArray[np.uint8]:
    """[B, 3, crop_px, crop_px]: pictures of one colour, black, white, greys and colours between.
    `mean_directions` of their regions, each embedded as a video of one frame, are the `blank` of
    `frame_descriptors`."""
    colours = list(itertools.product((0, 128, 255), repeat=3))
    colours += [(grey, grey, grey) for grey in (16, 32, 64, 192)]
    values = np.array(colours, np.uint8)[:, :, None, None]
    return np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], crop_px, crop_px)))


def is_blank(
    vectors: npt.NDArray[np.float32], blank: npt.NDArray[np.float32]
) -> npt.NDArray[np.bool_]:
    """[T], which frames are blank. vectors: [T, D], `mean_directions` of their regions; blank: [B,
    D] of pictures of one colour."""
    return np.asarray((vectors @ blank.T).max(axis=1) > MAX_BLANK_SIMILARITY)


def is_blank_of_copies(
    vectors: npt.NDArray[np.float32], blank: npt.NDArray[np.float32]
) -> npt.NDArray[np.bool_]:
    """As `is_blank`, for vectors made for copies."""
    return np.asarray((vectors @ blank.T).max(axis=1) > MAX_BLANK_SIMILARITY_OF_COPIES)
