"""One incident of the demo corpus: a place, the actors that move through it, the light, and cameras
that film them.

A place is a panorama in degrees around a point; actors are sprites on a floor plan. Everything is a
function of time. All surfaces are procedural, drawn from a seeded generator.
"""

from functools import cache
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


def _palette(rng: Rng, num_colors: int) -> Plane:
    """Colours [num_colors, 3] in 0..255 around two hues, from dark to light, as the things of one
    place have them."""
    hues = (rng.uniform() + np.array([0.0, rng.uniform(0.25, 0.6)]))[rng.integers(0, 2, num_colors)]
    hues = hues + rng.normal(0, 0.05, num_colors)
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
        coarse = rng.uniform(0, 1, (max(cells * height_px // width_px, 2), cells)).astype(
            np.float32
        )
        smooth = Image.fromarray(coarse).resize((width_px, height_px), Image.Resampling.BICUBIC)
        total += np.asarray(smooth) / 2**octave
    low, high = total.min(), total.max()
    return np.asarray((total - low) / (high - low), dtype=np.float32)


def _pattern(number: int, rng: Rng, rows: Plane, columns: Plane) -> Plane:
    """How much of the second colour a surface has where, in [0, 1]."""
    match number:
        case 0:  # stripes
            angle, period = rng.uniform(0, np.pi), rng.uniform(8, 30)
            return np.asarray(
                (rows * np.sin(angle) + columns * np.cos(angle)) % period < period / 2
            )
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
            lit = rng.uniform(
                0.2, 1.0, (int(len(rows) // height) + 1, int(rows.shape[1] // width) + 1)
            )
            glass = (rows % height > height * 0.35) & (columns % width > width * 0.4)
            return np.where(
                glass, lit[(rows // height).astype(int), (columns // width).astype(int)], 0.1
            )
        case 4:  # cells
            points = rng.uniform(0, 1, (24, 2)) * rows.shape
            distance = (rows[..., None] - points[:, 0]) ** 2 + (
                columns[..., None] - points[:, 1]
            ) ** 2
            return np.asarray(rng.uniform(0, 1, len(points))[distance.argmin(-1)])
        case 5:  # dots
            period = rng.uniform(10, 24)
            return (
                np.hypot(rows % period - period / 2, columns % period - period / 2) < period * 0.3
            )
        case 6:  # wood
            grain = _fractal(rng, *rows.shape, octaves=4)
            return np.asarray(0.5 + 0.5 * np.sin(columns / rng.uniform(3, 9) + grain * 14))
        case _:  # clouds
            return _fractal(rng, *rows.shape)


def _surface(rng: Rng, height_px: int, width_px: int, colors: Plane) -> Pixels:
    """A patterned, slightly weathered surface [height_px, width_px, 3] between two of `colors` [n
    >= 2, 3]."""
    pattern = int(rng.integers(8))
    first, second = colors[rng.permutation(len(colors))[:2]]
    rows, columns = np.mgrid[0:height_px, 0:width_px].astype(np.float32)
    amount = np.asarray(_pattern(pattern, rng, rows, columns), dtype=np.float32)[..., None]
    wear = 0.75 + 0.4 * _fractal(rng, height_px, width_px)[..., None]
    return _to_pixels((first * (1 - amount) + second * amount) * wear)


def _to_pixels(values: Plane) -> Pixels:
    return np.asarray(np.clip(np.rint(values), 0, 255), dtype=np.uint8)


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
        self.enters_s, self.leaves_s = enters_s, enters_s + stays_s

    def seen(self, heading: float, time_s: float) -> tuple[float, float]:
        """(depth, across) at a time of the incident, turned by a camera's heading; depth 1 is the
        scene's middle."""
        age = time_s - self.enters_s
        phase = 2 * np.pi * self.swing_hz * age
        across, deep = (
            self.start + self.velocity * age + self.swing * (np.sin(phase), np.cos(phase))
        )
        cosine, sine = np.cos(np.radians(heading)), np.sin(np.radians(heading))
        return float(1 + deep * cosine + across * sine), float(across * cosine - deep * sine)


class Scene:
    """An incident in a place furnished by `dressing`; equal dressings share materials and colours,
    never the layout. panorama: [PANORAMA_HEIGHT_PX, PANORAMA_WIDTH_PX, 3]. actors: about one
    entrance every two seconds; each stays for a part of the incident, so that the seconds differ.
    light: RGB gain per half second, [n, 3]: it drifts slowly, and there are a few flashes or
    blackouts of about a second."""

    def __init__(self, incident: str, dressing: int, *, duration_s: float) -> None:
        self.panorama = _panorama(
            numpy_rng(SEED, "layout", incident), numpy_rng(SEED, "dressing", dressing)
        )
        rng = numpy_rng(SEED, "actors", incident)
        entrances = np.sort(rng.uniform(-6, duration_s, int(duration_s * 0.5) + 5))
        self.actors = [Actor(rng, enters_s=float(enters_s)) for enters_s in entrances]
        rng = numpy_rng(SEED, "light", incident)
        times = np.arange(int(duration_s * 2) + 2) / 2
        gain = np.ones((len(times), 3))
        for channel in range(3):
            gain[:, channel] += 0.12 * np.sin(
                2 * np.pi * (times / rng.uniform(9, 25) + rng.uniform())
            )
        for moment in rng.uniform(0, duration_s, int(duration_s // 6)):
            tint = rng.uniform(0.55, 1.6) * rng.uniform(0.8, 1.2, 3)
            gain *= 1 + (tint - 1) * np.exp(-(((times - moment) / 0.8) ** 2))[:, None]
        self.light = gain.astype(np.float32)


def _panorama(rng: Rng, materials: Rng) -> Pixels:
    """Sky, ground, and blocks of seven materials, whose edges, roofs or signs make them differ in
    outline."""
    colors = _palette(materials, 8)
    sky = np.linspace(0.75, 1.2, HORIZON_ROW)[:, None, None] * colors[materials.integers(8)]
    sky = sky * (0.7 + 0.5 * _fractal(rng, HORIZON_ROW, PANORAMA_WIDTH_PX)[..., None])
    ground = _surface(materials, PANORAMA_HEIGHT_PX - HORIZON_ROW, PANORAMA_WIDTH_PX, colors)
    shade = np.linspace(0.6, 1.15, len(ground))[:, None, None]
    image = Image.fromarray(np.concatenate([_to_pixels(sky), _to_pixels(ground * shade)]))
    draw = ImageDraw.Draw(image)
    swatches = [_surface(materials, 180, 180, colors) for _ in range(7)]
    for left in map(int, sorted(rng.uniform(-40, PANORAMA_WIDTH_PX, 22))):
        wide, high = int(rng.uniform(35, 130)), int(rng.uniform(30, 165))
        swatch = swatches[int(rng.integers(len(swatches)))][:high, :wide]
        block = Image.fromarray(_to_pixels(swatch * rng.uniform(0.6, 1.1)))
        top = HORIZON_ROW - high + int(rng.uniform(0, 30))
        image.paste(block, (left, top))
        color, dark = (
            tuple(int(channel) for channel in colors[index])
            for index in rng.integers(0, len(colors), 2)
        )
        kind = int(rng.integers(4))
        if kind == 0:
            draw.polygon(
                [(left - 6, top), (left + wide // 2, top - wide // 3), (left + wide + 6, top)],
                fill=color,
            )
        elif kind == 1:
            sign = [left + wide // 6, top + high // 4, left + wide * 5 // 6, top + high // 2]
            draw.rectangle(sign, fill=color, outline=dark)
        elif kind == 2:
            draw.ellipse(
                [left, top - wide // 3, left + wide, top + wide * 2 // 3],
                fill=dark,
                outline=color,
                width=4,
            )
        draw.line([(left, top), (left, top + high)], fill=dark, width=2)
    return np.asarray(image.filter(ImageFilter.GaussianBlur(0.6)))


@cache
def _sprite(prop: int) -> Image.Image:
    """The RGBA picture [SPRITE_PX, SPRITE_PX] of prop number `prop`, from the one store that all
    incidents use."""
    rng = numpy_rng(SEED, "prop", prop)
    colors = _palette(rng, 5)
    skin = _surface(rng, SPRITE_PX, SPRITE_PX, colors)
    mask = Image.new("L", (SPRITE_PX, SPRITE_PX), 0)
    _draw_outline(ImageDraw.Draw(mask), prop % 6, rng)
    rows, columns = np.mgrid[-1 : 1 : SPRITE_PX * 1j, -1 : 1 : SPRITE_PX * 1j]
    relief = (1.15 - 0.55 * np.hypot(rows + 0.35, columns + 0.3))[..., None]
    sprite = Image.fromarray(_to_pixels(skin * relief))
    left, top = rng.uniform(15, 60, 2)
    badge = [int(left), int(top), int(left + rng.uniform(10, 45)), int(top + rng.uniform(6, 30))]
    ImageDraw.Draw(sprite).rectangle(badge, fill=tuple(int(channel) for channel in colors[0]))
    sprite.putalpha(mask)
    return sprite


def _draw_outline(draw: ImageDraw.ImageDraw, number: int, rng: Rng) -> None:
    """The outline of a prop in white."""
    match number:
        case 0:  # ball
            draw.ellipse([8, 8, 104, 104], fill=255)
        case 1:  # box
            draw.polygon([(int(rng.uniform(4, 30)), 10), (104, 22), (110, 108), (4, 104)], fill=255)
        case 2:  # person
            draw.ellipse([43, 2, 69, 30], fill=255)
            draw.polygon([(36, 30), (76, 30), (72, 74), (40, 74)], fill=255)
            for shoulder, hand in ((38, 18), (74, 96)):
                draw.line(
                    [(shoulder, 36), (hand, 70 - int(rng.uniform(0, 45)))], fill=255, width=10
                )
            for hip, foot in ((47, 36), (65, 78)):
                draw.line([(hip, 70), (foot, 110)], fill=255, width=13)
        case 3:  # vehicle
            draw.rounded_rectangle([2, 52, 110, 90], fill=255, radius=9)
            draw.polygon([(22, 54), (36, 28), (int(rng.uniform(70, 96)), 28), (96, 54)], fill=255)
            draw.ellipse([14, 78, 42, 106], fill=255)
            draw.ellipse([70, 78, 98, 106], fill=255)
        case 4:  # star
            points = np.arange(2 * int(rng.integers(5, 10)))
            angles, radius = (
                points * 2 * np.pi / len(points),
                np.where(points % 2, rng.uniform(18, 34), 54),
            )
            corners = 56 + np.stack([radius * np.sin(angles), -radius * np.cos(angles)], axis=1)
            draw.polygon([tuple(corner) for corner in corners.tolist()], fill=255)
        case _:  # tree
            draw.rectangle([50, 60, 62, 111], fill=255)
            for _ in range(7):
                across, down, size = rng.uniform(26, 86), rng.uniform(18, 58), rng.uniform(14, 24)
                draw.ellipse([across - size, down - size, across + size, down + size], fill=255)


class Camera:
    """Camera number `camera` of an incident, and its operator; the first stands in front, the
    others well to the sides. Angles in degrees, positions in radii of the scene, shake in pixels of
    the picture."""

    def __init__(self, incident: str, camera: int) -> None:
        rng = numpy_rng(SEED, "camera", incident, camera)
        self.width_px, self.height_px = ((320, 180), (320, 180), (256, 192), (200, 200))[
            int(rng.integers(4))
        ]
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


def film(
    scene: Scene, camera: Camera, *, start_s: float, duration_s: float, fps: float, name: str
) -> Pixels:
    """What a camera sees: [round(duration_s * fps), height_px, width_px, 3]. `name` seeds shake and
    sensor noise."""
    rng = numpy_rng(SEED, "film", name)
    count = max(round(duration_s * fps), 1)
    jitter, kernel = rng.normal(0, camera.shake_px, (count, 2)), np.array([1, 3, 4, 3, 1]) / 12
    shake = np.stack([np.convolve(jitter[:, axis], kernel, mode="same") for axis in (0, 1)], axis=1)
    panorama = Image.fromarray(scene.panorama)
    frames = np.empty((count, camera.height_px, camera.width_px, 3), dtype=np.uint8)
    grain = rng.normal(0, camera.noise, (camera.height_px + 32, camera.width_px + 32, 3)).astype(
        np.int16
    )
    offsets = rng.integers(0, 32, (count, 2))
    for index, time_s in enumerate((start_s + np.arange(count) / fps).tolist()):
        moment = min(max(time_s * 2, 0.0), len(scene.light) - 1.001)
        before, rest = int(moment), moment - int(moment)
        light = scene.light[before] * (1 - rest) + scene.light[before + 1] * rest
        levels = np.clip(np.arange(256) / 255 * (camera.gain * light)[:, None], 0, 1)
        response = np.rint(255 * levels**camera.gamma).astype(
            int
        )  # of the sensor, a table per channel
        picture = _expose(scene, camera, panorama, time_s=time_s, shake=shake[index]).point(
            response.ravel().tolist()
        )
        down, across = offsets[index]
        noise = grain[down : down + camera.height_px, across : across + camera.width_px]
        frames[index] = np.clip(np.asarray(picture) + noise, 0, 255)
    return frames


def _expose(
    scene: Scene,
    camera: Camera,
    panorama: Image.Image,
    *,
    time_s: float,
    shake: NDArray[np.float64],
) -> Image.Image:
    """The place behind, then the actors from far to near."""
    zoom = camera.zoom * (1 + camera.zoom_drift * time_s)
    heading = camera.angle + camera.pan_degrees * np.sin(2 * np.pi * camera.pan_hz * time_s)
    view_width = 62.0 * PIXELS_PER_DEGREE / zoom * min(camera.width_px / 320, 1.0)
    view_height = view_width * camera.height_px / camera.width_px
    scale = camera.width_px / view_width
    left = (
        (PANORAMA_WIDTH_PX / PIXELS_PER_DEGREE / 2 + heading) * PIXELS_PER_DEGREE
        - view_width / 2
        + shake[0] / scale
    )
    top = HORIZON_ROW + camera.tilt_px - view_height * 0.55 + shake[1] / scale
    left = float(np.clip(left, 0, PANORAMA_WIDTH_PX - view_width))
    top = float(np.clip(top, 0, PANORAMA_HEIGHT_PX - view_height))
    box = (left, top, left + view_width, top + view_height)
    picture = panorama.resize(
        (camera.width_px, camera.height_px), Image.Resampling.BILINEAR, box=box
    )
    horizon = (HORIZON_ROW - top) * scale
    there = [actor for actor in scene.actors if actor.enters_s <= time_s < actor.leaves_s]
    seen = [(*actor.seen(heading, time_s), actor) for actor in there]
    for depth, across, actor in sorted(seen, key=lambda item: -item[0]):
        height = int(actor.size * camera.height_px * zoom / depth * 0.75)
        middle = camera.width_px / 2 + across / depth * camera.width_px * zoom * 1.1 + shake[0]
        feet = horizon + camera.height_px * (0.32 / depth - actor.lift * 0.5) + shake[1]
        if depth <= 0.35 or height < 6 or not -height < middle < camera.width_px + height:
            continue
        step = 0.06 * height * abs(np.sin(4 * time_s + actor.prop))
        # sizes are powers of 1.05
        size = max(min(round(1.05 ** round(np.log(height) / np.log(1.05))), 4 * SPRITE_PX), 4)
        sprite = _sprite(actor.prop).resize((size, size), Image.Resampling.BILINEAR)
        picture.paste(sprite, (int(middle - size / 2), int(feet - size - step)), sprite)
    return picture
