"""Scenes and cameras: seeded, moving, seen differently by each camera."""

from __future__ import annotations

import numpy as np

from hapvr.demo.camera import film, make_camera
from hapvr.demo.scene import NUM_PROPS, PATTERNS, SPRITE_PX, fractal, make_scene, prop_sprite


def take(
    *, incident: str = "a", dressing: int = 0, camera: int = 0, start_s: float = 0.0, name: str = "t"
) -> np.ndarray:
    """Three frames, one per second."""
    scene = make_scene(seed=0, incident=incident, dressing=dressing, duration_s=20)
    return film(
        scene, make_camera(seed=0, incident=incident, camera=camera), start_s=start_s, duration_s=3, fps=1, name=name
    )


def difference(first: np.ndarray, second: np.ndarray) -> float:
    """Mean absolute difference of two videos' colour histograms and coarse layout, which sizes do not change."""
    tiny = [
        np.stack([frame[:: max(frame.shape[0] // 8, 1), :: max(frame.shape[1] // 8, 1)][:8, :8] for frame in video])
        for video in (first, second)
    ]
    return float(np.abs(tiny[0].astype(int) - tiny[1]).mean())


def test_film_is_seeded() -> None:
    """Equal arguments give equal pixels; another take of the same moment differs by shake and noise only."""
    np.testing.assert_array_equal(take(), take())
    again = take(name="u")
    assert not np.array_equal(take(), again)
    assert difference(take(), again) < difference(take(), take(incident="b"))


def test_film_moves_with_time_and_changes_with_the_camera() -> None:
    """Seconds differ from each other, and so do cameras."""
    frames = take()
    assert np.abs(frames[0].astype(int) - frames[2]).mean() > 2
    assert difference(frames, take(camera=1)) > 5


def test_make_scene_shares_materials_by_dressing_only() -> None:
    """The same dressing gives another layout in similar colours; another dressing other colours."""
    scenes = [make_scene(seed=0, incident=i, dressing=d, duration_s=5) for i, d in (("a", 0), ("b", 0), ("c", 1))]
    means = [scene.panorama.reshape(-1, 3).mean(0) for scene in scenes]
    assert not np.array_equal(scenes[0].panorama, scenes[1].panorama)
    assert np.abs(means[0] - means[1]).sum() < np.abs(means[0] - means[2]).sum()


def test_prop_sprites_have_an_outline() -> None:
    """A prop covers a part of its square and leaves the rest clear."""
    for prop in range(NUM_PROPS):
        alpha = np.asarray(prop_sprite(seed=0, prop=prop))[..., 3]
        assert alpha.shape == (SPRITE_PX, SPRITE_PX)
        assert 0.1 < (alpha > 0).mean() < 0.95


def test_patterns_fill_the_size_with_more_than_one_tone() -> None:
    """With numbers in [0, 1]; noise spans all of it."""
    rows, columns = np.mgrid[0:60, 0:80].astype(np.float32)
    for pattern in PATTERNS:
        tones = np.asarray(pattern(np.random.default_rng(0), rows, columns), float)
        assert tones.shape == (60, 80)
        assert tones.std() > 0.01
        assert 0 <= tones.min() < tones.max() <= 1
    noise = fractal(np.random.default_rng(1), height_px=30, width_px=50)
    assert (noise.min(), noise.max()) == (0, 1)
