"""Text, emoji and blur on single frames."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from hapvr.augment import overlays
from hapvr.augment.overlays import draw_overlays, overlay_emoji, overlay_text


def noise(num_frames, size_px=48):
    shape = (num_frames, 3, size_px, size_px)
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


@pytest.mark.parametrize("name", ["text", "emoji", "blur"])
def test_draw_overlays_changes_frames_one_by_one_at_their_rates(name, monkeypatch):
    """Each kind is drawn per frame with its own probability; what was done is named with its count."""
    monkeypatch.setattr(overlays, "PROBABILITIES", {"text": 0, "emoji": 0, "blur": 0, name: 0.3})
    frames = noise(200)
    kept = frames.clone()
    result, done = draw_overlays(frames, rng=np.random.default_rng(1))
    assert torch.equal(frames, kept)
    assert result.shape == frames.shape
    changed = int((result != frames).flatten(1).any(dim=1).sum())
    assert 40 < changed < 80
    assert done == (f"{name}(frames={changed})",)


def test_overlays_are_seen_but_leave_most_of_the_picture():
    """Text and emoji change something in nearly all draws and less than all of it in any."""
    grey = Image.new("RGB", (224, 224), (128, 128, 128))
    for overlay in (overlay_text, overlay_emoji):
        rng = np.random.default_rng(0)
        shares = [(np.asarray(overlay(grey, rng=rng)) != 128).any(axis=2).mean() for _ in range(60)]
        assert np.mean([share > 0.001 for share in shares]) > 0.9
        assert max(shares) < 0.5
    assert grey.getextrema() == ((128, 128),) * 3
