"""One incident of the demo corpus: a place, the actors that move through it, the light, and cameras that film them.

A place is a panorama in degrees around a point; actors are sprites on a floor plan. Everything is a function of time. All
surfaces are procedural, drawn from a seeded generator.
"""

from __future__ import annotations

from functools import lru_cache
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
NUM_PATTERNS = 8
NUM_OUTLINES = 6

_CAMERA_SIZES_PX = ((320, 180), (320, 180), (256, 192), (200, 200))
_FIELD_DEGREES = 62.0
_NEAREST = 0.35


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


def _pattern(number: int, rng: Rng, rows: Plane, columns: Plane) -> Plane:
    """How much of the second colour a surface has where, in [0, 1]."""
    match number:
        case 0:  # stripes
            angle, period = rng.uniform(0, np.pi), rng.uniform(8, 30)
            return np.asarray(((rows * np.sin(angle) + columns * np.cos(angle)) % period) < period / 2)
        case 1:  # checks
            size = rng.uniform(6, 22)
            return (rows // size + columns // size) % 2
        case 2:  # bricks
            height = rng.uniform(7, 14)
            width = height * 2.2
            shifted = columns + (rows // height % 2) * width / 2
            mortar = (rows % height < 1.6) | (shifted % width < 1.6)
            tone = np.sin((rows // height) * 12.9898 + (shifted // width) * 78.233) * 43758.5453
            return np.where(mortar, 0.0, 0.55 + 0.45 * (tone - np.floor(tone)))
        case 3:  # windows
            height, width = rng.uniform(14, 24), rng.uniform(10, 18)
            lit = rng.uniform(0.2, 1.0, (int(rows.shape[0] // height) + 1, int(rows.shape[1] // width) + 1))
            glass = (rows % height > height * 0.35) & (columns % width > width * 0.4)
            return np.where(glass, lit[(rows // height).astype(int), (columns // width).astype(int)], 0.1)
        case 4:  # cells
            points = rng.uniform(0, 1, (24, 2)) * rows.shape
            distance = (rows[..., None] - points[:, 0]) ** 2 + (columns[..., None] - points[:, 1]) ** 2
            return np.asarray(rng.uniform(0, 1, len(points))[distance.argmin(-1)])
        case 5:  # dots
            period = rng.uniform(10, 24)
            return np.hypot(rows % period - period / 2, columns % period - period / 2) < period * 0.3
        case 6:  # wood
            grain = fractal(rng, height_px=rows.shape[0], width_px=rows.shape[1], octaves=4)
            return np.asarray(0.5 + 0.5 * np.sin(columns / rng.uniform(3, 9) + grain * 14))
        case _:  # clouds
            return fractal(rng, height_px=rows.shape[0], width_px=rows.shape[1])


def surface(rng: Rng, *, height_px: int, width_px: int, colors: Plane) -> Pixels:
    """A patterned, slightly weathered surface [height_px, width_px, 3] between two of `colors` [n >= 2, 3]."""
    pattern = int(rng.integers(NUM_PATTERNS))
    first, second = colors[rng.permutation(len(colors))[:2]]
    rows, columns = np.mgrid[0:height_px, 0:width_px].astype(np.float32)
    amount = np.asarray(_pattern(pattern, rng, rows, columns), dtype=np.float32)[..., None]
    wear = 0.75 + 0.4 * fractal(rng, height_px=height_px, width_px=width_px)[..., None]
    return to_pixels((first * (1 - amount) + second * amount) * wear)


def to_pixels(values: NDArray[Any]) -> Pixels:
    """Round to 0..255 and store as uint8; the shape stays."""
    return np.asarray(np.clip(np.rint(values), 0, 255), dtype=np.uint8)


class Actor:
    """A prop on its way: position on the floor plan, in units of the scene's radius, and when it is there."""

    def __init__(self, rng: Rng, *, enters_s: float) -> None:
        stays_s = rng.uniform(4, 11)
        angle = rng.uniform(0, 2 * np.pi)
        speed = rng.uniform(0.02, 0.14)
        self.velocity = (speed * np.cos(angle), 0.6 * speed * np.sin(angle))
        self.start = tuple(
            rng.uniform(-reach, reach) - along * stays_s / 2
            for reach, along in zip((0.45, 0.35), self.velocity, strict=True)
        )
        self.prop = int(rng.integers(NUM_PROPS))
        self.size = float(rng.choice([0.3, 0.42, 0.6, 0.85], p=[0.3, 0.35, 0.25, 0.1]))
        self.swing = (rng.uniform(0, 0.12), rng.uniform(0, 0.06))
        self.swing_hz = rng.uniform(0.1, 0.6)
        self.lift = float(rng.choice([0.0, rng.uniform(0.1, 0.6)], p=[0.65, 0.35]))
        self.enters_s, self.leaves_s = enters_s, enters_s + stays_s

    def position(self, time_s: float) -> tuple[float, float]:
        """Floor-plan coordinates (across, deep) at a time of the incident."""
        age = time_s - self.enters_s
        phase = 2 * np.pi * self.swing_hz * age
        return (
            float(self.start[0] + self.velocity[0] * age + self.swing[0] * np.sin(phase)),
            float(self.start[1] + self.velocity[1] * age + self.swing[1] * np.cos(phase)),
        )


class Scene:
    """An incident in a place furnished by `dressing`; equal dressings share materials and colours, never the layout.

    panorama: [PANORAMA_HEIGHT_PX, PANORAMA_WIDTH_PX, 3]. actors: about one entrance every two seconds; each stays for a part
    of the incident, so that the seconds differ. light: RGB gain per half second, [n, 3].
    """

    def __init__(self, incident: str, dressing: int, *, duration_s: float) -> None:
        self.panorama = _panorama(numpy_rng(SEED, "layout", incident), numpy_rng(SEED, "dressing", dressing))
        rng = numpy_rng(SEED, "actors", incident)
        entrances = np.sort(rng.uniform(-6, duration_s, int(duration_s * 0.5) + 5))
        self.actors = [Actor(rng, enters_s=float(enters_s)) for enters_s in entrances]
        self.light = _light(numpy_rng(SEED, "light", incident), duration_s=duration_s)

    def light_at(self, time_s: float) -> NDArray[np.float32]:
        """RGB gain at a time of the incident, [3]."""
        position = min(max(time_s * 2, 0.0), len(self.light) - 1.001)
        index = int(position)
        rest = position - index
        return np.asarray(self.light[index] * (1 - rest) + self.light[index + 1] * rest, dtype=np.float32)


def _panorama(rng: Rng, materials: Rng) -> Pixels:
    colors = palette(materials, num_colors=8)
    sky = np.linspace(0.75, 1.2, HORIZON_ROW)[:, None, None] * colors[materials.integers(8)]
    sky = sky * (0.7 + 0.5 * fractal(rng, height_px=HORIZON_ROW, width_px=PANORAMA_WIDTH_PX)[..., None])
    ground = surface(materials, height_px=PANORAMA_HEIGHT_PX - HORIZON_ROW, width_px=PANORAMA_WIDTH_PX, colors=colors)
    shade = np.linspace(0.6, 1.15, len(ground))[:, None, None]
    image = Image.fromarray(np.concatenate([to_pixels(sky), to_pixels(ground * shade)]))
    swatches = [surface(materials, height_px=180, width_px=180, colors=colors) for _ in range(7)]
    for left in sorted(rng.uniform(-40, PANORAMA_WIDTH_PX, 22)):
        wide, high = int(rng.uniform(35, 130)), int(rng.uniform(30, 165))
        swatch = swatches[int(rng.integers(len(swatches)))][:high, :wide]
        block = Image.fromarray(to_pixels(swatch * rng.uniform(0.6, 1.1)))
        top = HORIZON_ROW - high + int(rng.uniform(0, 30))
        image.paste(block, (int(left), top))
        _decorate(ImageDraw.Draw(image), rng, colors, int(left), top, wide, high)
    return np.asarray(image.filter(ImageFilter.GaussianBlur(0.6)))


def _decorate(draw: ImageDraw.ImageDraw, rng: Rng, colors: Plane, left: int, top: int, wide: int, high: int) -> None:
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
def prop_sprite(prop: int) -> Image.Image:
    """The RGBA picture [SPRITE_PX, SPRITE_PX] of prop number `prop`, from the one store that all incidents use."""
    rng = numpy_rng(SEED, "prop", prop)
    colors = palette(rng, num_colors=5)
    skin = Image.fromarray(surface(rng, height_px=SPRITE_PX, width_px=SPRITE_PX, colors=colors))
    mask = Image.new("L", (SPRITE_PX, SPRITE_PX), 0)
    draw = ImageDraw.Draw(mask)
    for shape, points, options in _outline(prop % NUM_OUTLINES, rng):
        getattr(draw, shape)(points, fill=255, **options)
    rows, columns = np.mgrid[-1 : 1 : SPRITE_PX * 1j, -1 : 1 : SPRITE_PX * 1j]
    relief = (1.15 - 0.55 * np.hypot(rows + 0.35, columns + 0.3))[..., None]
    sprite = Image.fromarray(to_pixels(np.asarray(skin) * relief))
    accent = tuple(int(channel) for channel in colors[0])
    left, top = rng.uniform(15, 60, 2)
    badge = [int(left), int(top), int(left + rng.uniform(10, 45)), int(top + rng.uniform(6, 30))]
    ImageDraw.Draw(sprite).rectangle(badge, fill=accent)
    sprite.putalpha(mask)
    return sprite


def _outline(number: int, rng: Rng) -> list[tuple[str, list[Any], dict[str, int]]]:
    """The shapes of a prop's outline: methods of ImageDraw, their points, and other arguments."""
    match number:
        case 0:  # ball
            return [("ellipse", [8, 8, 104, 104], {})]
        case 1:  # box
            return [("polygon", [(int(rng.uniform(4, 30)), 10), (104, 22), (110, 108), (4, 104)], {})]
        case 2:  # person
            return [
                ("ellipse", [43, 2, 69, 30], {}),
                ("polygon", [(36, 30), (76, 30), (72, 74), (40, 74)], {}),
                ("line", [(38, 36), (18, 70 - int(rng.uniform(0, 45)))], {"width": 10}),
                ("line", [(74, 36), (96, 70 - int(rng.uniform(0, 45)))], {"width": 10}),
                ("line", [(47, 70), (36, 110)], {"width": 13}),
                ("line", [(65, 70), (78, 110)], {"width": 13}),
            ]
        case 3:  # vehicle
            return [
                ("rounded_rectangle", [2, 52, 110, 90], {"radius": 9}),
                ("polygon", [(22, 54), (36, 28), (int(rng.uniform(70, 96)), 28), (96, 54)], {}),
                ("ellipse", [14, 78, 42, 106], {}),
                ("ellipse", [70, 78, 98, 106], {}),
            ]
        case 4:  # star
            points = int(rng.integers(5, 10))
            angles = np.arange(2 * points) * np.pi / points
            radius = np.where(np.arange(2 * points) % 2, rng.uniform(18, 34), 54)
            corners = 56 + np.stack([radius * np.sin(angles), -radius * np.cos(angles)], axis=1)
            return [("polygon", [tuple(corner) for corner in corners.tolist()], {})]
        case _:  # tree
            crowns = [(rng.uniform(26, 86), rng.uniform(18, 58), rng.uniform(14, 24)) for _ in range(7)]
            discs = [[across - size, down - size, across + size, down + size] for across, down, size in crowns]
            return [("rectangle", [50, 60, 62, 111], {}), *(("ellipse", disc, {}) for disc in discs)]


class Camera:
    """Camera number `camera` of an incident, and its operator; the first stands in front, the others well to the sides.

    Angles in degrees, positions in radii of the scene, shake in pixels of the picture.
    """

    def __init__(self, incident: str, camera: int) -> None:
        rng = numpy_rng(SEED, "camera", incident, camera)
        self.width_px, self.height_px = _CAMERA_SIZES_PX[int(rng.integers(len(_CAMERA_SIZES_PX)))]
        self.angle = (0.0, 1.0, -1.0)[camera % 3] * rng.uniform(22, 42) + rng.uniform(-6, 6)
        self.zoom = rng.uniform(0.85, 1.35)
        self.zoom_drift = rng.uniform(-0.012, 0.012)
        self.pan_degrees = rng.uniform(2, 9)
        self.pan_hz = rng.uniform(0.03, 0.12)
        self.tilt_px = rng.uniform(-12, 12)
        self.shake_px = float(rng.choice([0.4, 1.5, 3.0]))
        self.gain = np.asarray(1 + rng.uniform(-0.22, 0.22, 3), dtype=np.float32)
        self.gamma = float(np.exp(rng.uniform(-0.4, 0.4)))
        self.noise = rng.uniform(1, 4)


def film(scene: Scene, camera: Camera, *, start_s: float, duration_s: float, fps: float, name: str) -> Pixels:
    """What a camera sees: [round(duration_s * fps), height_px, width_px, 3]. `name` seeds shake and sensor noise."""
    rng = numpy_rng(SEED, "film", name)
    count = max(round(duration_s * fps), 1)
    times = start_s + np.arange(count) / fps
    jitter, kernel = rng.normal(0, camera.shake_px, (count, 2)), np.array([1, 3, 4, 3, 1]) / 12
    shake = np.stack([np.convolve(jitter[:, axis], kernel, mode="same") for axis in (0, 1)], axis=1)
    panorama = Image.fromarray(scene.panorama)
    frames = np.empty((count, camera.height_px, camera.width_px, 3), dtype=np.uint8)
    grain = rng.normal(0, camera.noise, (camera.height_px + 32, camera.width_px + 32, 3)).astype(np.int16)
    offsets = rng.integers(0, 32, (count, 2))
    for index, time_s in enumerate(times):
        picture = _expose(scene, camera, panorama, time_s=float(time_s), shake=shake[index])
        lit = np.asarray(picture.point(_response(camera, scene.light_at(float(time_s)))))
        down, across = offsets[index]
        noise = grain[down : down + camera.height_px, across : across + camera.width_px]
        frames[index] = np.clip(lit + noise, 0, 255)
    return frames


def _expose(
    scene: Scene, camera: Camera, panorama: Image.Image, *, time_s: float, shake: NDArray[np.float64]
) -> Image.Image:
    """The place behind, then the actors from far to near."""
    zoom = camera.zoom * (1 + camera.zoom_drift * time_s)
    heading = camera.angle + camera.pan_degrees * np.sin(2 * np.pi * camera.pan_hz * time_s)
    view_width = _FIELD_DEGREES * PIXELS_PER_DEGREE / zoom * min(camera.width_px / 320, 1.0)
    view_height = view_width * camera.height_px / camera.width_px
    scale = camera.width_px / view_width
    left = (PANORAMA_WIDTH_PX / PIXELS_PER_DEGREE / 2 + heading) * PIXELS_PER_DEGREE - view_width / 2 + shake[0] / scale
    top = HORIZON_ROW + camera.tilt_px - view_height * 0.55 + shake[1] / scale
    left = float(np.clip(left, 0, PANORAMA_WIDTH_PX - view_width))
    top = float(np.clip(top, 0, PANORAMA_HEIGHT_PX - view_height))
    box = (left, top, left + view_width, top + view_height)
    picture = panorama.resize((camera.width_px, camera.height_px), Image.Resampling.BILINEAR, box=box)
    horizon = (HORIZON_ROW - top) * scale
    for depth, across, actor in sorted(_visible(scene.actors, heading, time_s), key=lambda item: -item[0]):
        height = int(actor.size * camera.height_px * zoom / depth * 0.75)
        middle = camera.width_px / 2 + across / depth * camera.width_px * zoom * 1.1 + shake[0]
        feet = horizon + camera.height_px * (0.32 / depth - actor.lift * 0.5) + shake[1]
        if height < 6 or not -height < middle < camera.width_px + height:
            continue
        step = 0.06 * height * abs(np.sin(4 * time_s + actor.prop))
        sprite = _sprite(actor.prop, round(np.log(height) / np.log(1.05)))
        picture.paste(sprite, (int(middle - sprite.width / 2), int(feet - sprite.height - step)), sprite)
    return picture


def _visible(actors: list[Actor], heading: float, time_s: float) -> list[tuple[float, float, Actor]]:
    """(depth, across, actor) of those on the scene, turned by the camera's heading; depth 1 is the scene's middle."""
    cosine, sine = np.cos(np.radians(heading)), np.sin(np.radians(heading))
    seen = []
    for actor in actors:
        if actor.enters_s <= time_s < actor.leaves_s:
            across, deep = actor.position(time_s)
            depth = 1 + deep * cosine + across * sine
            if depth > _NEAREST:
                seen.append((float(depth), float(across * cosine - deep * sine), actor))
    return seen


def _response(camera: Camera, light: NDArray[np.float32]) -> list[int]:
    """The sensor's table from scene to stored value for the three channels, 768 entries."""
    levels = np.arange(256) / 255
    table = 255 * np.clip(levels[None] * (camera.gain * light)[:, None], 0, 1) ** camera.gamma
    return [int(value) for value in np.rint(table).ravel()]


@lru_cache(maxsize=256)
def _sprite(prop: int, step: int) -> Image.Image:
    """A prop at one of the sizes 1.05**step: few are drawn twice."""
    size = max(min(round(1.05**step), 4 * SPRITE_PX), 4)
    return prop_sprite(prop).resize((size, size), Image.Resampling.BILINEAR)
