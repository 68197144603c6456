"""One incident of the demo corpus: a place, the actors that move through it, and the light.

A place is a panorama in degrees around a point; actors are sprites on a floor plan. Everything is a
function of time. All surfaces are procedural, drawn from a seeded generator.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from hapvr.seeding import numpy_rng

Pixels = NDArray[np.uint8]
Plane = NDArray[Any]
Rng = np.random.Generator

SEED = 0
PANORAMA_HEIGHT_PX = 320
PIXELS_PER_DEGREE = 5
PANORAMA_WIDTH_PX = 220 * PIXELS_PER_DEGREE
HORIZON_ROW = 170
SPRITE_PX = 112
NUM_DRESSINGS = 4
NUM_PROPS = 18


def palette(rng: Rng, num_colors: int) -> Plane:
    """Colours [num_colors, 3] in 0..255 around two hues, from dark to light, as the things of one
    place have them."""
    two_hues = rng.uniform() + np.array([0.0, rng.uniform(0.25, 0.6)])
    hues = two_hues[rng.integers(0, 2, num_colors)] + rng.normal(0, 0.05, num_colors)
    saturation = rng.uniform(0.15, 0.85, num_colors)
    value = np.linspace(0.25, 0.95, num_colors)
    phase = (hues[:, None] + np.array([0.0, 2 / 3, 1 / 3])) % 1.0
    pure = np.clip(np.abs(phase * 6 - 3) - 1, 0, 1)
    colors = value[:, None] * (1 - saturation[:, None] * (1 - pure))
    return np.asarray(rng.permutation(colors * 255), dtype=np.float32)


def _fractal(rng: Rng, height_px: int, width_px: int, *, octaves: int = 5) -> Plane:
    """Cloud-like noise [height_px, width_px] in [0, 1]: octaves of smooth noise, each half as
    strong as the last."""
    total = np.zeros((height_px, width_px), dtype=np.float32)
    for octave in range(octaves):
        cells = 2 ** (octave + 2)
        coarse = rng.uniform(0, 1, (max(cells * height_px // width_px, 2), cells))
        picture = Image.fromarray(coarse.astype(np.float32))
        smooth = picture.resize((width_px, height_px), Image.Resampling.BICUBIC)
        total += np.asarray(smooth) / 2**octave

    low = total.min()
    high = total.max()
    return np.asarray((total - low) / (high - low), dtype=np.float32)


def _pattern(number: int, rng: Rng, rows: Plane, columns: Plane) -> Plane:
    """How much of the second colour a surface has where, in [0, 1]."""
    match number:
        case 0:  # stripes
            angle = rng.uniform(0, np.pi)
            period = rng.uniform(8, 30)
            across = rows * np.sin(angle) + columns * np.cos(angle)
            return np.asarray(across % period < period / 2)
        case 1:  # checks
            size = rng.uniform(6, 22)
            return (rows // size + columns // size) % 2
        case 2:
            return _bricks(rng, rows, columns)
        case 3:
            return _windows(rng, rows, columns)
        case 4:  # cells
            points = rng.uniform(0, 1, (24, 2)) * rows.shape
            down = rows[..., None] - points[:, 0]
            across = columns[..., None] - points[:, 1]
            nearest = (down**2 + across**2).argmin(-1)
            return np.asarray(rng.uniform(0, 1, len(points))[nearest])
        case 5:  # dots
            period = rng.uniform(10, 24)
            distance = np.hypot(rows % period - period / 2, columns % period - period / 2)
            return distance < period * 0.3
        case 6:  # wood
            grain = _fractal(rng, *rows.shape, octaves=4)
            return np.asarray(0.5 + 0.5 * np.sin(columns / rng.uniform(3, 9) + grain * 14))
        case _:  # clouds
            return _fractal(rng, *rows.shape)


def _bricks(rng: Rng, rows: Plane, columns: Plane) -> Plane:
    height = rng.uniform(7, 14)
    width = height * 2.2
    shifted = columns + (rows // height % 2) * width / 2
    mortar = (rows % height < 1.6) | (shifted % width < 1.6)
    tone = np.sin((rows // height) * 12.9898 + (shifted // width) * 78.233) * 43758.5453
    return np.where(mortar, 0.0, 0.55 + 0.45 * (tone - np.floor(tone)))


def _windows(rng: Rng, rows: Plane, columns: Plane) -> Plane:
    height = rng.uniform(14, 24)
    width = rng.uniform(10, 18)
    num_windows = (int(len(rows) // height) + 1, int(rows.shape[1] // width) + 1)
    lit = rng.uniform(0.2, 1.0, num_windows)
    light = lit[(rows // height).astype(int), (columns // width).astype(int)]
    glass = (rows % height > height * 0.35) & (columns % width > width * 0.4)
    return np.where(glass, light, 0.1)


def surface(rng: Rng, height_px: int, width_px: int, colors: Plane) -> Pixels:
    """A patterned, slightly weathered surface [height_px, width_px, 3] between two of `colors` [n
    >= 2, 3]."""
    pattern = int(rng.integers(8))
    first, second = colors[rng.permutation(len(colors))[:2]]
    rows, columns = np.mgrid[0:height_px, 0:width_px].astype(np.float32)
    amount = np.asarray(_pattern(pattern, rng, rows, columns), dtype=np.float32)[..., None]
    wear = 0.75 + 0.4 * _fractal(rng, height_px, width_px)[..., None]
    return to_pixels((first * (1 - amount) + second * amount) * wear)


def to_pixels(values: Plane) -> Pixels:
    """Colours that are rounded and clipped to bytes."""
    return np.asarray(np.clip(np.rint(values), 0, 255), dtype=np.uint8)


def ink(color: Plane) -> tuple[int, ...]:
    """A colour as Pillow draws with it."""
    return tuple(int(channel) for channel in color)


class Actor:
    """A prop on its way over the floor plan, in units of the scene's radius, from when it enters
    until it leaves."""

    def __init__(self, rng: Rng, *, enters_s: float) -> None:
        stays_s = rng.uniform(4, 11)
        angle = rng.uniform(0, 2 * np.pi)
        speed = rng.uniform(0.02, 0.14)
        self.velocity = np.array([speed * np.cos(angle), 0.6 * speed * np.sin(angle)])
        self.start = rng.uniform([-0.45, -0.35], [0.45, 0.35]) - self.velocity * stays_s / 2
        self.prop = int(rng.integers(NUM_PROPS))
        self.size = float(rng.choice([0.3, 0.42, 0.6, 0.85], p=[0.3, 0.35, 0.25, 0.1]))
        self.swing = rng.uniform(0, [0.12, 0.06])
        self.swing_hz = rng.uniform(0.1, 0.6)
        self.lift = float(rng.choice([0.0, rng.uniform(0.1, 0.6)], p=[0.65, 0.35]))
        self.enters_s = enters_s
        self.leaves_s = enters_s + stays_s

    def seen(self, heading: float, time_s: float) -> tuple[float, float]:
        """(depth, across) at a time of the incident, turned by a camera's heading; depth 1 is the
        scene's middle."""
        age = time_s - self.enters_s
        phase = 2 * np.pi * self.swing_hz * age
        swing = self.swing * (np.sin(phase), np.cos(phase))
        across, deep = self.start + self.velocity * age + swing
        cosine = np.cos(np.radians(heading))
        sine = np.sin(np.radians(heading))
        return float(1 + deep * cosine + across * sine), float(across * cosine - deep * sine)


