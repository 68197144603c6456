"""Crops and RandAugment of whole clips."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hapvr.augment.spatial import CropBox, crop_resize, draw_crop, rand_augment


@given(height_px=st.integers(1, 500), width_px=st.integers(1, 500), low=st.floats(0.01, 1), seed=st.integers(0, 99))
def test_draw_crop_lies_inside_the_frame(height_px, width_px, low, seed):
    """Any frame has a crop, even a strip of one pixel."""
    box = draw_crop(height_px, width_px, scale=(low, 1.0), rng=np.random.default_rng(seed))
    assert box.top_px >= 0 < box.height_px <= height_px - box.top_px
    assert box.left_px >= 0 < box.width_px <= width_px - box.left_px


def test_crop_resize_by_hand():
    """A crop at its own size is a slice; flipping mirrors it."""
    frames = torch.arange(2 * 3 * 6 * 8, dtype=torch.int64).reshape(2, 3, 6, 8).to(torch.uint8)
    box = CropBox(top_px=1, left_px=2, height_px=4, width_px=4)
    assert torch.equal(crop_resize(frames, box=box, size_px=4, flip=False), frames[:, :, 1:5, 2:6])
    assert torch.equal(crop_resize(frames, box=box, size_px=4, flip=True), frames[:, :, 1:5, 2:6].flip(-1))


def test_rand_augment_depends_on_its_seed_alone():
    """The same seed gives the same pixels; the global generator neither matters nor moves."""
    frames = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (4, 3, 16, 16), dtype=np.uint8))
    torch.manual_seed(1)
    first = rand_augment(frames, num_operations=2, magnitude=9, seed=3)
    state = torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(rand_augment(frames, num_operations=2, magnitude=9, seed=3), first)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)
