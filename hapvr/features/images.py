"""Stored JPEG frames as tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg


def decode_frames(jpegs: Sequence[bytes]) -> Tensor:
    """N JPEGs of one video -> [N, 3, H, W] uint8 RGB."""
    frames: list[Tensor] = []
    for jpeg in jpegs:
        decoded = decode_jpeg(torch.from_numpy(np.frombuffer(jpeg, np.uint8).copy()), mode=ImageReadMode.RGB)
        assert isinstance(decoded, Tensor)  # a list comes back only for a list
        frames.append(decoded)
    return torch.stack(frames)
