"""What people do to videos before they post them again, on whole videos rather than on training clips.

An independent implementation: a benchmark made with the training augmentations would measure how well they were learnt.
Every edit takes frames [N, H, W, 3] and returns a new array, possibly of another length or size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont

from hapvr.demo import timeline
from hapvr.demo.scene import Pixels, Rng
from hapvr.demo.timeline import NOTHING, Rows, RowsOf, same_rows

Label = Literal["ND", "DS"]
NORMAL_CRF = 27
POOR_CRF = 40
INTRO_S = 1.0

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


def caption_layer(frames: Pixels, rng: Rng) -> Image.Image:
    """Three lines of text in different sizes and places, as social-media reposts carry them."""
    layer, draw, width, height = _blank(frames)
    for _ in range(3):
        words = str(rng.choice(_WORDS))
        font = ImageFont.load_default(size=float(height * rng.uniform(0.1, 0.2)))
        ink = tuple(int(channel) for channel in rng.integers(0, 256, 3))
        place = (width * rng.uniform(0, 0.5), height * rng.uniform(0.05, 0.8))
        draw.text(place, words, font=font, fill=(*ink, 255), stroke_width=2, stroke_fill=(0, 0, 0, 255))
    return layer


def emoji_layer(frames: Pixels, rng: Rng) -> Image.Image:
    """Five round yellow faces with different eyes and mouths, at random places and sizes."""
    layer, draw, width, height = _blank(frames)

    def disc(across: float, down: float, wide: float, high: float, fill: tuple[int, int, int, int]) -> None:
        draw.ellipse([across - wide, down - high, across + wide, down + high], fill=fill)

    for _ in range(5):
        radius = height * rng.uniform(0.08, 0.18)
        across, down = rng.uniform(0.1, 0.9) * width, rng.uniform(0.15, 0.85) * height
        face = (255, int(rng.uniform(180, 225)), int(rng.uniform(20, 90)), 255)
        disc(across, down, radius, radius, face)
        for side in (-0.4, 0.4):
            disc(across + side * radius, down - radius * 0.3, radius / 7, radius / 5, (60, 40, 0, 255))
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


def banner_layer(frames: Pixels, rng: Rng, *, channel: int) -> Image.Image:
    """The strip with a headline at the bottom of a channel's pictures."""
    layer, draw, width, height = _blank(frames)
    top = int(height * 0.84)
    draw.rectangle([0, top, width, height], fill=(*_CHANNEL_COLORS[channel], 255))
    font = ImageFont.load_default(size=float(height * 0.1))
    draw.text((width * 0.04, top), str(rng.choice(_WORDS)), font=font, fill=(255, 255, 255, 255))
    return layer


@dataclass(frozen=True)
class Edit:
    """One way to alter a video.

    label: FIVR's name for the result's relation to the original. apply: see `edit_video`. crf: x264 quality. combines:
    whether the donor shows. rows: see `edit_rows`; `apply` draws the same from an equal generator.
    """

    label: Label
    apply: Callable[[Pixels, Pixels, float, Rng], Pixels]
    crf: int = NORMAL_CRF
    combines: bool = False
    rows: RowsOf = same_rows


def edit_video(kind: str, frames: Pixels, *, donor: Pixels, fps: float, rng: Rng) -> Pixels:
    """Apply the edit called `kind`, one of ALL_EDITS.

    frames: [N >= 1, H, W, 3]. donor: [M >= 1, H', W', 3], other footage for the edits that combine two videos.
    fps: of both. Returns [N' >= 1, H'', W'', 3].
    """
    return ALL_EDITS[kind].apply(frames, donor, fps, rng)


def edit_rows(kind: str, num_frames: int, *, num_donor: int, fps: float, rng: Rng) -> Rows:
    """Which frame of the original each frame of `edit_video`'s result shows, NOTHING where none; rng as it was there."""
    return ALL_EDITS[kind].rows(num_frames, num_donor, fps, rng)


def _in_space(label: Label, change: Callable[[Pixels, Rng], Pixels], crf: int = NORMAL_CRF) -> Edit:
    """An edit of the pictures, each in its place."""
    return Edit(label, lambda frames, donor, fps, rng: change(frames, rng), crf)


def _in_time(rows: RowsOf) -> Edit:
    """An edit that shows frames of the original at other times and changes nothing else."""
    return Edit("DS", lambda frames, donor, fps, rng: frames[rows(len(frames), len(donor), fps, rng)], rows=rows)


def resized(frames: Pixels, *, width_px: int, height_px: int) -> Pixels:
    """Every frame scaled to another size, [N, height_px, width_px, 3]."""
    size = (width_px, height_px)
    return np.stack([np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BILINEAR)) for frame in frames])


def _rescale(frames: Pixels, rng: Rng) -> Pixels:
    factor = rng.uniform(0.45, 0.65)
    height, width = (max(int(side * factor), 16) for side in frames.shape[1:3])
    return resized(frames, width_px=width, height_px=height)


