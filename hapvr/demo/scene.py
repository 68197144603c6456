"""One incident of the demo corpus: a place, the actors that move through it, and the light, all functions of time.

A place is a panorama in degrees around a point; actors are sprites on a floor plan. Cameras (camera.py) look at both. All
surfaces are procedural, drawn from a seeded generator.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from hapvr.seeding import numpy_rng

Pixels = NDArray[np.uint8]
Plane = NDArray[Any]
Rng = np.random.Generator

PANORAMA_DEGREES = 220
PIXELS_PER_DEGREE = 5
PANORAMA_HEIGHT_PX = 320
HORIZON_ROW = 170
SPRITE_PX = 112
NUM_DRESSINGS = 4
NUM_PROPS = 18


def palette(rng: Rng, *, num_colors: int) -> Plane:
    """Colours [num_colors, 3] in 0..255 around two hues, from dark to light, as the things of one place have them."""
    hues = (rng.uniform() + np.array([0.0, rng.uniform(0.25, 0.6)]))[rng.integers(0, 2, num_colors)]
    hues = hues + rng.normal(0, 0.05, num_colors)
    saturation = rng.uniform(0.15, 0.85, num_colors)
    value = np.linspace(0.25, 0.95, num_colors)
    phase = (hues[:, None] + np.array([0.0, 2 / 3, 1 / 3])) % 1.0
    pure = np.clip(np.abs(phase * 6 - 3) - 1, 0, 1)
    colors = value[:, None] * (1 - saturation[:, None] * (1 - pure))
    return np.asarray(rng.permutation(colors * 255), dtype=np.float32)


def fractal(rng: Rng, *, height_px: int, width_px: int, octaves: int = 5) -> Plane:
    """Cloud-like noise [height_px, width_px] in [0, 1]: octaves of smooth noise, each half as strong as the last."""
    total = np.zeros((height_px, width_px), dtype=np.float32)
    for octave in range(octaves):
        cells = 2 ** (octave + 2)
        coarse = rng.uniform(0, 1, (max(cells * height_px // width_px, 2), cells)).astype(np.float32)
        smooth = Image.fromarray(coarse).resize((width_px, height_px), Image.Resampling.BICUBIC)
        total += np.asarray(smooth) / 2**octave
    low, high = total.min(), total.max()
    return np.asarray((total - low) / (high - low), dtype=np.float32)


def _stripes(rng: Rng, rows: Plane, columns: Plane) -> Plane:
    angle, period = rng.uniform(0, np.pi), rng.uniform(8, 30)
    return np.asarray(((rows * np.sin(angle) + columns * np.cos(angle)) % period) < period / 2)


def _checks(rng: Rng, rows: Plane, columns: Plane) -> Plane:
    size = rng.uniform(6, 22)
    return (rows // size + columns // size) % 2


def _bricks(rng: Rng, rows: Plane, columns: Plane) -> Plane:
    brick_height = rng.uniform(7, 14)
    brick_width = brick_height * 2.2
    shifted = columns + (rows // brick_height % 2) * brick_width / 2
    mortar = (rows % brick_height < 1.6) | (shifted % brick_width < 1.6)
    tone = np.sin((rows // brick_height) * 12.9898 + (shifted // brick_width) * 78.233) * 43758.5453
    return np.where(mortar, 0.0, 0.55 + 0.45 * (tone - np.floor(tone)))


def _windows(rng: Rng, rows: Plane, columns: Plane) -> Plane:
    height, width = rng.uniform(14, 24), rng.uniform(10, 18)
    lit = rng.uniform(0.2, 1.0, (int(rows.shape[0] // height) + 1, int(rows.shape[1] // width) + 1))
    glass = (rows % height > height * 0.35) & (columns % width > width * 0.4)
    tone = lit[(rows // height).astype(int), (columns // width).astype(int)]
    return np.where(glass, tone, 0.1)


def _cells(rng: Rng, rows: Plane, columns: Plane) -> Plane:
    points = rng.uniform(0, 1, (24, 2)) * rows.shape
    distance = (rows[..., None] - points[:, 0]) ** 2 + (columns[..., None] - points[:, 1]) ** 2
    tones = rng.uniform(0, 1, len(points))
    return np.asarray(tones[distance.argmin(-1)])


def _dots(rng: Rng, rows: Plane, columns: Plane) -> Plane:
    period = rng.uniform(10, 24)
    offset = np.hypot(rows % period - period / 2, columns % period - period / 2)
    return np.asarray(offset < period * 0.3)


def _wood(rng: Rng, rows: Plane, columns: Plane) -> Plane:
    grain = fractal(rng, height_px=rows.shape[0], width_px=rows.shape[1], octaves=4)
    return np.asarray(0.5 + 0.5 * np.sin(columns / rng.uniform(3, 9) + grain * 14))


def _clouds(rng: Rng, rows: Plane, columns: Plane) -> Plane:
    return fractal(rng, height_px=rows.shape[0], width_px=rows.shape[1])


PATTERNS = (_stripes, _checks, _bricks, _windows, _cells, _dots, _wood, _clouds)


def surface(rng: Rng, *, height_px: int, width_px: int, colors: Plane) -> Pixels:
    """A patterned, slightly weathered surface [height_px, width_px, 3] between two of `colors` [n >= 2, 3]."""
    pattern = PATTERNS[int(rng.integers(len(PATTERNS)))]
    first, second = colors[rng.permutation(len(colors))[:2]]
    rows, columns = np.mgrid[0:height_px, 0:width_px].astype(np.float32)
    amount = np.asarray(pattern(rng, rows, columns), dtype=np.float32)[..., None]
    wear = 0.75 + 0.4 * fractal(rng, height_px=height_px, width_px=width_px)[..., None]
    return to_pixels((first * (1 - amount) + second * amount) * wear)


def to_pixels(values: NDArray[Any]) -> Pixels:
    """Round to 0..255 and store as uint8; the shape stays."""
    return np.asarray(np.clip(np.rint(values), 0, 255), dtype=np.uint8)


@dataclass(frozen=True)
class Actor:
    """A prop on its way: position on the floor plan, in units of the scene's radius, and when it is there."""

    prop: int
    size: float
    start: tuple[float, float]
    velocity: tuple[float, float]
    swing: tuple[float, float]
    swing_hz: float
    lift: float
    enters_s: float
    leaves_s: float

    def position(self, time_s: float) -> tuple[float, float]:
        """Floor-plan coordinates (across, deep) at a time of the incident."""
        age = time_s - self.enters_s
        phase = 2 * np.pi * self.swing_hz * age
        return (
            float(self.start[0] + self.velocity[0] * age + self.swing[0] * np.sin(phase)),
            float(self.start[1] + self.velocity[1] * age + self.swing[1] * np.cos(phase)),
        )


