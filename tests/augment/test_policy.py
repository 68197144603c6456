"""Weak and strong views: reproducible, and true to their source."""

import numpy as np
import pytest
import torch

from hapvr.augment import policy, views
from hapvr.augment.policy import draw_overlays, draw_view, rand_augment, video_in_video
from hapvr.augment.settings import ViewsConfig
from hapvr.augment.views import ViewPlan, choose_host
from hapvr.seeding import numpy_rng


def numbered_frames(num_frames, *, height_px=64, width_px=96):
    """[N, 3, H, W] uint8: frame n has the level n + 1 everywhere, so that any crop tells which
    frame it is."""
    levels = torch.arange(1, num_frames + 1, dtype=torch.uint8)
    return levels[:, None, None, None].expand(num_frames, 3, height_px, width_px).contiguous()


def textured_frames(num_frames, *, height_px=64, width_px=96, seed=0):
    shape = (num_frames, 3, height_px, width_px)
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def draw(strength, frames, *, video_id="s/a", view_index=0):
    plan = ViewPlan(video_id, view_index, strength, window=0)
    return draw_view(frames, plan, config=ViewsConfig(num_frames=8), size_px=32)


@pytest.fixture
def plain(monkeypatch):
    """Strong views without changes of colour."""
    monkeypatch.setattr(policy, "rand_augment", lambda frames, **_: frames)
    monkeypatch.setattr(policy, "draw_overlays", lambda frames, **_: frames)


@pytest.mark.parametrize("view", ["weak", "strong"])
def test_views_are_drawn_again_bit_for_bit(view):
    """Equal arguments give equal bytes whatever the global generators do, which stay as they
    were."""
    frames = textured_frames(30)
    kept = frames.clone()
    first = draw(view, frames)
    assert torch.equal(frames, kept)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    assert torch.equal(first, draw(view, frames.clone()))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("view", ["weak", "strong"])
@pytest.mark.parametrize("changed", [{"video_id": "s/b"}, {"view_index": 1}], ids=str)
def test_views_of_another_video_or_number_differ(view, changed):
    frames = textured_frames(30)
    assert not torch.equal(draw(view, frames, **changed), draw(view, frames))


@pytest.mark.parametrize("view", ["weak", "strong"])
@pytest.mark.parametrize(("num_available", "size"), [(1, (1, 1)), (3, (32, 200)), (100, (97, 33))])
def test_views_have_the_asked_for_shape(view, num_available, size):
    """Any video of at least one frame gives a full clip."""
    result = draw(view, textured_frames(num_available, height_px=size[0], width_px=size[1]))
    assert result.shape == (8, 3, 32, 32)
    assert result.dtype == torch.uint8


def test_weak_view_is_a_crop_of_successive_frames():
    """Levels that say column, row and number of a frame show what was cropped, and that half of the
    clips are mirrored."""
    rows, columns = torch.meshgrid(torch.arange(64), torch.arange(96), indexing="ij")
    frames = torch.stack(
        [torch.stack([columns, rows, torch.full_like(rows, n)]) for n in range(30)]
    ).to(torch.uint8)
    flips = []
    for view_index in range(40):
        across, down, numbers = draw("weak", frames, view_index=view_index).float().unbind(1)
        assert numbers.flatten(1).diff(dim=1).eq(0).all()
        assert numbers[:, 0, 0].diff().eq(1).all()
        width = abs(across[0, 0, -1] - across[0, 0, 0])
        height = down[0, -1, 0] - down[0, 0, 0]
        assert 0.7 * 64 * 96 < width * height * (32 / 31) ** 2 <= 1.05 * 64 * 96
        flips.append(bool(across[0, 0, -1] < across[0, 0, 0]))

    assert 0.25 < np.mean(flips) < 0.75


@pytest.mark.parametrize("num_available", [1, 7, 40])
def test_strong_view_shows_frames_of_the_video(plain, num_available):
    """Without changes of colour each frame is one of the video's, black or noise, and not all are
    black or noise."""
    for view_index in range(60):
        clip = draw("strong", numbered_frames(num_available), view_index=view_index)
        levels = [set(frame.unique().tolist()) for frame in clip]
        shown = [
            level
            for level in levels
            if len(level) == 1 and level <= set(range(1, num_available + 1))
        ]
        assert shown
        assert all(level == {0} or len(level) > 100 for level in levels if level not in shown)


def test_rand_augment_changes_all_frames_alike():
    """One draw for the clip: equal frames stay equal."""
    still = textured_frames(1, height_px=32, width_px=32).expand(8, -1, -1, -1).contiguous()
    clips = [rand_augment(still, seed=seed) for seed in range(8)]
    assert all(torch.equal(frame, clip[0]) for clip in clips for frame in clip)
    assert sum(not torch.equal(clip, still) for clip in clips) >= 6