def _letterbox(frames: Pixels, rng: Rng) -> Pixels:
    bar = int(frames.shape[1] * rng.uniform(0.12, 0.2))
    return np.pad(frames, ((0, 0), (bar, bar), (0, 0), (0, 0)))


def _window(frames: Pixels, scale: float, rng: Rng) -> tuple[slice, slice]:
    """Rows and columns of a window of `scale` of both sides, at a random place."""
    height, width = frames.shape[1:3]
    high, wide = max(int(height * scale), 1), max(int(width * scale), 1)
    top, left = int(rng.integers(height - high + 1)), int(rng.integers(width - wide + 1))
    return slice(top, top + high), slice(left, left + wide)


def _crop_to(frames: Pixels, area: float, rng: Rng) -> Pixels:
    """A window of a share of the area, enlarged to the old size."""
    rows, columns = _window(frames, area**0.5, rng)
    return resized(frames[:, rows, columns], width_px=frames.shape[2], height_px=frames.shape[1])


def _grade(frames: Pixels, rng: Rng, *, strength: float) -> Pixels:
    """Contrast, brightness, saturation and channel mixing, the same for all frames."""
    saturation = 1 + strength * rng.uniform(-0.9, 0.6)
    luma = np.array([0.299, 0.587, 0.114])
    matrix = saturation * np.eye(3) + (1 - saturation) * luma + strength * rng.uniform(-0.25, 0.25, (3, 3))
    contrast = np.exp(strength * rng.uniform(-0.5, 0.5))
    offset = 128 * (1 - contrast) + strength * rng.uniform(-45, 45, 3)
    coefficients = np.concatenate([contrast * matrix, offset[:, None]], axis=1)
    table = tuple(float(value) for value in coefficients.ravel())
    return np.stack([np.asarray(Image.fromarray(frame).convert("RGB", table)) for frame in frames])


def _heavy_color(frames: Pixels, rng: Rng) -> Pixels:
    """A strong grade, then one of posterise, solarise or nothing more."""
    graded = _grade(frames, rng, strength=1.0)
    effect = int(rng.integers(3))
    if effect == 0:
        return graded & np.uint8(0b11100000)
    return np.where(graded > 190, 255 - graded, graded) if effect == 1 else graded


def _flip(frames: Pixels, rng: Rng) -> Pixels:
    return frames[:, :, ::-1].copy()


def _blur(frames: Pixels, rng: Rng) -> Pixels:
    blur = ImageFilter.BoxBlur(frames.shape[1] * rng.uniform(0.012, 0.025))
    return np.stack([np.asarray(Image.fromarray(frame).filter(blur)) for frame in frames])


def _drop_blank(frames: Pixels, donor: Pixels, fps: float, rng: Rng) -> Pixels:
    result = frames.copy()
    result[timeline.gap_rows(len(frames), len(donor), fps, rng) == NOTHING] = 0
    return result


def _drop_noise(frames: Pixels, donor: Pixels, fps: float, rng: Rng) -> Pixels:
    result = frames.copy()
    for piece in timeline.dropped_pieces(len(frames), fps, rng):
        coarse = rng.integers(0, 256, (piece.stop - piece.start, 12, 16, 3), dtype=np.uint8)
        result[piece] = resized(coarse, width_px=frames.shape[2], height_px=frames.shape[1])
    return result


def _inset(low: float, high: float) -> Edit:
    """The video runs in a window of `low` to `high` of the sides, at a random place over the donor, which fills the screen."""

    def apply(frames: Pixels, donor: Pixels, fps: float, rng: Rng) -> Pixels:
        rows, columns = _window(frames, rng.uniform(low, high), rng)
        host = resized(donor, width_px=frames.shape[2], height_px=frames.shape[1])
        result = host[np.arange(len(frames)) % len(host)]
        size = {"width_px": columns.stop - columns.start, "height_px": rows.stop - rows.start}
        result[:, rows, columns] = resized(frames, **size)
        return result

    return Edit("DS", apply, combines=True)


def _compilation(frames: Pixels, donor: Pixels, fps: float, rng: Rng) -> Pixels:
    """An excerpt between two pieces of other footage."""
    rows = timeline.compilation_rows(len(frames), len(donor), fps, rng)
    return _around(frames, donor[: int((rows == NOTHING).sum())], rows)


def _around(frames: Pixels, donor: Pixels, rows: Rows) -> Pixels:
    """The frames of `rows`, and where these say nothing, those of other footage, from its first on."""
    other = resized(donor, width_px=frames.shape[2], height_px=frames.shape[1])
    result = np.empty((len(rows), *frames.shape[1:]), np.uint8)
    shown = rows != NOTHING
    result[shown] = frames[rows[shown]]
    result[~shown] = other[np.arange(int((~shown).sum())) % len(other)]
    return result


def _part(length_s: int) -> Edit:
    """A part of it, touched up by a light edit, in longer footage of something else."""
    rows = partial(timeline.part_rows, length_s=length_s)

    def apply(frames: Pixels, donor: Pixels, fps: float, rng: Rng) -> Pixels:
        drawn = rows(len(frames), len(donor), fps, rng)
        return _around(EDITS[str(rng.choice(PART_TOUCHES))].apply(frames, donor, fps, rng), donor, drawn)

    return Edit("DS", apply, combines=True, rows=rows)


