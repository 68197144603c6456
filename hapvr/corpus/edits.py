"""What people do to videos before they post them again, on whole videos rather than on training clips.

An independent implementation: a benchmark made with the training augmentations would measure how well they were learnt.
Every edit takes frames [N, H, W, 3] and returns a new array, possibly of another length or size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter

from hapvr.corpus.drawing import NUM_CHANNELS, banner_layer, caption_layer, emoji_layer, logo_layer, overlay
from hapvr.corpus.textures import Pixels
from hapvr.corpus.timeline import (
    NOTHING,
    Rows,
    compilation_rows,
    cut_rows,
    dropped_pieces,
    every_other_row,
    excerpt_rows,
    fast_rows,
    five_second_rows,
    gap_rows,
    part_rows,
    pause_rows,
    reversed_rows,
    same_rows,
    shuffled_rows,
    slow_rows,
)
from hapvr.errors import ArgumentError

Label = Literal["ND", "DS"]
NORMAL_CRF = 27
POOR_CRF = 40
INTRO_S = 1.0


@dataclass(frozen=True)
class Edit:
    """One way to alter a video.

    label: FIVR's name for the result's relation to the original. crf: x264 quality. combines: whether the donor shows.
    rows: see `edit_rows`; `apply` draws the same from an equal generator.
    """

    label: Label
    apply: Callable[[Pixels, Pixels, float, np.random.Generator], Pixels]
    crf: int = NORMAL_CRF
    combines: bool = False
    rows: Callable[[int, int, float, np.random.Generator], Rows] = same_rows


def edit_video(kind: str, frames: Pixels, *, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    """Apply the edit called `kind`, one of EDITS, HARD_EDITS or PART_EDITS.

    frames: [N >= 1, H, W, 3]. donor: [M >= 1, H', W', 3], other footage for the edits that combine two videos.
    fps: of both. Returns [N' >= 1, H'', W'', 3]. ArgumentError where there are no frames or no such edit.
    """
    edit = find_edit(kind)
    if len(frames) == 0 or len(donor) == 0:
        raise ArgumentError(f"edit {kind}: {len(frames)} frames and a donor of {len(donor)}; both need at least one")
    return edit.apply(frames, donor, fps, rng)


def edit_rows(kind: str, num_frames: int, *, num_donor: int, fps: float, rng: np.random.Generator) -> Rows:
    """Which frame of the original each frame of `edit_video`'s result shows, NOTHING where none; rng as it was there."""
    return find_edit(kind).rows(num_frames, num_donor, fps, rng)


def find_edit(kind: str) -> Edit:
    """The edit of that name. Raises ArgumentError if there is none."""
    known = EDITS | HARD_EDITS | PART_EDITS
    if kind not in known:
        raise ArgumentError(f"edit: there is no {kind!r}; choose one of {', '.join(known)}")
    return known[kind]


def resized(frames: Pixels, *, width_px: int, height_px: int) -> Pixels:
    """Every frame scaled to another size, [N, height_px, width_px, 3]."""
    size = (width_px, height_px)
    return np.stack([np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BILINEAR)) for frame in frames])