@dataclass(frozen=True)
class Scene:
    """An incident.

    panorama: [PANORAMA_HEIGHT_PX, PANORAMA_DEGREES * PIXELS_PER_DEGREE, 3]. light: RGB gain per half second, [n, 3].
    """

    panorama: Pixels
    actors: tuple[Actor, ...]
    light: NDArray[np.float32]

    def light_at(self, time_s: float) -> NDArray[np.float32]:
        """RGB gain at a time of the incident, [3]."""
        position = min(max(time_s * 2, 0.0), len(self.light) - 1.001)
        index = int(position)
        rest = position - index
        return np.asarray(self.light[index] * (1 - rest) + self.light[index + 1] * rest, dtype=np.float32)


def make_scene(*, seed: int, incident: str, dressing: int, duration_s: float) -> Scene:
    """An incident in a place furnished by `dressing`; equal dressings share materials and colours, never the layout."""
    return Scene(
        panorama=_panorama(numpy_rng(seed, "layout", incident), seed=seed, dressing=dressing),
        actors=_actors(numpy_rng(seed, "actors", incident), duration_s=duration_s),
        light=_light(numpy_rng(seed, "light", incident), duration_s=duration_s),
    )


def _panorama(rng: Rng, *, seed: int, dressing: int) -> Pixels:
    materials = numpy_rng(seed, "dressing", dressing)
    colors = palette(materials, num_colors=8)
    width_px = PANORAMA_DEGREES * PIXELS_PER_DEGREE
    sky = np.linspace(0.75, 1.2, HORIZON_ROW)[:, None, None] * colors[materials.integers(8)]
    sky = sky * (0.7 + 0.5 * fractal(rng, height_px=HORIZON_ROW, width_px=width_px)[..., None])
    ground = surface(materials, height_px=PANORAMA_HEIGHT_PX - HORIZON_ROW, width_px=width_px, colors=colors)
    shade = np.linspace(0.6, 1.15, len(ground))[:, None, None]
    image = Image.fromarray(np.concatenate([to_pixels(sky), to_pixels(ground * shade)]))
    swatches = [surface(materials, height_px=180, width_px=180, colors=colors) for _ in range(7)]
    for left in sorted(rng.uniform(-40, width_px, 22)):
        wide, high = int(rng.uniform(35, 130)), int(rng.uniform(30, 165))
        swatch = swatches[int(rng.integers(len(swatches)))][:high, :wide]
        block = Image.fromarray(to_pixels(swatch * rng.uniform(0.6, 1.1)))
        top = HORIZON_ROW - high + int(rng.uniform(0, 30))
        image.paste(block, (int(left), top))
        _decorate(ImageDraw.Draw(image), rng, colors, left=int(left), top=top, wide=wide, high=high)
    return np.asarray(image.filter(ImageFilter.GaussianBlur(0.6)))