def _crop_hue_contrast(frames: Pixels, rng: Rng) -> Pixels:
    """60 % of the area, hues turned by a sixth to a third of the circle, contrast one and a half times as strong."""
    turn = int(rng.uniform(1 / 6, 1 / 3) * 256)
    edited = []
    for frame in _crop_to(frames, 0.6, rng):
        hue, saturation, value = Image.fromarray(frame).convert("HSV").split()
        turned = Image.merge("HSV", (hue.point(lambda level: (level + turn) % 256), saturation, value)).convert("RGB")
        edited.append(np.asarray(ImageEnhance.Contrast(turned).enhance(1.5)))
    return np.stack(edited)


def _fast_grey_noise(frames: Pixels, donor: Pixels, fps: float, rng: Rng) -> Pixels:
    """Double speed, without colour, with Gaussian noise of 20 grey levels."""
    grey = frames[::2].mean(axis=3, keepdims=True)
    noisy = grey + rng.normal(0, 20, (*grey.shape[:3], 1))
    return np.repeat(noisy.clip(0, 255).astype(np.uint8), 3, axis=3)


EDITS: dict[str, Edit] = {
    "low_bitrate": _in_space("ND", lambda frames, rng: frames.copy(), crf=POOR_CRF),
    "rescale": _in_space("ND", _rescale),
    "letterbox": _in_space("ND", _letterbox),
    "logo": _in_space(
        "ND", lambda frames, rng: overlay(frames, logo_layer(frames, channel=int(rng.integers(NUM_CHANNELS))))
    ),
    "crop": _in_space("ND", lambda frames, rng: _crop_to(frames, rng.uniform(0.75, 0.9), rng)),
    "color": _in_space("ND", partial(_grade, strength=0.45)),
    "text": _in_space("ND", lambda frames, rng: overlay(frames, caption_layer(frames, rng))),
    "tight_crop": _in_space("DS", lambda frames, rng: _crop_to(frames, rng.uniform(0.35, 0.55), rng)),
    "flip": _in_space("DS", _flip),
    "heavy_color": _in_space("DS", _heavy_color),
    "emoji": _in_space("DS", lambda frames, rng: overlay(frames, emoji_layer(frames, rng))),
    "blur": _in_space("DS", _blur),
    "shuffle": _in_time(timeline.shuffled_rows),
    "drop_blank": Edit("DS", _drop_blank, rows=timeline.gap_rows),
    "drop_noise": Edit("DS", _drop_noise, rows=timeline.gap_rows),
    "drop_cut": _in_time(timeline.cut_rows),
    "fast_forward": _in_time(lambda count, num_donor, fps, rng: np.arange(0, count, int(rng.integers(2, 4)))),
    # of the first two thirds only, so that the result does not become long
    "slow_motion": _in_time(lambda count, num_donor, fps, rng: np.repeat(np.arange(max(2 * count // 3, 1)), 2)),
    "reverse": _in_time(lambda count, num_donor, fps, rng: np.arange(count)[::-1]),
    "pause": _in_time(timeline.pause_rows),
    "excerpt": _in_time(timeline.excerpt_rows),
    "video_in_video": _inset(0.5, 0.7),
    "compilation": Edit("DS", _compilation, combines=True, rows=timeline.compilation_rows),
}
HARD_EDITS: dict[str, Edit] = {
    "crop_hue_contrast": _in_space("DS", _crop_hue_contrast),
    "flip_blur_pad": _in_space("DS", lambda frames, rng: _letterbox(_blur(_flip(frames, rng), rng), rng)),
    "fast_grey_noise": Edit("DS", _fast_grey_noise, rows=lambda count, num_donor, fps, rng: np.arange(0, count, 2)),
    "picture_in_picture": _inset(0.4, 0.5),
    "five_seconds": _in_time(timeline.five_second_rows),
}
PART_LENGTHS_S = (3, 5, 10, 30)
PART_EDITS = {f"part_{length_s}s": _part(length_s) for length_s in PART_LENGTHS_S}
PART_TOUCHES = ("low_bitrate", "logo", "crop", "color", "text")
ALL_EDITS = EDITS | HARD_EDITS | PART_EDITS
LIGHT_EDITS = tuple(kind for kind, edit in EDITS.items() if edit.label == "ND")
STRONG_EDITS = tuple(kind for kind, edit in EDITS.items() if edit.label == "DS")


def broadcast(frames: Pixels, *, channel: int, fps: float, rng: Rng) -> Pixels:
    """How a channel shows any footage: some with black bars, all with logo, headline and INTRO_S of black first."""
    boxed = _letterbox(frames, rng) if channel % 2 else frames
    branded = overlay(overlay(boxed, logo_layer(boxed, channel=channel)), banner_layer(boxed, rng, channel=channel))
    intro = np.zeros((round(INTRO_S * fps), *branded.shape[1:]), dtype=np.uint8)
    return np.concatenate([intro, branded])
