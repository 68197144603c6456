"""Stored JPEG frames as tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hapvr.video.jpeg import decode_jpegs


def decode_frames(jpegs: Sequence[bytes]) -> Tensor:
    """`decode_jpegs` as a tensor, [N, 3, H, W] uint8 RGB."""
    return torch.from_numpy(decode_jpegs(jpegs)).contiguous()
