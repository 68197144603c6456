"""One vector per frame from a backbone's feature maps: iMAC and L3-iRMAC, as TCA reads them (TCA 3.1, its release)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.errors import ArgumentError

GRID = (3, 3)


def imac(maps: Sequence[Tensor]) -> Tensor:
    """The largest value of each channel of maps that have unit norm over channels at each position.

    maps: [B, C_l, H_l, W_l]. Returns [B, sum C_l], a unit vector for each map one after the other.
    """
    return torch.cat([F.normalize(F.normalize(one.float(), dim=1).amax((2, 3)), dim=1) for one in maps], dim=1)


def l3_irmac(maps: Sequence[Tensor]) -> Tensor:
    """The sum over 3 x 3 max-pooled regions, each a unit vector, of maps with unit norm over channels at each position.

    maps: [B, C_l, H_l, W_l], sides of 7 or more. With p = floor(2 side / 7) the windows are floor(1.5 p) wide and p apart.
    Returns [B, sum C_l], a unit vector for each map one after the other. Raises ArgumentError for maps that give no 3 x 3
    regions.
    """
    vectors = []
    for number, one in enumerate(maps):
        stride = max(2 * min(int(side) for side in one.shape[-2:]) // 7, 2)
        regions = F.max_pool2d(F.normalize(one.float(), dim=1), stride * 3 // 2, stride=stride)
        require_grid(number, one, regions)
        vectors.append(F.normalize(F.normalize(regions, dim=1).sum((2, 3)), dim=1))
    return torch.cat(vectors, dim=1)


def require_grid(number: int, one: Tensor, regions: Tensor) -> None:
    """Raise ArgumentError unless the regions of a map are 3 x 3."""
    if regions.shape[-2:] != GRID:
        raise ArgumentError(
            f"regions: map {number} of size {tuple(one.shape[-2:])} gives {tuple(regions.shape[-2:])} regions, wanted {GRID}; "
            "use square frames of 224 px or a similar multiple of 32"
        )
