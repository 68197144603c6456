"""What some families read of a frame in addition to its regions, appended to them in one tensor.

Everything between the source of features and a network handles [T, R, D] tensors, whole or in parts of their frames. A
source that is asked for a frame's pooled vector and magnitude appends them as further rows of D values, and the network
that asked takes them off again.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.errors import ArgumentError
from hapvr.model.settings import NUM_REGIONS


def extras_rows(extras_dims: int, dims: int) -> int:
    """Rows of `dims` values that C pooled values and a magnitude take."""
    return -(-(extras_dims + 1) // dims)


def join_extras(regions: Tensor, pooled: Tensor, magnitude: Tensor) -> Tensor:
    """[..., R, D] regions and their frame extras -> [..., R + k, D] in the dtype of the regions, padded with zeros.

    pooled: [..., C], the mean over regions before whitening, of unit norm. magnitude: [...], the norm of that mean before any
    normalisation.
    """
    dims, extras_dims = regions.shape[-1], pooled.shape[-1]
    values = torch.cat([pooled, magnitude.unsqueeze(-1)], dim=-1).to(regions.dtype)
    rows = extras_rows(extras_dims, dims)
    padded = F.pad(values, (0, rows * dims - extras_dims - 1))
    return torch.cat([regions, padded.reshape(*values.shape[:-1], rows, dims)], dim=-2)


def split_extras(features: Tensor, *, extras_dims: int) -> tuple[Tensor, Tensor, Tensor]:
    """Regions, pooled vectors and magnitudes that `join_extras` joined, as views. features: [..., 9 + k, D]; extras_dims: C.

    Raises ArgumentError for another number of rows: features without pooled vectors, or of another backbone.
    """
    rows = extras_rows(extras_dims, features.shape[-1])
    if features.shape[-2] != NUM_REGIONS + rows:
        raise ArgumentError(
            f"features: got {features.shape[-2]} rows of {features.shape[-1]} values per frame, wanted {NUM_REGIONS} regions "
            f"and {rows} rows for a pooled vector of {extras_dims} values and its magnitude; set features.pooled: true and "
            "extract the features again with the backbone of this network"
        )
    values = features[..., NUM_REGIONS:, :].flatten(-2)
    return features[..., :NUM_REGIONS, :], values[..., :extras_dims], values[..., extras_dims]
