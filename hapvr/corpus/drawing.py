"""Things that editors lay over pictures: captions, emoji, channel logos. RGBA layers, drawn by Pillow."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hapvr.corpus.textures import Pixels

_WORDS = ("LIVE", "breaking news", "watch till the end", "no way!!", "part 2", "subscribe", "eyewitness", "wow")
_CHANNELS = ("N1", "TV8", "vlog", "24h")
_CHANNEL_COLORS = ((200, 30, 40), (30, 90, 210), (240, 190, 20), (20, 20, 20))
NUM_CHANNELS = len(_CHANNELS)


def overlay(frames: Pixels, layer: Image.Image) -> Pixels:
    """Lay one RGBA picture [H, W] over every frame of [N, H, W, 3]; returns a new array."""
    pixels = np.asarray(layer, dtype=np.uint16)
    rows = np.flatnonzero(pixels[..., 3].any(axis=1))
    result = frames.copy()
    if len(rows) == 0:
        return result
    band = slice(int(rows[0]), int(rows[-1]) + 1)
    opacity = pixels[band, :, 3:]
    blended = frames[:, band].astype(np.uint16) * (255 - opacity) + pixels[band, :, :3] * opacity
    result[:, band] = (blended + 127) // 255
    return result


def _blank(frames: Pixels) -> tuple[Image.Image, ImageDraw.ImageDraw, int, int]:
    height, width = frames.shape[1:3]
    layer = Image.new("RGBA", (width, height), (0, 0, 0, 0))
    return layer, ImageDraw.Draw(layer), width, height


def caption_layer(frames: Pixels, rng: np.random.Generator, *, num_lines: int = 2) -> Image.Image:
    """Lines of text in different sizes and places, as social-media reposts carry them."""
    layer, draw, width, height = _blank(frames)
    for _ in range(num_lines):
        words = str(rng.choice(_WORDS))
        font = ImageFont.load_default(size=float(height * rng.uniform(0.1, 0.2)))
        ink = tuple(int(channel) for channel in rng.integers(0, 256, 3))
        place = (width * rng.uniform(0, 0.5), height * rng.uniform(0.05, 0.8))
        draw.text(place, words, font=font, fill=(*ink, 255), stroke_width=2, stroke_fill=(0, 0, 0, 255))
    return layer


def _disc(
    draw: ImageDraw.ImageDraw,
    across: float,
    down: float,
    radii: tuple[float, float],
    *,
    fill: tuple[int, int, int, int],
) -> None:
    draw.ellipse([across - radii[0], down - radii[1], across + radii[0], down + radii[1]], fill=fill)


def emoji_layer(frames: Pixels, rng: np.random.Generator, *, num_faces: int = 3) -> Image.Image:
    """Round yellow faces with different eyes and mouths, at random places and sizes."""
    layer, draw, width, height = _blank(frames)
    for _ in range(num_faces):
        radius = height * rng.uniform(0.08, 0.18)
        across, down = rng.uniform(0.1, 0.9) * width, rng.uniform(0.15, 0.85) * height
        face = (255, int(rng.uniform(180, 225)), int(rng.uniform(20, 90)), 255)
        _disc(draw, across, down, (radius, radius), fill=face)
        for side in (-0.4, 0.4):
            _disc(draw, across + side * radius, down - radius * 0.3, (radius / 7, radius / 5), fill=(60, 40, 0, 255))
        mouth = [across - radius * 0.6, down - radius * 0.2, across + radius * 0.6, down + radius * 0.7]
        start = int(rng.choice([0, 180]))
        draw.arc(mouth, start, start + 180, fill=(60, 40, 0, 255), width=max(int(radius / 6), 1))
    return layer


def logo_layer(frames: Pixels, *, channel: int) -> Image.Image:
    """The corner logo of one of NUM_CHANNELS channels, the same on everything that the channel shows."""
    layer, draw, width, height = _blank(frames)
    wide, high = int(width * 0.2), int(height * 0.15)
    left = width - wide - 6 if channel % 2 else 6
    draw.rounded_rectangle([left, 6, left + wide, 6 + high], radius=6, fill=(*_CHANNEL_COLORS[channel], 235))
    font = ImageFont.load_default(size=float(high * 0.75))
    draw.text((left + wide * 0.18, 6), _CHANNELS[channel], font=font, fill=(255, 255, 255, 255))
    return layer


def banner_layer(frames: Pixels, rng: np.random.Generator, *, channel: int) -> Image.Image:
    """The strip with a headline at the bottom of a channel's pictures."""
    layer, draw, width, height = _blank(frames)
    top = int(height * 0.84)
    draw.rectangle([0, top, width, height], fill=(*_CHANNEL_COLORS[channel], 255))
    font = ImageFont.load_default(size=float(height * 0.1))
    draw.text((width * 0.04, top), str(rng.choice(_WORDS)), font=font, fill=(255, 255, 255, 255))
    return layer
