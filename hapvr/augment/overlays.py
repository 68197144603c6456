"""Augmentations of single frames: text, emoji and blur, drawn for each frame separately."""

from __future__ import annotations

import functools
import importlib.resources
import string

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import Tensor

PROBABILITIES = {"text": 0.3, "emoji": 0.3, "blur": 0.5}
MAX_BLUR_SIGMA_PX = 2.0
HEIGHT_RATES = (0.2, 0.5)
OPACITIES = (0.7, 1.0)
MISSING_IN_FONT = (0x1F624, 0x1F62C)
EMOTICONS = tuple(chr(code) for code in range(0x1F600, 0x1F641) if code not in MISSING_IN_FONT)
_LETTERS = np.array(list(string.ascii_letters + string.digits + "!?&"))


def draw_overlays(frames: Tensor, *, rng: np.random.Generator) -> tuple[Tensor, tuple[str, ...]]:
    """Text, emoji and then blur on frames chosen one by one, each with its PROBABILITIES (S2VS 3.2).

    frames: [T, 3, S, S] uint8. Returns new frames of the same shape and, for each kind used, its name with the number
    of frames it was used on.
    """
    chosen = {name: rng.random(len(frames)) < probability for name, probability in PROBABILITIES.items()}
    changed = np.array(frames.permute(0, 2, 3, 1))
    for index in np.flatnonzero(np.any(list(chosen.values()), axis=0)):
        picture = Image.fromarray(changed[index])
        if chosen["text"][index]:
            picture = overlay_text(picture, rng=rng)
        if chosen["emoji"][index]:
            picture = overlay_emoji(picture, rng=rng)
        if chosen["blur"][index]:
            picture = picture.filter(ImageFilter.GaussianBlur(rng.uniform(0.1, MAX_BLUR_SIGMA_PX)))
        changed[index] = np.asarray(picture)
    done = tuple(f"{name}(frames={int(mask.sum())})" for name, mask in chosen.items() if mask.any())
    return torch.from_numpy(changed).permute(0, 3, 1, 2).contiguous(), done


def overlay_text(picture: Image.Image, *, rng: np.random.Generator) -> Image.Image:
    """The picture with one to four random words in a random colour, size and place."""
    words = ["".join(rng.choice(_LETTERS, size=rng.integers(2, 9))) for _ in range(rng.integers(1, 5))]
    font = _font("DejaVuSans-Bold.ttf", _height_px(picture, rng))
    return _draw(picture, " ".join(words), font=font, backdrop=False, rng=rng)


def overlay_emoji(picture: Image.Image, *, rng: np.random.Generator) -> Image.Image:
    """The picture with one random face on a coloured disc."""
    font = _font("DejaVuSans.ttf", _height_px(picture, rng))
    return _draw(picture, str(rng.choice(EMOTICONS)), font=font, backdrop=True, rng=rng)


def _draw(
    picture: Image.Image, text: str, *, font: ImageFont.FreeTypeFont, backdrop: bool, rng: np.random.Generator
) -> Image.Image:
    """Text whose box may stick out of the frame, but whose centre lies inside."""
    left, top, right, bottom = font.getbbox(text)
    x = rng.uniform(0, picture.width) - (left + right) / 2
    y = rng.uniform(0, picture.height) - (top + bottom) / 2
    opacity = round(255 * rng.uniform(*OPACITIES))
    first, second = (tuple(int(level) for level in rng.integers(0, 256, size=3)) for _ in range(2))
    layer = Image.new("RGBA", picture.size)
    draw = ImageDraw.Draw(layer)
    if backdrop:
        draw.ellipse((x + left, y + top, x + right, y + bottom), fill=(*first, opacity))
    draw.text((x, y), text, font=font, fill=(*second, opacity))
    return Image.alpha_composite(picture.convert("RGBA"), layer).convert("RGB")


def _height_px(picture: Image.Image, rng: np.random.Generator) -> int:
    return max(6, round(picture.height * rng.uniform(*HEIGHT_RATES)))


@functools.lru_cache(maxsize=256)
def _font(name: str, height_px: int) -> ImageFont.FreeTypeFont:
    """matplotlib ships the DejaVu fonts, which have letters and emoticons under a free licence."""
    file = importlib.resources.files("matplotlib").joinpath("mpl-data", "fonts", "ttf", name)
    return ImageFont.truetype(str(file), height_px)
