"""One clip upon another."""

from __future__ import annotations

import re

import pytest
import torch

from hapvr.augment.settings import AugmentConfig
from hapvr.augment.video_in_video import takes_donor, video_in_video
from hapvr.augment.view import View
from hapvr.errors import ArgumentError

WHERE = {"config": AugmentConfig(), "seed": 0, "video_id": "s/a"}


def plain_view(level, *, size_px=40, num_frames=3):
    frames = torch.full((num_frames, 3, size_px, size_px), level, dtype=torch.uint8)
    return View(frames, torch.arange(num_frames), "strong", ("reverse",))


def test_video_in_video_pastes_the_donor_in_one_place():
    """The recorded square shows the donor in all frames, the rest the host, whose sources stay."""
    host, donor = plain_view(10), plain_view(200)
    sizes = set()
    for view_index in range(20):
        view = video_in_video(host, donor, view_index=view_index, **WHERE)
        size, top, left = (int(value) for value in re.findall(r"=(\d+)", view.operations[-1]))
        expected = host.frames.clone()
        expected[:, :, top : top + size, left : left + size] = 200
        assert torch.equal(view.frames, expected)
        assert torch.equal(view.source_index, host.source_index)
        assert view.operations[0] == "reverse"
        sizes.add(size)
    assert 12 <= min(sizes) < max(sizes) <= 28
    assert host.frames.unique().tolist() == [10]


def test_release_pastes_the_clip_on_the_donor_by_area():
    """The clip itself is the inset, with 30 to 70 % of the area: sides of 0.55 to 0.84; it may stick out at the borders."""
    host, donor = plain_view(200), plain_view(10)
    where = WHERE | {"config": AugmentConfig(video_in_video_form="release")}
    sizes, cut = [], 0
    for view_index in range(200):
        view = video_in_video(host, donor, view_index=view_index, **where)
        size, top, left = (int(value) for value in re.findall(r"=(-?\d+)", view.operations[-1]))
        expected = donor.frames.clone()
        expected[:, :, max(0, top) : max(0, top + size), max(0, left) : max(0, left + size)] = 200
        assert torch.equal(view.frames, expected)
        assert torch.equal(view.source_index, host.source_index)
        sizes.append(size / 40)
        cut += top < 0 or left < 0 or top + size > 40 or left + size > 40
    assert 0.53 < min(sizes) < 0.6
    assert 0.8 < max(sizes) < 0.86
    assert 0 < cut <= 200


def test_video_in_video_is_reproducible():
    """Equal names give equal places."""
    host, donor = plain_view(10), plain_view(200)
    first, again, other = (video_in_video(host, donor, view_index=index, **WHERE) for index in (0, 0, 1))
    assert first.operations == again.operations != other.operations


def test_video_in_video_needs_equal_shapes():
    """Clips of different length or size do not fit."""
    for donor in (plain_view(1, size_px=20), plain_view(1, num_frames=2)):
        with pytest.raises(ArgumentError, match="wanted equal shapes"):
            video_in_video(plain_view(0), donor, view_index=0, **WHERE)


def test_takes_donor_follows_its_probability():
    """About the configured part of views get a donor, always the same ones."""
    drawn = [takes_donor(view_index=index, **WHERE) for index in range(2000)]
    assert 0.25 < sum(drawn) / 2000 < 0.35
    assert drawn[:20] == [takes_donor(view_index=index, **WHERE) for index in range(20)]
    never = AugmentConfig(video_in_video_probability=0)
    assert not any(takes_donor(config=never, seed=0, video_id="s/a", view_index=index) for index in range(50))
