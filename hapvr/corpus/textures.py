"""Procedural surfaces, drawn from a seeded generator: what the demo corpus paints its scenes with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
Plane = NDArray[np.float32]


def palette(rng: np.random.Generator, *, num_colors: int) -> NDArray[np.float32]:
    """Colours [num_colors, 3] in 0..255 around two hues, from dark to light, as the things of one place have them."""
    hues = (rng.uniform() + np.array([0.0, rng.uniform(0.25, 0.6)]))[rng.integers(0, 2, num_colors)]
    hues = hues + rng.normal(0, 0.05, num_colors)
    saturation = rng.uniform(0.15, 0.85, num_colors)
    value = np.linspace(0.25, 0.95, num_colors)
    phase = (hues[:, None] + np.array([0.0, 2 / 3, 1 / 3])) % 1.0
    pure = np.clip(np.abs(phase * 6 - 3) - 1, 0, 1)
    colors = value[:, None] * (1 - saturation[:, None] * (1 - pure))
    return np.asarray(rng.permutation(colors * 255), dtype=np.float32)


def fractal(rng: np.random.Generator, *, height_px: int, width_px: int, octaves: int = 5) -> Plane:
    """Cloud-like noise [height_px, width_px] in [0, 1]: octaves of smooth noise, each half as strong as the last."""
    total = np.zeros((height_px, width_px), dtype=np.float32)
    for octave in range(octaves):
        cells = 2 ** (octave + 2)
        coarse = rng.uniform(0, 1, (max(cells * height_px // width_px, 2), cells)).astype(np.float32)
        smooth = Image.fromarray(coarse).resize((width_px, height_px), Image.Resampling.BICUBIC)
        total += np.asarray(smooth) / 2**octave
    low, high = total.min(), total.max()
    return np.asarray((total - low) / (high - low), dtype=np.float32)


def _grid(height_px: int, width_px: int) -> tuple[Plane, Plane]:
    rows, columns = np.mgrid[0:height_px, 0:width_px].astype(np.float32)
    return rows, columns


def _stripes(rng: np.random.Generator, height_px: int, width_px: int) -> Plane:
    rows, columns = _grid(height_px, width_px)
    angle, period = rng.uniform(0, np.pi), rng.uniform(8, 30)
    return np.asarray(((rows * np.sin(angle) + columns * np.cos(angle)) % period) < period / 2, dtype=np.float32)


def _checks(rng: np.random.Generator, height_px: int, width_px: int) -> Plane:
    rows, columns = _grid(height_px, width_px)
    size = rng.uniform(6, 22)
    return np.asarray((rows // size + columns // size) % 2, dtype=np.float32)


def _bricks(rng: np.random.Generator, height_px: int, width_px: int) -> Plane:
    rows, columns = _grid(height_px, width_px)
    brick_height = rng.uniform(7, 14)
    brick_width = brick_height * 2.2
    shifted = columns + (rows // brick_height % 2) * brick_width / 2
    mortar = (rows % brick_height < 1.6) | (shifted % brick_width < 1.6)
    tone = np.sin((rows // brick_height) * 12.9898 + (shifted // brick_width) * 78.233) * 43758.5453
    return np.asarray(np.where(mortar, 0.0, 0.55 + 0.45 * (tone - np.floor(tone))), dtype=np.float32)


def _windows(rng: np.random.Generator, height_px: int, width_px: int) -> Plane:
    rows, columns = _grid(height_px, width_px)
    height, width = rng.uniform(14, 24), rng.uniform(10, 18)
    lit = rng.uniform(0.2, 1.0, (int(height_px // height) + 1, int(width_px // width) + 1))
    glass = (rows % height > height * 0.35) & (columns % width > width * 0.4)
    tone = lit[(rows // height).astype(int), (columns // width).astype(int)]
    return np.asarray(np.where(glass, tone, 0.1), dtype=np.float32)


def _cells(rng: np.random.Generator, height_px: int, width_px: int) -> Plane:
    rows, columns = _grid(height_px, width_px)
    points = rng.uniform(0, 1, (24, 2)) * (height_px, width_px)
    distance = (rows[..., None] - points[:, 0]) ** 2 + (columns[..., None] - points[:, 1]) ** 2
    tones = rng.uniform(0, 1, len(points))
    return np.asarray(tones[distance.argmin(-1)], dtype=np.float32)


def _dots(rng: np.random.Generator, height_px: int, width_px: int) -> Plane:
    rows, columns = _grid(height_px, width_px)
    period = rng.uniform(10, 24)
    offset = np.hypot(rows % period - period / 2, columns % period - period / 2)
    return np.asarray(offset < period * 0.3, dtype=np.float32)


def _wood(rng: np.random.Generator, height_px: int, width_px: int) -> Plane:
    _, columns = _grid(height_px, width_px)
    grain = fractal(rng, height_px=height_px, width_px=width_px, octaves=4)
    return np.asarray(0.5 + 0.5 * np.sin(columns / rng.uniform(3, 9) + grain * 14), dtype=np.float32)


def _clouds(rng: np.random.Generator, height_px: int, width_px: int) -> Plane:
    return fractal(rng, height_px=height_px, width_px=width_px)


PATTERNS: dict[str, Callable[[np.random.Generator, int, int], Plane]] = {
    "stripes": _stripes,
    "checks": _checks,
    "bricks": _bricks,
    "windows": _windows,
    "cells": _cells,
    "dots": _dots,
    "wood": _wood,
    "clouds": _clouds,
}


def surface(
    rng: np.random.Generator, *, height_px: int, width_px: int, colors: NDArray[np.float32], pattern: str | None = None
) -> Pixels:
    """A patterned, slightly weathered surface [height_px, width_px, 3] between two of `colors` [n >= 2, 3]."""
    chosen = pattern if pattern is not None else list(PATTERNS)[int(rng.integers(len(PATTERNS)))]
    first, second = colors[rng.permutation(len(colors))[:2]]
    amount = PATTERNS[chosen](rng, height_px, width_px)[..., None]
    wear = 0.75 + 0.4 * fractal(rng, height_px=height_px, width_px=width_px)[..., None]
    return to_pixels((first * (1 - amount) + second * amount) * wear)


def to_pixels(values: NDArray[Any]) -> Pixels:
    """Round to 0..255 and store as uint8; the shape stays."""
    return np.asarray(np.clip(np.rint(values), 0, 255), dtype=np.uint8)
