"""Drawings that are laid over all frames of a video."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hapvr.demo.scene import Pixels


class Layer:
    """A transparent picture to draw on, which is then laid over every frame of [N, H, W, 3]."""

    def __init__(self, frames: Pixels) -> None:
        self.frames = frames
        self.height, self.width = frames.shape[1:3]
        self.picture = Image.new("RGBA", (self.width, self.height), (0, 0, 0, 0))
        self.draw = ImageDraw.Draw(self.picture)

    def text(
        self,
        place: tuple[float, float],
        words: str,
        size: float,
        ink: Sequence[int] = (255, 255, 255),
        edge: int = 0,
    ) -> None:
        font = ImageFont.load_default(size=float(size))
        self.draw.text(
            place, words, font=font, fill=(*ink, 255), stroke_width=edge, stroke_fill=(0, 0, 0, 255)
        )

    def disc(
        self, across: float, down: float, wide: float, high: float, ink: Sequence[int]
    ) -> None:
        self.draw.ellipse(
            [across - wide, down - high, across + wide, down + high], fill=(*ink, 255)
        )

    def over_frames(self) -> Pixels:
        pixels = np.asarray(self.picture, dtype=np.uint16)
        opacity = pixels[..., 3:]
        ink = pixels[..., :3] * opacity + 127
        mixed = [(frame * (255 - opacity) + ink) // 255 for frame in self.frames]
        return np.stack([frame.astype(np.uint8) for frame in mixed])
