"""Cameras of the demo corpus, and what they film of a scene."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hapvr.demo.props import sprite_of
from hapvr.demo.scene import (
    HORIZON_ROW,
    PANORAMA_HEIGHT_PX,
    PANORAMA_WIDTH_PX,
    PIXELS_PER_DEGREE,
    SEED,
    SPRITE_PX,
    Actor,
    Pixels,
    Scene,
)
from hapvr.seeding import numpy_rng

PICTURE_SIZES = ((320, 180), (320, 180), (256, 192), (200, 200))


class Camera:
    """Camera number `camera` of an incident, and its operator; the first stands in front, the
    others well to the sides. Angles in degrees, positions in radii of the scene, shake in pixels of
    the picture."""

    def __init__(self, incident: str, camera: int) -> None:
        rng = numpy_rng(SEED, "camera", incident, camera)
        self.width_px, self.height_px = PICTURE_SIZES[int(rng.integers(len(PICTURE_SIZES)))]
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
    jitter = rng.normal(0, camera.shake_px, (count, 2))
    kernel = np.array([1, 3, 4, 3, 1]) / 12
    shake = np.stack([np.convolve(jitter[:, axis], kernel, mode="same") for axis in (0, 1)], axis=1)
    size = (camera.height_px, camera.width_px)
    grain = rng.normal(0, camera.noise, (size[0] + 32, size[1] + 32, 3)).astype(np.int16)
    offsets = rng.integers(0, 32, (count, 2))

    panorama = Image.fromarray(scene.panorama)
    frames = np.empty((count, *size, 3), dtype=np.uint8)
    for index, time_s in enumerate((start_s + np.arange(count) / fps).tolist()):
        picture = _expose(scene, camera, panorama, time_s=time_s, shake=shake[index])
        picture = picture.point(_response(scene, camera, time_s))
        down, across = offsets[index]
        noise = grain[down : down + size[0], across : across + size[1]]
        frames[index] = np.clip(np.asarray(picture) + noise, 0, 255)

    return frames


def _response(scene: Scene, camera: Camera, time_s: float) -> list[int]:
    """What the sensor makes of each level in the light of a moment: a table per channel."""
    moment = min(max(time_s * 2, 0.0), len(scene.light) - 1.001)
    before = int(moment)
    rest = moment - before
    light = scene.light[before] * (1 - rest) + scene.light[before + 1] * rest
    levels = np.clip(np.arange(256) / 255 * (camera.gain * light)[:, None], 0, 1)
    response: list[int] = np.rint(255 * levels**camera.gamma).astype(int).ravel().tolist()
    return response


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
    looks_at = (PANORAMA_WIDTH_PX / PIXELS_PER_DEGREE / 2 + heading) * PIXELS_PER_DEGREE
    left = looks_at - view_width / 2 + shake[0] / scale
    top = HORIZON_ROW + camera.tilt_px - view_height * 0.55 + shake[1] / scale
    left = float(np.clip(left, 0, PANORAMA_WIDTH_PX - view_width))
    top = float(np.clip(top, 0, PANORAMA_HEIGHT_PX - view_height))
    box = (left, top, left + view_width, top + view_height)
    size = (camera.width_px, camera.height_px)
    picture = panorama.resize(size, Image.Resampling.BILINEAR, box=box)
    horizon = (HORIZON_ROW - top) * scale

    present = [actor for actor in scene.actors if actor.enters_s <= time_s < actor.leaves_s]
    placed = [(*actor.seen(heading, time_s), actor) for actor in present]
    for depth, across, actor in sorted(placed, key=lambda item: -item[0]):
        height = int(actor.size * camera.height_px * zoom / depth * 0.75)
        middle = camera.width_px / 2 + across / depth * camera.width_px * zoom * 1.1 + shake[0]
        feet = horizon + camera.height_px * (0.32 / depth - actor.lift * 0.5) + shake[1]
        is_seen = height >= 6 and -height < middle < camera.width_px + height
        if depth > 0.35 and is_seen:
            _paste(picture, actor, height=height, middle=middle, feet=feet, time_s=time_s)

    return picture


def _paste(
    picture: Image.Image,
    actor: Actor,
    *,
    height: int,
    middle: float,
    feet: float,
    time_s: float,
) -> None:
    """Add an actor to a picture. middle, feet: where it stands, in pixels."""
    step = 0.06 * height * abs(np.sin(4 * time_s + actor.prop))
    # Sizes are powers of 1.05.
    nearest = round(1.05 ** round(np.log(height) / np.log(1.05)))
    size = max(min(nearest, 4 * SPRITE_PX), 4)
    sprite = sprite_of(actor.prop).resize((size, size), Image.Resampling.BILINEAR)
    picture.paste(sprite, (int(middle - size / 2), int(feet - size - step)), sprite)
