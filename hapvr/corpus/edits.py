"""What people do to videos before they post them again, on whole videos rather than on training clips.

An independent implementation: a benchmark made with the training augmentations would measure how well they were learnt.
Every edit takes frames [N, H, W, 3] and returns a new array, possibly of another length or size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter

from hapvr.corpus.drawing import NUM_CHANNELS, banner_layer, caption_layer, emoji_layer, logo_layer, overlay
from hapvr.corpus.textures import Pixels
from hapvr.errors import ArgumentError

Label = Literal["ND", "DS"]
NORMAL_CRF = 27
POOR_CRF = 40


@dataclass(frozen=True)
class Edit:
    """One way to alter a video.

    label: FIVR's name for the result's relation to the original. crf: x264 quality. combines: whether the donor shows.
    """

    label: Label
    apply: Callable[[Pixels, Pixels, float, np.random.Generator], Pixels]
    crf: int = NORMAL_CRF
    combines: bool = False


def edit_video(kind: str, frames: Pixels, *, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    """Apply the edit called `kind`, one of EDITS or HARD_EDITS.

    frames: [N >= 1, H, W, 3]. donor: [M >= 1, H', W', 3], other footage for the edits that combine two videos.
    fps: of both. Returns [N' >= 1, H'', W'', 3]. ArgumentError where there are no frames or no such edit.
    """
    edit = find_edit(kind)
    if len(frames) == 0 or len(donor) == 0:
        raise ArgumentError(f"edit {kind}: {len(frames)} frames and a donor of {len(donor)}; both need at least one")
    return edit.apply(frames, donor, fps, rng)


def find_edit(kind: str) -> Edit:
    """The edit of that name. Raises ArgumentError if there is none."""
    known = EDITS | HARD_EDITS
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


def _pieces(count: int, fps: float) -> list[slice]:
    """The video cut into pieces of about two seconds; at least two pieces where there are two frames."""
    number = min(max(round(count / (2 * fps)), 2), count)
    borders = [count * index // number for index in range(number + 1)]
    return [slice(start, stop) for start, stop in pairwise(borders)]


def _shuffle(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    pieces = _pieces(len(frames), fps)
    order = np.roll(np.arange(len(pieces)), 1) if len(pieces) < 4 else rng.permutation(len(pieces))
    return np.concatenate([frames[pieces[int(index)]] for index in order])


def _dropped(frames: Pixels, fps: float, rng: np.random.Generator) -> list[slice]:
    """About a third of the pieces, never all of them."""
    pieces = _pieces(len(frames), fps)
    number = min(max(round(len(pieces) / 3), 1), len(pieces) - 1)
    return [pieces[int(index)] for index in rng.permutation(len(pieces))[:number]]


def _drop_blank(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    result = frames.copy()
    for piece in _dropped(frames, fps, rng):
        result[piece] = 0
    return result


def _drop_noise(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    result = frames.copy()
    for piece in _dropped(frames, fps, rng):
        coarse = rng.integers(0, 256, (piece.stop - piece.start, 12, 16, 3), dtype=np.uint8)
        result[piece] = resized(coarse, width_px=frames.shape[2], height_px=frames.shape[1])
    return result


def _drop_cut(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    kept = np.ones(len(frames), dtype=bool)
    for piece in _dropped(frames, fps, rng):
        kept[piece] = False
    return frames[kept]


def _fast_forward(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    return frames[:: int(rng.integers(2, 4))].copy()


def _slow_motion(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    """Half speed, of the first two thirds only so that the result does not become long."""
    return np.repeat(frames[: max(2 * len(frames) // 3, 1)], 2, axis=0)


def _reverse(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    return frames[::-1].copy()


def _pause(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    """One frame stands still for three seconds in the middle third."""
    moment = int(len(frames) * rng.uniform(1 / 3, 2 / 3))
    still = np.repeat(frames[moment : moment + 1], max(round(3 * fps), 1), axis=0)
    return np.concatenate([frames[:moment], still, frames[moment:]])


def _excerpt(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    length = max(int(len(frames) * rng.uniform(0.35, 0.5)), 1)
    start = int(rng.integers(len(frames) - length + 1))
    return frames[start : start + length].copy()


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
    middle = _excerpt(frames, donor, fps, rng)
    other = resized(donor[: max(round(5 * fps), 2)], width_px=frames.shape[2], height_px=frames.shape[1])
    half = len(other) // 2
    return np.concatenate([other[:half], middle, other[half:]])


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
    grey = frames[::2].mean(axis=3, keepdims=True)
    noisy = grey + rng.normal(0, 20, (*grey.shape[:3], 1))
    return np.repeat(noisy.clip(0, 255).astype(np.uint8), 3, axis=3)


def _picture_in_picture(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    """The video runs in a window of two fifths to half of the donor's side."""
    return _inset(frames, donor, rng.uniform(0.4, 0.5), rng)


def _five_seconds(frames: Pixels, donor: Pixels, fps: float, rng: np.random.Generator) -> Pixels:
    """Five seconds of it, or a third where that is shorter."""
    length = max(min(round(5 * fps), len(frames) // 3), 1)
    start = int(rng.integers(len(frames) - length + 1))
    return frames[start : start + length].copy()


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
    "shuffle": Edit("DS", _shuffle),
    "drop_blank": Edit("DS", _drop_blank),
    "drop_noise": Edit("DS", _drop_noise),
    "drop_cut": Edit("DS", _drop_cut),
    "fast_forward": Edit("DS", _fast_forward),
    "slow_motion": Edit("DS", _slow_motion),
    "reverse": Edit("DS", _reverse),
    "pause": Edit("DS", _pause),
    "excerpt": Edit("DS", _excerpt),
    "video_in_video": Edit("DS", _video_in_video, combines=True),
    "compilation": Edit("DS", _compilation, combines=True),
}
HARD_EDITS: dict[str, Edit] = {
    "crop_hue_contrast": Edit("DS", _crop_hue_contrast),
    "flip_blur_pad": Edit("DS", _flip_blur_pad),
    "fast_grey_noise": Edit("DS", _fast_grey_noise),
    "picture_in_picture": Edit("DS", _picture_in_picture, combines=True),
    "five_seconds": Edit("DS", _five_seconds),
}
LIGHT_EDITS = tuple(kind for kind, edit in EDITS.items() if edit.label == "ND")
STRONG_EDITS = tuple(kind for kind, edit in EDITS.items() if edit.label == "DS")


def broadcast(frames: Pixels, *, channel: int, fps: float, rng: np.random.Generator) -> Pixels:
    """How a channel shows any footage: some with black bars, all with logo, headline and a second of black first."""
    boxed = _letterbox(frames, frames, fps, rng) if channel % 2 else frames
    branded = overlay(overlay(boxed, logo_layer(boxed, channel=channel)), banner_layer(boxed, rng, channel=channel))
    intro = np.zeros((round(fps), *branded.shape[1:]), dtype=np.uint8)
    return np.concatenate([intro, branded])
