"""Text, emoji and blur on single frames."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from hapvr.augment.overlays import (
    draw_overlays,
    overlay_emoji,
    overlay_text,
)
from hapvr.augment.settings import AugmentConfig

NOTHING = {"text_probability": 0.0, "emoji_probability": 0.0, "blur_probability": 0.0}


def noise(num_frames, size_px=48):
    shape = (num_frames, 3, size_px, size_px)
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


def changed_frames(config, num_frames=200):
    frames = noise(num_frames)
    kept = frames.clone()
    result, done = draw_overlays(frames, config=config, rng=np.random.default_rng(1))
    assert torch.equal(frames, kept)
    assert result.shape == frames.shape
    return (result != frames).flatten(1).any(dim=1).float().mean().item(), done


def test_draw_overlays_changes_frames_one_by_one_at_their_rates():
    """Each kind is drawn per frame with its own probability; what was done is named with its count."""
    for name in ("text", "emoji", "blur"):
        rate, done = changed_frames(AugmentConfig(**{**NOTHING, f"{name}_probability": 0.3}))
        assert 0.2 < rate < 0.4
        assert done == (f"{name}(frames={round(rate * 200)})",)


def test_overlays_are_seen_but_leave_most_of_the_picture():
    """Text and emoji change something in nearly all draws and less than all of it in any."""
    grey = Image.new("RGB", (224, 224), (128, 128, 128))
    for overlay in (overlay_text, overlay_emoji):
        rng = np.random.default_rng(0)
        shares = [(np.asarray(overlay(grey, rng=rng)) != 128).any(axis=2).mean() for _ in range(60)]
        assert np.mean([share > 0.001 for share in shares]) > 0.9
        assert max(shares) < 0.5
    assert grey.getextrema() == ((128, 128),) * 3