def test_video_in_video_pastes_the_donor_in_one_place():
    """A square shows the donor in all frames, the rest the host."""
    host = torch.full((3, 3, 40, 40), 10, dtype=torch.uint8)
    donor = torch.full((3, 3, 40, 40), 200, dtype=torch.uint8)
    sides = set()
    for view_index in range(20):
        rng = numpy_rng(0, "video_in_video", view_index)
        pasted = video_in_video(host, donor=donor, rng=rng) == 200
        assert (pasted == pasted[:1, :1]).all()
        rows = pasted[0, 0].any(1).nonzero().flatten()
        columns = pasted[0, 0].any(0).nonzero().flatten()
        assert len(rows) == len(columns) == rows[-1] - rows[0] + 1 == columns[-1] - columns[0] + 1
        assert pasted[0, 0].sum() == len(rows) ** 2
        sides.add(len(rows))

    assert 12 <= min(sides) < max(sides) <= 28
    assert host.unique().tolist() == [10]


def test_a_view_with_a_host_is_the_donor(plain, monkeypatch):
    """The chosen view itself is shrunk and pasted on the host's, and the mix takes its place (S2VS
    3.2): most of the picture is the host's view, the inset its own."""
    levels = {"s/own": 50, "s/host": 200}
    monkeypatch.setattr(
        policy,
        "decode_jpegs",
        lambda jpegs: np.full((40, 3, 64, 64), levels[jpegs[0].decode()], dtype=np.uint8),
    )
    config = ViewsConfig(num_frames=4, strong=("global", "frame", "video_in_video"))
    drawer = policy.ViewDrawer(lambda video: [video.encode()], config=config, size_px=40)
    for view_index in range(10):
        clip = drawer.draw(ViewPlan("s/own", view_index, "strong", 0, host_id="s/host"))
        shares = {level: float((clip == level).float().mean()) for level in levels.values()}
        assert 0.29**2 < shares[50] < 0.72**2
        assert shares[200] == pytest.approx(1 - shares[50])


@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        ({}, 0.3),
        ({"video_in_video_rate": 0.5}, 0.5),
        ({"video_in_video_rate": 0.0}, 0.0),
        ({"strong": ("global", "frame", "temporal")}, 0.0),
    ],
    ids=["table 11", "text", "never", "table 3"],
)
def test_hosts_are_chosen_by_their_probability(settings, rate):
    """As many views get a host as the settings say, always the same ones."""
    config = ViewsConfig(**settings)
    others = ["s/b", "s/c"]
    drawn = [choose_host("s/a", index, others, config) for index in range(2000)]
    assert sum(map(bool, drawn)) / 2000 == pytest.approx(rate, abs=0.04)
    assert {*drawn} <= {"", *others}
    assert drawn[:20] == [choose_host("s/a", index, others, config) for index in range(20)]


def test_strong_views_without_transformations_are_drawn_as_weak_ones():
    """The first row of S2VS Table 3: successive frames, a mild crop, unchanged colours."""
    config = ViewsConfig(num_frames=8, strong=())
    for view_index in range(20):
        plan = ViewPlan("s/a", view_index, "strong", window=0)
        clip = draw_view(numbered_frames(30), plan, config=config, size_px=32)
        assert clip.flatten(1).float().std(dim=1).max() == 0
        assert (clip[:, 0, 0, 0].int().diff() == 1).all()


@pytest.mark.parametrize(("noise", "spread"), [("gaussian", 57), ("uniform", 74)])
def test_dropped_frames_have_the_noise_of_the_settings(noise, spread, plain, monkeypatch):
    """Gaussian noise (S2VS 3.2) is narrower than uniform noise (its release)."""
    monkeypatch.setattr(
        policy, "draw_temporal", lambda window, **_: np.full(8, views.NOISE, dtype=np.int64)
    )
    plan = ViewPlan("s/a", 0, "strong", window=0)
    config = ViewsConfig(num_frames=8, noise=noise)
    clip = draw_view(numbered_frames(30), plan, config=config, size_px=64).float()
    assert float(clip.std()) == pytest.approx(spread, abs=3)
    assert float(clip.mean()) == pytest.approx(115 if noise == "gaussian" else 127.5, abs=3)


@pytest.mark.parametrize("name", ["text", "emoji", "blur"])
def test_draw_overlays_changes_frames_one_by_one_at_their_rates(name, monkeypatch):
    """Each kind is drawn per frame with its own probability."""
    monkeypatch.setattr(
        policy, "OVERLAY_PROBABILITIES", {"text": 0, "emoji": 0, "blur": 0, name: 0.3}
    )
    frames = textured_frames(200, height_px=48, width_px=48)
    kept = frames.clone()
    result = draw_overlays(frames, rng=np.random.default_rng(1))
    assert torch.equal(frames, kept)
    assert result.shape == frames.shape
    changed = int((result != frames).flatten(1).any(dim=1).sum())
    assert 40 < changed < 80
