"""The augmented clip, and the checks on what clips are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hapvr.errors import ArgumentError

NO_SOURCE = -1
"""source_index of frames that show no frame of the video: blank or noise."""


@dataclass(frozen=True)
class View:
    """A training clip made from one video's sampled frames.

    frames: [T, 3, S, S] uint8 RGB. source_index: [T] int64, the video's frame behind each frame, or NO_SOURCE.
    strength: weak or strong. operations: what was done, in order, with its parameters.
    """

    frames: Tensor
    source_index: Tensor
    strength: Literal["weak", "strong"]
    operations: tuple[str, ...]


def check_frames(frames: Tensor) -> None:
    """Raise ArgumentError unless frames is a uint8 tensor [N, 3, H, W] with N, H, W >= 1."""
    if frames.dtype != torch.uint8 or frames.ndim != 4 or frames.shape[1] != 3 or 0 in frames.shape:
        raise ArgumentError(
            f"frames: wanted uint8 [N, 3, H, W] with at least one frame, got {frames.dtype} {list(frames.shape)}; "
            "decode the video's JPEG rows first"
        )
