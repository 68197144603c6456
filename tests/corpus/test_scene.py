"""Scenes and cameras: seeded, moving, seen differently by each camera."""

from __future__ import annotations

import numpy as np
import pytest

from hapvr.corpus.camera import film, make_camera
from hapvr.corpus.scene import NUM_PROPS, SPRITE_PX, make_scene, prop_sprite
from hapvr.corpus.textures import PATTERNS, fractal, palette, surface


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


def test_film_shapes_and_contrast() -> None:
    """uint8 RGB with a short side of 180 to 200 pixels and pictures that are not flat."""
    for camera in range(3):
        frames = take(camera=camera)
        assert frames.dtype == np.uint8
        assert frames.shape[0] == 3
        assert 180 <= min(frames.shape[1:3]) <= 200
        assert frames.std() > 15


def test_make_scene_shares_materials_by_dressing_only() -> None:
    """The same dressing gives another layout in similar colours; another dressing other colours."""
    scenes = [make_scene(seed=0, incident=i, dressing=d, duration_s=5) for i, d in (("a", 0), ("b", 0), ("c", 1))]
    means = [scene.panorama.reshape(-1, 3).mean(0) for scene in scenes]
    assert not np.array_equal(scenes[0].panorama, scenes[1].panorama)
    assert np.abs(means[0] - means[1]).sum() < np.abs(means[0] - means[2]).sum()


@pytest.mark.parametrize("prop", range(NUM_PROPS))
def test_prop_sprite_has_an_outline(prop: int) -> None:
    """A prop covers a part of its square and leaves the rest clear."""
    alpha = np.asarray(prop_sprite(seed=0, prop=prop))[..., 3]
    assert alpha.shape == (SPRITE_PX, SPRITE_PX)
    assert 0.1 < (alpha > 0).mean() < 0.95


@pytest.mark.parametrize("pattern", PATTERNS)
def test_surface_uses_its_colors(pattern: str) -> None:
    """Every pattern fills the wanted size with more than one tone."""
    rng = np.random.default_rng(0)
    pixels = surface(rng, height_px=60, width_px=80, colors=palette(rng, num_colors=4), pattern=pattern)
    assert pixels.shape == (60, 80, 3)
    assert pixels.std() > 3


def test_fractal_spans_the_unit_interval() -> None:
    """Noise is scaled to exactly 0..1."""
    noise = fractal(np.random.default_rng(1), height_px=30, width_px=50)
    assert noise.min() == 0
    assert noise.max() == 1