def _unchanged(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    return frames.copy()


def _rescale(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    factor = rng.uniform(0.45, 0.65)
    height, width = (max(int(side * factor), 16) for side in frames.shape[1:3])
    return resized(frames, width_px=width, height_px=height)


def _letterbox(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    bar = int(frames.shape[1] * rng.uniform(0.12, 0.2))
    return np.pad(frames, ((0, 0), (bar, bar), (0, 0), (0, 0)))


def _crop_to(frames: Pixels, scale: float, rng: np.random.Generator) -> Pixels:
    """A window of `scale` of the area, enlarged to the old size."""
    height, width = frames.shape[1:3]
    high, wide = max(int(height * scale**0.5), 1), max(int(width * scale**0.5), 1)
    top, left = int(rng.integers(height - high + 1)), int(rng.integers(width - wide + 1))
    return resized(frames[:, top : top + high, left : left + wide], width_px=width, height_px=height)


def _crop(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    return _crop_to(frames, rng.uniform(0.75, 0.9), rng)


def _tight_crop(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    return _crop_to(frames, rng.uniform(0.35, 0.55), rng)


def _grade(frames: Pixels, strength: float, rng: np.random.Generator) -> Pixels:
    """Contrast, brightness, saturation and channel mixing, the same for all frames."""
    saturation = 1 + strength * rng.uniform(-0.9, 0.6)
    luma = np.array([0.299, 0.587, 0.114])
    matrix = saturation * np.eye(3) + (1 - saturation) * luma + strength * rng.uniform(-0.25, 0.25, (3, 3))
    contrast = np.exp(strength * rng.uniform(-0.5, 0.5))
    offset = 128 * (1 - contrast) + strength * rng.uniform(-45, 45, 3)
    coefficients = np.concatenate([contrast * matrix, offset[:, None]], axis=1)
    table = tuple(float(value) for value in coefficients.ravel())
    return np.stack([np.asarray(Image.fromarray(frame).convert("RGB", table)) for frame in frames])


def _color(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    return _grade(frames, 0.45, rng)


def _heavy_color(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    """A strong grade, then one of posterise, solarise or nothing more."""
    graded = _grade(frames, 1.0, rng)
    effect = int(rng.integers(3))
    if effect == 0:
        return graded & np.uint8(0b11100000)
    return np.where(graded > 190, 255 - graded, graded) if effect == 1 else graded


def _flip(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    return frames[:, :, ::-1].copy()


def _text(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    return overlay(frames, caption_layer(frames, rng, num_lines=3))


def _emoji(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    return overlay(frames, emoji_layer(frames, rng, num_faces=5))


def _logo(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    return overlay(frames, logo_layer(frames, channel=int(rng.integers(NUM_CHANNELS))))


def _blur(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    blur = ImageFilter.BoxBlur(frames.shape[1] * rng.uniform(0.012, 0.025))
    return np.stack([np.asarray(Image.fromarray(frame).filter(blur)) for frame in frames])


def _in_time(rows: Callable[[int, int, float, np.random.Generator], Rows]) -> Callable[..., Pixels]:
    """An edit that shows frames of the original at other times and changes nothing else."""

    def apply(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
        return frames[rows(len(frames), len(donor), fps, rng)]

    return apply


def _drop_blank(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    result = frames.copy()
    result[gap_rows(len(frames), len(donor), fps, rng) == NOTHING] = 0
    return result


def _drop_noise(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    result = frames.copy()
    for piece in dropped_pieces(len(frames), fps, rng):
        coarse = rng.integers(0, 256, (piece.stop - piece.start, 12, 16, 3), dtype=np.uint8)
        result[piece] = resized(coarse, width_px=frames.shape[2], height_px=frames.shape[1])
    return result


def _video_in_video(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    """The video runs in a window over the donor, which fills the screen."""
    return _inset(frames, donor, rng.uniform(0.5, 0.7), rng)


def _inset(frames: Pixels, donor: Pixels, scale: float, rng: np.random.Generator) -> Pixels:
    """The frames at `scale` of their sides, at a random place over the donor."""
    height, width = frames.shape[1:3]
    high, wide = max(int(height * scale), 1), max(int(width * scale), 1)
    top, left = int(rng.integers(height - high + 1)), int(rng.integers(width - wide + 1))
    host = resized(donor, width_px=width, height_px=height)
    result = host[np.arange(len(frames)) % len(host)]
    result[:, top : top + high, left : left + wide] = resized(frames, width_px=wide, height_px=high)
    return result


def _compilation(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    """An excerpt between two pieces of other footage."""
    rows = compilation_rows(len(frames), len(donor), fps, rng)
    other = resized(donor[: int((rows == NOTHING).sum())], width_px=frames.shape[2], height_px=frames.shape[1])
    return _around(frames, other, rows)


def _around(frames: Pixels, other: Pixels, rows: Rows) -> Pixels:
    """The frames of `rows`, and where these say nothing, those of other footage of the same size, from its first on."""
    result = np.empty((len(rows), *frames.shape[1:]), np.uint8)
    shown = rows != NOTHING
    result[shown] = frames[rows[shown]]
    result[~shown] = other[np.arange(int((~shown).sum())) % len(other)]
    return result


def _part(length_s: int) -> Edit:
    """A part of it, touched up by a light edit, in longer footage of something else."""

    def rows(count: int, num_donor: int, fps: float, rng: np.random.Generator) -> Rows:
        return part_rows(count, num_donor, fps, rng, length_s=length_s)

    def apply(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
        drawn = rows(len(frames), len(donor), fps, rng)
        touched = EDITS[str(rng.choice(PART_TOUCHES))].apply(frames, donor, fps, rng)
        other = resized(donor, width_px=frames.shape[2], height_px=frames.shape[1])
        return _around(touched, other, drawn)

    return Edit("DS", apply, combines=True, rows=rows)


def _crop_hue_contrast(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    """60 % of the area, hues turned by a sixth to a third of the circle, contrast one and a half times as strong."""
    turn = int(rng.uniform(1 / 6, 1 / 3) * 256)
    edited = []
    for frame in _crop_to(frames, 0.6, rng):
        hue, saturation, value = Image.fromarray(frame).convert("HSV").split()
        turned = Image.merge("HSV", (hue.point(lambda level: (level + turn) % 256), saturation, value)).convert("RGB")
        edited.append(np.asarray(ImageEnhance.Contrast(turned).enhance(1.5)))
    return np.stack(edited)


def _flip_blur_pad(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    """Mirrored, blurred, and with bars above and below."""
    return _letterbox(_blur(_flip(frames, donor, fps, rng), donor, fps, rng), donor, fps, rng)


def _fast_grey_noise(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    """Double speed, without colour, with Gaussian noise of 20 grey levels."""
    grey = frames[every_other_row(len(frames), len(donor), fps, rng)].mean(axis=3, keepdims=True)
    noisy = grey + rng.normal(0, 20, (*grey.shape[:3], 1))
    return np.repeat(noisy.clip(0, 255).astype(np.uint8), 3, axis=3)


def _picture_in_picture(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    """The video runs in a window of two fifths to half of the donor's side."""
    return _inset(frames, donor, rng.uniform(0.4, 0.5), rng)


EDITS: dict[str, Edit] = {
    "low_bitrate": Edit("ND", _unchanged, crf=POOR_CRF),
    "rescale": Edit("ND", _rescale),
    "letterbox": Edit("ND", _letterbox),
    "logo": Edit("ND", _logo),
    "crop": Edit("ND", _crop),
    "color": Edit("ND", _color),
    "text": Edit("ND", _text),
    "tight_crop": Edit("DS", _tight_crop),
    "flip": Edit("DS", _flip),
    "heavy_color": Edit("DS", _heavy_color),
    "emoji": Edit("DS", _emoji),
    "blur": Edit("DS", _blur),
    "shuffle": Edit("DS", _in_time(shuffled_rows), rows=shuffled_rows),
    "drop_blank": Edit("DS", _drop_blank, rows=gap_rows),
    "drop_noise": Edit("DS", _drop_noise, rows=gap_rows),
    "drop_cut": Edit("DS", _in_time(cut_rows), rows=cut_rows),
    "fast_forward": Edit("DS", _in_time(fast_rows), rows=fast_rows),
    "slow_motion": Edit("DS", _in_time(slow_rows), rows=slow_rows),
    "reverse": Edit("DS", _in_time(reversed_rows), rows=reversed_rows),
    "pause": Edit("DS", _in_time(pause_rows), rows=pause_rows),
    "excerpt": Edit("DS", _in_time(excerpt_rows), rows=excerpt_rows),
    "video_in_video": Edit("DS", _video_in_video, combines=True),
    "compilation": Edit("DS", _compilation, combines=True, rows=compilation_rows),
}
HARD_EDITS: dict[str, Edit] = {
    "crop_hue_contrast": Edit("DS", _crop_hue_contrast),
    "flip_blur_pad": Edit("DS", _flip_blur_pad),
    "fast_grey_noise": Edit("DS", _fast_grey_noise, rows=every_other_row),
    "picture_in_picture": Edit("DS", _picture_in_picture, combines=True),
    "five_seconds": Edit("DS", _in_time(five_second_rows), rows=five_second_rows),
}
PART_LENGTHS_S = (3, 5, 10, 30)
PART_EDITS = {f"part_{length_s}s": _part(length_s) for length_s in PART_LENGTHS_S}
PART_TOUCHES = ("low_bitrate", "logo", "crop", "color", "text")
LIGHT_EDITS = tuple(kind for kind, edit in EDITS.items() if edit.label == "ND")
STRONG_EDITS = tuple(kind for kind, edit in EDITS.items() if edit.label == "DS")


def broadcast(frames: Pixels, *, channel: int, fps: float, rng: np.random.Generator) -> Pixels:
    """How a channel shows any footage: some with black bars, all with logo, headline and INTRO_S of black first."""
    boxed = _letterbox(frames, frames, fps, rng) if channel % 2 else frames
    branded = overlay(overlay(boxed, logo_layer(boxed, channel=channel)), banner_layer(boxed, rng, channel=channel))
    intro = np.zeros((round(INTRO_S * fps), *branded.shape[1:]), dtype=np.uint8)
    return np.concatenate([intro, branded])
