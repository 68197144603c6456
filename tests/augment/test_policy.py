"""Weak and strong views: reproducible, and true to their source."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms.v2 import functional

from hapvr.augment import policy
from hapvr.augment.policy import (
    NO_SOURCE,
    View,
    draw_overlays,
    draw_view,
    overlay_emoji,
    overlay_text,
    video_in_video,
)
from hapvr.augment.settings import AugmentConfig, ViewsConfig
from hapvr.augment.temporal import draw_window
from hapvr.networks.views import choose_donor
from hapvr.seeding import numpy_rng

PLAIN = AugmentConfig(randaugment_operations=0, overlays=False)


def numbered_frames(num_frames, *, height_px=64, width_px=96):
    """[N, 3, H, W] uint8: frame n has the level n + 1 everywhere, so that any crop tells which frame it is."""
    levels = torch.arange(1, num_frames + 1, dtype=torch.uint8)
    return levels[:, None, None, None].expand(num_frames, 3, height_px, width_px).contiguous()


def textured_frames(num_frames, *, height_px=64, width_px=96, seed=0):
    shape = (num_frames, 3, height_px, width_px)
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def draw(strength, frames, *, num_frames=8, size_px=32, config=PLAIN, seed=0, video_id="s/a", view_index=0):
    rng = numpy_rng(seed, video_id, "window", 0)
    window = draw_window(len(frames), num_frames=num_frames, rng=rng)
    options = {"strength": strength, "num_frames": num_frames, "size_px": size_px, "config": config}
    return draw_view(frames, window, (seed, video_id, view_index), **options)


@pytest.mark.parametrize("view", ["weak", "strong"])
def test_views_are_drawn_again_bit_for_bit(view):
    """Equal arguments give equal bytes whatever the global generators do, which stay as they were; others differ."""
    frames = textured_frames(30)
    kept = frames.clone()
    first = draw(view, frames, config=AugmentConfig())
    assert torch.equal(frames, kept)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    again = draw(view, frames.clone(), config=AugmentConfig())
    assert torch.equal(first.frames, again.frames)
    assert torch.equal(first.source_index, again.source_index)
    assert first.operations == again.operations
    assert torch.equal(torch.get_rng_state(), state)
    for other in ({"seed": 1}, {"video_id": "s/b"}, {"view_index": 1}):
        assert not torch.equal(draw(view, frames, **other).frames, first.frames)


@pytest.mark.parametrize("view", ["weak", "strong"])
@pytest.mark.parametrize(("num_available", "size"), [(1, (1, 1)), (3, (32, 200)), (100, (97, 33))])
def test_views_have_the_asked_for_shape(view, num_available, size):
    """Any video of at least one frame gives a full clip."""
    result = draw(view, textured_frames(num_available, height_px=size[0], width_px=size[1]))
    assert result.frames.shape == (8, 3, 32, 32)
    assert result.frames.dtype == torch.uint8
    assert result.source_index.shape == (8,)
    assert result.source_index.dtype == torch.int64


def test_weak_view_is_the_recorded_crop_of_its_source_frames():
    """Cropping, scaling and mirroring the frames at source_index as recorded gives the view."""
    frames = textured_frames(30)
    flips = set()
    for view_index in range(6):
        view = draw("weak", frames, view_index=view_index)
        top, left, height, width = (int(value) for value in re.findall(r"=(\d+)", view.operations[1]))
        size = [32, 32]
        expected = functional.resized_crop(frames[view.source_index], top, left, height, width, size, antialias=True)
        flips.add("flip" in view.operations)
        expected = expected.flip(-1) if "flip" in view.operations else expected
        assert torch.equal(view.frames, expected)
        assert 0.75 * 64 * 96 < height * width <= 64 * 96
        assert view.source_index.diff().eq(1).all()
    assert flips == {True, False}


@settings(deadline=None, max_examples=60)
@given(num_available=st.integers(1, 120), view_index=st.integers(0, 10_000))
def test_strong_view_shows_the_frames_it_says(num_available, view_index):
    """Without changes of colour, each frame with a source shows that frame; the others are black or noise."""
    view = draw("strong", numbered_frames(num_available), config=PLAIN, view_index=view_index)
    for frame, source in zip(view.frames, view.source_index.tolist(), strict=True):
        if source == NO_SOURCE:
            assert frame.max() == 0 or frame.float().std() > 50
        else:
            assert torch.equal(frame, torch.full_like(frame, source + 1))
    assert (view.source_index >= 0).any()


def test_strong_view_records_everything_that_was_done():
    """Over many draws each temporal augmentation comes up about as often as configured, and all kinds are named."""
    frames = numbered_frames(40, height_px=8, width_px=8)
    views = [draw("strong", frames, size_px=4, config=PLAIN, view_index=index) for index in range(400)]
    first = [view.operations[0].split("(")[0] for view in views]
    rates = {name: first.count(name) / len(first) for name in set(first)}
    expected = {"shuffle_dropout": 0.5, "fast_forward": 0.1, "slow_motion": 0.1, "reverse": 0.1, "pause": 0.1}
    assert rates == pytest.approx({**expected, "temporal_crop": 0.1}, abs=0.07)
    assert all(view.operations[1].startswith("crop(") for view in views)
    assert 0.4 < np.mean(["flip" in view.operations for view in views]) < 0.6


def test_strong_view_applies_rand_augment_alike_to_all_frames():
    """One draw for the clip: equal frames stay equal."""
    still = textured_frames(1).expand(30, -1, -1, -1).contiguous()
    config = PLAIN.model_copy(update={"randaugment_operations": 2, "temporal": False})
    changed = 0
    for index in range(8):
        view = draw("strong", still, config=config, view_index=index)
        assert all(torch.equal(frame, view.frames[0]) for frame in view.frames)
        plain = draw("strong", still, config=PLAIN.model_copy(update={"temporal": False}), view_index=index)
        changed += not torch.equal(view.frames[0], plain.frames[-1])
    assert changed >= 6


def plain_view(level, *, size_px=40, num_frames=3):
    frames = torch.full((num_frames, 3, size_px, size_px), level, dtype=torch.uint8)
    return View(frames, torch.arange(num_frames), ("reverse",))


def test_video_in_video_pastes_the_donor_in_one_place():
    """The recorded square shows the donor in all frames, the rest the host, whose sources stay."""
    host, donor = plain_view(10), plain_view(200)
    sizes = set()
    for view_index in range(20):
        view = video_in_video(host, donor, (0, "s/a", view_index))
        size, top, left = (int(value) for value in re.findall(r"=(\d+)", view.operations[-1]))
        expected = host.frames.clone()
        expected[:, :, top : top + size, left : left + size] = 200
        assert torch.equal(view.frames, expected)
        assert torch.equal(view.source_index, host.source_index)
        assert view.operations[0] == "reverse"
        sizes.add(size)
    assert 12 <= min(sizes) < max(sizes) <= 28
    assert host.frames.unique().tolist() == [10]


def test_donors_are_chosen_by_their_probability():
    """About the configured part of views get a donor, always the same ones."""
    config, others = ViewsConfig(), ["s/b", "s/c"]
    drawn = [choose_donor("s/a", index, others, config) for index in range(2000)]
    assert 0.25 < sum(map(bool, drawn)) / 2000 < 0.35
    assert {*drawn} == {"", *others}
    assert drawn[:20] == [choose_donor("s/a", index, others, config) for index in range(20)]
    never = ViewsConfig(augment=AugmentConfig(video_in_video_probability=0))
    assert not any(choose_donor("s/a", index, others, never) for index in range(50))


@pytest.mark.parametrize("name", ["text", "emoji", "blur"])
def test_draw_overlays_changes_frames_one_by_one_at_their_rates(name, monkeypatch):
    """Each kind is drawn per frame with its own probability; what was done is named with its count."""
    monkeypatch.setattr(policy, "OVERLAY_PROBABILITIES", {"text": 0, "emoji": 0, "blur": 0, name: 0.3})
    frames = textured_frames(200, height_px=48, width_px=48)
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