def _decorate(
    draw: ImageDraw.ImageDraw,
    rng: Rng,
    colors: NDArray[np.float32],
    *,
    left: int,
    top: int,
    wide: int,
    high: int,
) -> None:
    """Edges, a roof or a sign, so that blocks of one material differ in outline."""
    color, dark = (tuple(int(channel) for channel in colors[index]) for index in rng.integers(0, len(colors), 2))
    kind = int(rng.integers(4))
    if kind == 0:
        draw.polygon([(left - 6, top), (left + wide // 2, top - wide // 3), (left + wide + 6, top)], fill=color)
    elif kind == 1:
        sign = [left + wide // 6, top + high // 4, left + wide * 5 // 6, top + high // 2]
        draw.rectangle(sign, fill=color, outline=dark)
    elif kind == 2:
        draw.ellipse([left, top - wide // 3, left + wide, top + wide * 2 // 3], fill=dark, outline=color, width=4)
    draw.line([(left, top), (left, top + high)], fill=dark, width=2)


def _actors(rng: Rng, *, duration_s: float) -> tuple[Actor, ...]:
    """About one entrance every two seconds; each stays for a part of the incident, so that the seconds differ."""
    actors = []
    entrances = np.sort(rng.uniform(-6, duration_s, int(duration_s * 0.5) + 5))
    for enters_s in entrances:
        stays_s = rng.uniform(4, 11)
        angle = rng.uniform(0, 2 * np.pi)
        speed = rng.uniform(0.02, 0.14)
        velocity = (speed * np.cos(angle), 0.6 * speed * np.sin(angle))
        start = (
            rng.uniform(-0.45, 0.45) - velocity[0] * stays_s / 2,
            rng.uniform(-0.35, 0.35) - velocity[1] * stays_s / 2,
        )
        actors.append(
            Actor(
                prop=int(rng.integers(NUM_PROPS)),
                size=float(rng.choice([0.3, 0.42, 0.6, 0.85], p=[0.3, 0.35, 0.25, 0.1])),
                start=(float(start[0]), float(start[1])),
                velocity=(float(velocity[0]), float(velocity[1])),
                swing=(rng.uniform(0, 0.12), rng.uniform(0, 0.06)),
                swing_hz=rng.uniform(0.1, 0.6),
                lift=float(rng.choice([0.0, rng.uniform(0.1, 0.6)], p=[0.65, 0.35])),
                enters_s=float(enters_s),
                leaves_s=float(enters_s + stays_s),
            )
        )
    return tuple(actors)


def _light(rng: Rng, *, duration_s: float) -> NDArray[np.float32]:
    """Slow drift of the light's colour, and a few flashes or blackouts of about a second."""
    count = int(duration_s * 2) + 2
    times = np.arange(count) / 2
    gain = np.ones((count, 3))
    for channel in range(3):
        gain[:, channel] += 0.12 * np.sin(2 * np.pi * (times / rng.uniform(9, 25) + rng.uniform()))
    for moment in rng.uniform(0, duration_s, int(duration_s // 6)):
        tint = rng.uniform(0.55, 1.6) * rng.uniform(0.8, 1.2, 3)
        gain *= 1 + (tint - 1) * np.exp(-(((times - moment) / 0.8) ** 2))[:, None]
    return np.asarray(gain, dtype=np.float32)


@lru_cache(maxsize=64)
def prop_sprite(*, seed: int, prop: int) -> Image.Image:
    """The RGBA picture [SPRITE_PX, SPRITE_PX] of prop number `prop`, from the one store that all incidents use."""
    rng = numpy_rng(seed, "prop", prop)
    colors = palette(rng, num_colors=5)
    skin = Image.fromarray(surface(rng, height_px=SPRITE_PX, width_px=SPRITE_PX, colors=colors))
    mask = Image.new("L", (SPRITE_PX, SPRITE_PX), 0)
    draw = ImageDraw.Draw(mask)
    _OUTLINES[prop % len(_OUTLINES)](draw, rng)
    rows, columns = np.mgrid[-1 : 1 : SPRITE_PX * 1j, -1 : 1 : SPRITE_PX * 1j]
    relief = (1.15 - 0.55 * np.hypot(rows + 0.35, columns + 0.3))[..., None]
    sprite = Image.fromarray(to_pixels(np.asarray(skin) * relief))
    accent = tuple(int(channel) for channel in colors[0])
    left, top = rng.uniform(15, 60, 2)
    badge = [int(left), int(top), int(left + rng.uniform(10, 45)), int(top + rng.uniform(6, 30))]
    ImageDraw.Draw(sprite).rectangle(badge, fill=accent)
    sprite.putalpha(mask)
    return sprite


def _outline_ball(draw: ImageDraw.ImageDraw, rng: Rng) -> None:
    draw.ellipse([8, 8, 104, 104], fill=255)


def _outline_box(draw: ImageDraw.ImageDraw, rng: Rng) -> None:
    inset = int(rng.uniform(4, 30))
    draw.polygon([(inset, 10), (104, 22), (110, 108), (4, 104)], fill=255)


def _outline_person(draw: ImageDraw.ImageDraw, rng: Rng) -> None:
    draw.ellipse([43, 2, 69, 30], fill=255)
    draw.polygon([(36, 30), (76, 30), (72, 74), (40, 74)], fill=255)
    draw.line([(38, 36), (18, 70 - int(rng.uniform(0, 45)))], fill=255, width=10)
    draw.line([(74, 36), (96, 70 - int(rng.uniform(0, 45)))], fill=255, width=10)
    draw.line([(47, 70), (36, 110)], fill=255, width=13)
    draw.line([(65, 70), (78, 110)], fill=255, width=13)


def _outline_vehicle(draw: ImageDraw.ImageDraw, rng: Rng) -> None:
    draw.rounded_rectangle([2, 52, 110, 90], radius=9, fill=255)
    draw.polygon([(22, 54), (36, 28), (int(rng.uniform(70, 96)), 28), (96, 54)], fill=255)
    draw.ellipse([14, 78, 42, 106], fill=255)
    draw.ellipse([70, 78, 98, 106], fill=255)


def _outline_star(draw: ImageDraw.ImageDraw, rng: Rng) -> None:
    points = int(rng.integers(5, 10))
    angles = np.arange(2 * points) * np.pi / points
    radius = np.where(np.arange(2 * points) % 2, rng.uniform(18, 34), 54)
    outline = 56 + np.stack([radius * np.sin(angles), -radius * np.cos(angles)], axis=1)
    draw.polygon([(float(across), float(down)) for across, down in outline], fill=255)


def _outline_tree(draw: ImageDraw.ImageDraw, rng: Rng) -> None:
    draw.rectangle([50, 60, 62, 111], fill=255)
    for _ in range(7):
        across, down, radius = rng.uniform(26, 86), rng.uniform(18, 58), rng.uniform(14, 24)
        draw.ellipse([across - radius, down - radius, across + radius, down + radius], fill=255)


_OUTLINES = (_outline_ball, _outline_box, _outline_person, _outline_vehicle, _outline_star, _outline_tree)
