"""Stored frames as tensors."""

from __future__ import annotations

import numpy as np
import torch
from torchvision.io import ImageReadMode, decode_jpeg

from hapvr.features.images import decode_frames
from hapvr.seeding import numpy_rng
from hapvr.video.pool import encode_jpeg


def test_decode_frames_gives_torchvisions_pixels() -> None:
    """Smooth and noisy pictures at several qualities, to the last bit, as one contiguous tensor."""
    rng = numpy_rng(0, "jpeg")
    smooth = np.kron(rng.integers(0, 255, (6, 9, 3), dtype=np.uint8), np.ones((13, 11, 1), np.uint8))
    noisy = rng.integers(0, 255, smooth.shape, dtype=np.uint8)
    jpegs = [encode_jpeg(picture, quality=quality) for picture in (smooth, noisy) for quality in (50, 90, 100)]
    wanted = [
        decode_jpeg(torch.from_numpy(np.frombuffer(jpeg, np.uint8).copy()), mode=ImageReadMode.RGB) for jpeg in jpegs
    ]
    found = decode_frames(jpegs)
    assert torch.equal(found, torch.stack(wanted))
    assert found.is_contiguous()
