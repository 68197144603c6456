"""The props that act in the demo corpus: small pictures, each with its own outline."""

from functools import cache

import numpy as np
from PIL import Image, ImageDraw

from hapvr.demo.scene import SEED, SPRITE_PX, Rng, ink, palette, surface, to_pixels
from hapvr.seeding import numpy_rng


@cache
def sprite_of(prop: int) -> Image.Image:
    """The RGBA picture [SPRITE_PX, SPRITE_PX] of prop number `prop`, from the stock that all
    incidents share."""
    rng = numpy_rng(SEED, "prop", prop)
    colors = palette(rng, 5)
    skin = surface(rng, SPRITE_PX, SPRITE_PX, colors)
    mask = Image.new("L", (SPRITE_PX, SPRITE_PX), 0)
    _draw_outline(ImageDraw.Draw(mask), prop % 6, rng)
    rows, columns = np.mgrid[-1 : 1 : SPRITE_PX * 1j, -1 : 1 : SPRITE_PX * 1j]
    relief = (1.15 - 0.55 * np.hypot(rows + 0.35, columns + 0.3))[..., None]
    sprite = Image.fromarray(to_pixels(skin * relief))
    left, top = rng.uniform(15, 60, 2)
    badge = [int(left), int(top), int(left + rng.uniform(10, 45)), int(top + rng.uniform(6, 30))]
    ImageDraw.Draw(sprite).rectangle(badge, fill=ink(colors[0]))
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
                height = 70 - int(rng.uniform(0, 45))
                draw.line([(shoulder, 36), (hand, height)], fill=255, width=10)

            for hip, foot in ((47, 36), (65, 78)):
                draw.line([(hip, 70), (foot, 110)], fill=255, width=13)
        case 3:  # vehicle
            draw.rounded_rectangle([2, 52, 110, 90], fill=255, radius=9)
            draw.polygon([(22, 54), (36, 28), (int(rng.uniform(70, 96)), 28), (96, 54)], fill=255)
            draw.ellipse([14, 78, 42, 106], fill=255)
            draw.ellipse([70, 78, 98, 106], fill=255)
        case 4:  # star
            points = np.arange(2 * int(rng.integers(5, 10)))
            angles = points * 2 * np.pi / len(points)
            radius = np.where(points % 2, rng.uniform(18, 34), 54)
            corners = 56 + np.stack([radius * np.sin(angles), -radius * np.cos(angles)], axis=1)
            draw.polygon([tuple(corner) for corner in corners.tolist()], fill=255)
        case _:  # tree
            draw.rectangle([50, 60, 62, 111], fill=255)
            for _ in range(7):
                across = rng.uniform(26, 86)
                down = rng.uniform(18, 58)
                size = rng.uniform(14, 24)
                draw.ellipse([across - size, down - size, across + size, down + size], fill=255)
