"""Cameras of the demo corpus: where they stand, how they move, and what their sensor does to colours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hapvr.demo.scene import (
    HORIZON_ROW,
    PANORAMA_DEGREES,
    PANORAMA_HEIGHT_PX,
    PIXELS_PER_DEGREE,
    SPRITE_PX,
    Actor,
    Pixels,
    Scene,
    prop_sprite,
)
from hapvr.seeding import numpy_rng

_SIZES_PX = ((320, 180), (320, 180), (256, 192), (200, 200))
_FIELD_DEGREES = 62.0
_NEAREST = 0.35


@dataclass(frozen=True)
class Camera:
    """A camera and its operator. Angles in degrees, positions in radii of the scene, shake in pixels of the picture."""

    width_px: int
    height_px: int
    angle: float
    zoom: float
    zoom_drift: float
    pan_degrees: float
    pan_hz: float
    tilt_px: float
    shake_px: float
    gain: NDArray[np.float32]
    gamma: float
    noise: float
    seed: int


def make_camera(*, seed: int, incident: str, camera: int) -> Camera:
    """Camera number `camera` of an incident; the first stands in front, the others well to the sides."""
    rng = numpy_rng(seed, "camera", incident, camera)
    width_px, height_px = _SIZES_PX[int(rng.integers(len(_SIZES_PX)))]
    side = (0.0, 1.0, -1.0)[camera % 3]
    return Camera(
        width_px=width_px,
        height_px=height_px,
        angle=side * rng.uniform(22, 42) + rng.uniform(-6, 6),
        zoom=rng.uniform(0.85, 1.35),
        zoom_drift=rng.uniform(-0.012, 0.012),
        pan_degrees=rng.uniform(2, 9),
        pan_hz=rng.uniform(0.03, 0.12),
        tilt_px=rng.uniform(-12, 12),
        shake_px=float(rng.choice([0.4, 1.5, 3.0])),
        gain=np.asarray(1 + rng.uniform(-0.22, 0.22, 3), dtype=np.float32),
        gamma=float(np.exp(rng.uniform(-0.4, 0.4))),
        noise=rng.uniform(1, 4),
        seed=seed,
    )


def film(scene: Scene, camera: Camera, *, start_s: float, duration_s: float, fps: float, name: str) -> Pixels:
    """What a camera sees: [round(duration_s * fps), height_px, width_px, 3]. `name` seeds shake and sensor noise."""
    rng = numpy_rng(camera.seed, "film", name)
    count = max(round(duration_s * fps), 1)
    times = start_s + np.arange(count) / fps
    shake = _smooth(rng.normal(0, camera.shake_px, (count, 2)))
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


def _smooth(jitter: NDArray[np.float64]) -> NDArray[np.float64]:
    kernel = np.array([1, 3, 4, 3, 1]) / 12
    columns = [np.convolve(jitter[:, axis], kernel, mode="same") for axis in range(jitter.shape[1])]
    return np.stack(columns, axis=1)


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
    view_width = _FIELD_DEGREES * PIXELS_PER_DEGREE / zoom * min(camera.width_px / 320, 1.0)
    view_height = view_width * camera.height_px / camera.width_px
    scale = camera.width_px / view_width
    left = (PANORAMA_DEGREES / 2 + heading) * PIXELS_PER_DEGREE - view_width / 2 + shake[0] / scale
    top = HORIZON_ROW + camera.tilt_px - view_height * 0.55 + shake[1] / scale
    left = float(np.clip(left, 0, PANORAMA_DEGREES * PIXELS_PER_DEGREE - view_width))
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
        sprite = _sprite(camera.seed, actor.prop, round(np.log(height) / np.log(1.05)))
        picture.paste(sprite, (int(middle - sprite.width / 2), int(feet - sprite.height - step)), sprite)
    return picture


def _visible(actors: tuple[Actor, ...], heading: float, time_s: float) -> list[tuple[float, float, Actor]]:
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
def _sprite(seed: int, prop: int, step: int) -> Image.Image:
    """A prop at one of the sizes 1.05**step: few are drawn twice."""
    size = max(min(round(1.05**step), 4 * SPRITE_PX), 4)
    return prop_sprite(seed=seed, prop=prop).resize((size, size), Image.Resampling.BILINEAR)