class Scene:
    """An incident in a place furnished by `dressing`; equal dressings share materials and colours,
    never the layout. panorama: [PANORAMA_HEIGHT_PX, PANORAMA_WIDTH_PX, 3]. actors: about one
    entrance every two seconds; each stays for a part of the incident, so that the seconds differ.
    light: RGB gain per half second, [n, 3]: it drifts slowly, and there are a few flashes or
    blackouts of about a second."""

    def __init__(self, incident: str, dressing: int, *, duration_s: float) -> None:
        layout = numpy_rng(SEED, "layout", incident)
        materials = numpy_rng(SEED, "dressing", dressing)
        self.panorama = _panorama(layout, materials)

        rng = numpy_rng(SEED, "actors", incident)
        entrances = np.sort(rng.uniform(-6, duration_s, int(duration_s * 0.5) + 5))
        self.actors = [Actor(rng, enters_s=float(enters_s)) for enters_s in entrances]

        self.light = _light(numpy_rng(SEED, "light", incident), duration_s)


def _light(rng: Rng, duration_s: float) -> NDArray[np.float32]:
    """RGB gain per half second, [n, 3]."""
    times = np.arange(int(duration_s * 2) + 2) / 2
    gain = np.ones((len(times), 3))
    for channel in range(3):
        turns = times / rng.uniform(9, 25) + rng.uniform()
        gain[:, channel] += 0.12 * np.sin(2 * np.pi * turns)

    for moment in rng.uniform(0, duration_s, int(duration_s // 6)):
        tint = rng.uniform(0.55, 1.6) * rng.uniform(0.8, 1.2, 3)
        gain *= 1 + (tint - 1) * np.exp(-(((times - moment) / 0.8) ** 2))[:, None]

    return gain.astype(np.float32)


def _panorama(rng: Rng, materials: Rng) -> Pixels:
    """Sky, ground, and blocks of seven materials, whose edges, roofs or signs make them differ in
    outline."""
    colors = palette(materials, 8)
    sky = np.linspace(0.75, 1.2, HORIZON_ROW)[:, None, None] * colors[materials.integers(8)]
    sky = sky * (0.7 + 0.5 * _fractal(rng, HORIZON_ROW, PANORAMA_WIDTH_PX)[..., None])
    ground = surface(materials, PANORAMA_HEIGHT_PX - HORIZON_ROW, PANORAMA_WIDTH_PX, colors)
    shade = np.linspace(0.6, 1.15, len(ground))[:, None, None]
    image = Image.fromarray(np.concatenate([to_pixels(sky), to_pixels(ground * shade)]))
    draw = ImageDraw.Draw(image)
    swatches = [surface(materials, 180, 180, colors) for _ in range(7)]
    for left in sorted(rng.uniform(-40, PANORAMA_WIDTH_PX, 22)):
        _add_block(image, draw, int(left), rng, swatches, colors)
    return np.asarray(image.filter(ImageFilter.GaussianBlur(0.6)))


def _add_block(
    image: Image.Image,
    draw: ImageDraw.ImageDraw,
    left: int,
    rng: Rng,
    swatches: Sequence[Pixels],
    colors: Plane,
) -> None:
    """A building or rock, with a roof, a sign, a dome or none of them."""
    wide = int(rng.uniform(35, 130))
    high = int(rng.uniform(30, 165))
    swatch = swatches[int(rng.integers(len(swatches)))][:high, :wide]
    block = Image.fromarray(to_pixels(swatch * rng.uniform(0.6, 1.1)))
    top = HORIZON_ROW - high + int(rng.uniform(0, 30))
    image.paste(block, (left, top))

    drawn = rng.integers(0, len(colors), 2)
    color = ink(colors[drawn[0]])
    dark = ink(colors[drawn[1]])
    kind = int(rng.integers(4))
    if kind == 0:
        roof = [(left - 6, top), (left + wide // 2, top - wide // 3), (left + wide + 6, top)]
        draw.polygon(roof, fill=color)
    elif kind == 1:
        sign = [left + wide // 6, top + high // 4, left + wide * 5 // 6, top + high // 2]
        draw.rectangle(sign, fill=color, outline=dark)
    elif kind == 2:
        dome = [left, top - wide // 3, left + wide, top + wide * 2 // 3]
        draw.ellipse(dome, fill=dark, outline=color, width=4)

    draw.line([(left, top), (left, top + high)], fill=dark, width=2)
