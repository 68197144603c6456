"""What people do to videos before they post them again, on whole videos rather than on training
clips.

An independent implementation: a benchmark made with the training augmentations would measure how
well they were learnt. Each edit also knows its timeline, see `hapvr.demo.timelines`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter

from hapvr.demo.layer import Layer
from hapvr.demo.scene import Pixels, Rng
from hapvr.demo.timelines import (
    NOTHING,
    Rows,
    compilation_rows,
    cut_rows,
    dropped_pieces,
    excerpt_rows,
    gap_rows,
    part_rows,
    pause_rows,
    shuffled_rows,
)

NORMAL_CRF = 27
INTRO_S = 1.0

_WORDS = (
    "LIVE",
    "breaking news",
    "watch till the end",
    "no way!!",
    "part 2",
    "subscribe",
    "eyewitness",
    "wow",
)
_CHANNELS = (
    ("N1", (200, 30, 40)),
    ("TV8", (30, 90, 210)),
    ("vlog", (240, 190, 20)),
    ("24h", (20, 20, 20)),
)
NUM_CHANNELS = len(_CHANNELS)


def _captions(frames: Pixels, rng: Rng) -> Pixels:
    """Three lines of text in different sizes and places, as social-media reposts carry them."""
    layer = Layer(frames)
    for _ in range(3):
        words = str(rng.choice(_WORDS))
        size = layer.height * rng.uniform(0.1, 0.2)
        ink = rng.integers(0, 256, 3).tolist()
        left = layer.width * rng.uniform(0, 0.5)
        top = layer.height * rng.uniform(0.05, 0.8)
        layer.text((left, top), words, size, ink, edge=2)

    return layer.over_frames()


def _emoji(frames: Pixels, rng: Rng) -> Pixels:
    """Five round yellow faces with different eyes and mouths, at random places and sizes."""
    layer = Layer(frames)
    for _ in range(5):
        _draw_face(layer, rng)
    return layer.over_frames()


def _draw_face(layer: Layer, rng: Rng) -> None:
    radius = layer.height * rng.uniform(0.08, 0.18)
    across = rng.uniform(0.1, 0.9) * layer.width
    down = rng.uniform(0.15, 0.85) * layer.height
    yellow = (255, int(rng.uniform(180, 225)), int(rng.uniform(20, 90)))
    dark = (60, 40, 0)

    layer.disc(across, down, radius, radius, yellow)
    for side in (-0.4, 0.4):
        layer.disc(across + side * radius, down - radius * 0.3, radius / 7, radius / 5, dark)
    mouth = [
        across - radius * 0.6,
        down - radius * 0.2,
        across + radius * 0.6,
        down + radius * 0.7,
    ]
    start = int(rng.choice([0, 180]))
    layer.draw.arc(mouth, start, start + 180, fill=(*dark, 255), width=max(int(radius / 6), 1))


def _logo(frames: Pixels, *, channel: int) -> Pixels:
    """The frames with the corner logo of one of NUM_CHANNELS channels, the same on everything that
    the channel shows."""
    layer = Layer(frames)
    name, color = _CHANNELS[channel]
    wide = int(layer.width * 0.2)
    high = int(layer.height * 0.15)
    left = layer.width - wide - 6 if channel % 2 else 6
    layer.draw.rounded_rectangle([left, 6, left + wide, 6 + high], radius=6, fill=(*color, 235))
    layer.text((left + wide * 0.18, 6), name, high * 0.75)
    return layer.over_frames()


def broadcast(frames: Pixels, *, channel: int, fps: float, rng: Rng) -> Pixels:
    """How a channel shows any footage: some with black bars, all with logo, headline and INTRO_S of
    black first."""
    boxed = _letterbox(frames, rng) if channel % 2 else frames
    layer = Layer(_logo(boxed, channel=channel))
    top = int(layer.height * 0.84)
    layer.draw.rectangle([0, top, layer.width, layer.height], fill=(*_CHANNELS[channel][1], 255))
    layer.text((layer.width * 0.04, top), str(rng.choice(_WORDS)), layer.height * 0.1)
    intro = (round(INTRO_S * fps), 0)
    return np.pad(layer.over_frames(), (intro, (0, 0), (0, 0), (0, 0)))


@dataclass(frozen=True)
class Edit:
    """One way to alter a video. label: FIVR's name for the result's relation to the original, or
    that it is a part of it. change: of the pictures, from a generator; the number of frames stays.
    crf: x264 quality. combines: whether the donor shows. rows: the timeline, of the original's
    number of frames, the donor's, frames per second and a generator. whole: makes the result
    instead of `change`, of `apply`'s arguments.
    """

    label: Literal["ND", "DS", "part"]
    change: Callable[[Pixels, Rng], Pixels] = lambda frames, rng: frames
    crf: int = NORMAL_CRF
    combines: bool = False
    rows: Callable[[int, int, float, Rng], Rows] = lambda count, num_donor, fps, rng: np.arange(
        count
    )
    whole: Callable[[Pixels, Pixels, float, Rng], Pixels] | None = None

    def apply(self, frames: Pixels, donor: Pixels, fps: float, rng: Rng) -> Pixels:
        """The edited video, a new array [N' >= 1, H'', W'', 3]; its timeline is `rows` of an equal
        generator. frames: [N >= 1, H, W, 3]. donor: [M >= 1, H', W', 3], other footage for the
        edits that combine two videos; in others, frames that show nothing are black. fps: of both.
        """
        if self.whole is not None:
            return self.whole(frames, donor, fps, rng)
        rows = self.rows(len(frames), len(donor), fps, rng)
        shown = rows != NOTHING
        changed = self.change(frames[rows[shown]], rng)
        result = np.zeros((len(rows), *changed.shape[1:]), np.uint8)
        result[shown] = changed
        if self.combines:
            places = np.flatnonzero(~shown)
            footage = resized(
                donor[: len(places)], width_px=frames.shape[2], height_px=frames.shape[1]
            )
            result[places] = footage[np.arange(len(places)) % len(footage)]

        return result


def resized(frames: Pixels, *, width_px: int, height_px: int) -> Pixels:
    """Every frame scaled to another size, [N, height_px, width_px, 3]."""
    size = (width_px, height_px)
    pictures = [Image.fromarray(frame).resize(size, Image.Resampling.BILINEAR) for frame in frames]
    return np.stack([np.asarray(picture) for picture in pictures])


def _rescale(frames: Pixels, rng: Rng) -> Pixels:
    factor = rng.uniform(0.45, 0.65)
    height = max(int(frames.shape[1] * factor), 16)
    width = max(int(frames.shape[2] * factor), 16)
    return resized(frames, width_px=width, height_px=height)


def _letterbox(frames: Pixels, rng: Rng) -> Pixels:
    bar = int(frames.shape[1] * rng.uniform(0.12, 0.2))
    return np.pad(frames, ((0, 0), (bar, bar), (0, 0), (0, 0)))


def _window(frames: Pixels, scale: float, rng: Rng) -> Pixels:
    """A view of the frames through a window of `scale` of both sides, at a random place."""
    height, width = frames.shape[1:3]
    high = max(int(height * scale), 1)
    wide = max(int(width * scale), 1)
    top = int(rng.integers(height - high + 1))
    left = int(rng.integers(width - wide + 1))
    return frames[:, top : top + high, left : left + wide]


def crop_to(frames: Pixels, area: float, rng: Rng) -> Pixels:
    """A window of a share of the area, enlarged to the old size."""
    window = _window(frames, area**0.5, rng)
    return resized(window, width_px=frames.shape[2], height_px=frames.shape[1])


def _grade(frames: Pixels, rng: Rng, *, strength: float) -> Pixels:
    """Contrast, brightness, saturation and channel mixing, the same for all frames."""
    saturation = 1 + strength * rng.uniform(-0.9, 0.6)
    luma = np.array([0.299, 0.587, 0.114])
    matrix = (
        saturation * np.eye(3)
        + (1 - saturation) * luma
        + strength * rng.uniform(-0.25, 0.25, (3, 3))
    )
    contrast = np.exp(strength * rng.uniform(-0.5, 0.5))
    offset = 128 * (1 - contrast) + strength * rng.uniform(-45, 45, 3)

    table = tuple(np.hstack([contrast * matrix, offset[:, None]]).ravel().tolist())
    return np.stack([np.asarray(Image.fromarray(frame).convert("RGB", table)) for frame in frames])


def _heavy_color(frames: Pixels, rng: Rng) -> Pixels:
    """A strong grade, then one of posterise, solarise or nothing more."""
    graded = _grade(frames, rng, strength=1.0)
    effect = int(rng.integers(3))
    if effect == 0:
        return graded & np.uint8(0b11100000)
    if effect == 1:
        return np.where(graded > 190, 255 - graded, graded)
    return graded


def _blur(frames: Pixels, rng: Rng) -> Pixels:
    blur = ImageFilter.BoxBlur(frames.shape[1] * rng.uniform(0.012, 0.025))
    return np.stack([np.asarray(Image.fromarray(frame).filter(blur)) for frame in frames])


def _drop_noise(frames: Pixels, donor: Pixels, fps: float, rng: Rng) -> Pixels:
    result = frames.copy()
    for piece in dropped_pieces(len(frames), fps, rng):
        coarse = rng.integers(0, 256, (len(piece), 12, 16, 3), dtype=np.uint8)
        result[piece] = resized(coarse, width_px=frames.shape[2], height_px=frames.shape[1])
    return result


def _inset(
    frames: Pixels, donor: Pixels, fps: float, rng: Rng, *, low: float, high: float
) -> Pixels:
    """The video runs in a window of `low` to `high` of the sides, at a random place over the donor,
    which fills the screen."""
    host = resized(donor, width_px=frames.shape[2], height_px=frames.shape[1])
    result = host[np.arange(len(frames)) % len(host)]
    window = _window(result, rng.uniform(low, high), rng)
    window[:] = resized(frames, width_px=window.shape[2], height_px=window.shape[1])
    return result


def _crop_hue_contrast(frames: Pixels, rng: Rng) -> Pixels:
    """60 % of the area, hues turned by a sixth to a third of the circle, contrast one and a half
    times as strong."""
    turn = int(rng.uniform(1 / 6, 1 / 3) * 256)
    edited = []
    for frame in crop_to(frames, 0.6, rng):
        hue, saturation, value = Image.fromarray(frame).convert("HSV").split()
        turned_hue = hue.point(lambda level: (level + turn) % 256)
        turned = Image.merge("HSV", (turned_hue, saturation, value)).convert("RGB")
        edited.append(np.asarray(ImageEnhance.Contrast(turned).enhance(1.5)))

    return np.stack(edited)


def _grey_noise(frames: Pixels, rng: Rng) -> Pixels:
    """Without colour, with Gaussian noise of 20 grey levels."""
    grey = frames.mean(axis=3, keepdims=True)
    noise = rng.normal(0, 20, (*grey.shape[:3], 1))
    noisy = (grey + noise).clip(0, 255).astype(np.uint8)
    return np.repeat(noisy, 3, axis=3)


EDITS: dict[str, Edit] = {
    "low_bitrate": Edit("ND", crf=40),
    "rescale": Edit("ND", _rescale),
    "letterbox": Edit("ND", _letterbox),
    "logo": Edit("ND", lambda frames, rng: _logo(frames, channel=int(rng.integers(NUM_CHANNELS)))),
    "crop": Edit("ND", lambda frames, rng: crop_to(frames, rng.uniform(0.75, 0.9), rng)),
    "color": Edit("ND", partial(_grade, strength=0.45)),
    "text": Edit("ND", _captions),
    "tight_crop": Edit("DS", lambda frames, rng: crop_to(frames, rng.uniform(0.35, 0.55), rng)),
    "flip": Edit("DS", lambda frames, rng: frames[:, :, ::-1]),
    "heavy_color": Edit("DS", _heavy_color),
    "emoji": Edit("DS", _emoji),
    "blur": Edit("DS", _blur),
    "shuffle": Edit("DS", rows=shuffled_rows),
    "drop_blank": Edit("DS", rows=gap_rows),
    "drop_noise": Edit("DS", rows=gap_rows, whole=_drop_noise),
    "drop_cut": Edit("DS", rows=cut_rows),
    "fast_forward": Edit(
        "DS", rows=lambda count, num_donor, fps, rng: np.arange(0, count, int(rng.integers(2, 4)))
    ),
    # of the first two thirds only, so that the result does not become long
    "slow_motion": Edit(
        "DS",
        rows=lambda count, num_donor, fps, rng: np.repeat(np.arange(max(2 * count // 3, 1)), 2),
    ),
    "reverse": Edit("DS", rows=lambda count, num_donor, fps, rng: np.arange(count)[::-1]),
    "pause": Edit("DS", rows=pause_rows),
    "excerpt": Edit("DS", rows=excerpt_rows),
    "video_in_video": Edit("DS", combines=True, whole=partial(_inset, low=0.5, high=0.7)),
    "compilation": Edit("DS", combines=True, rows=compilation_rows),
}
HARD_EDITS: dict[str, Edit] = {
    "crop_hue_contrast": Edit("DS", _crop_hue_contrast),
    "flip_blur_pad": Edit(
        "DS", lambda frames, rng: _letterbox(_blur(frames[:, :, ::-1], rng), rng)
    ),
    "fast_grey_noise": Edit(
        "DS", _grey_noise, rows=lambda count, num_donor, fps, rng: np.arange(0, count, 2)
    ),
    "picture_in_picture": Edit("DS", combines=True, whole=partial(_inset, low=0.4, high=0.5)),
    "five_seconds": Edit("DS", rows=partial(excerpt_rows, length_s=5)),
}


def _part_edit(length_s: float, label: Literal["DS", "part"] = "DS") -> Edit:
    """A part of the video, touched up, in longer footage of the donor."""

    def touch_up(frames: Pixels, rng: Rng) -> Pixels:
        kind = str(rng.choice(("low_bitrate", "logo", "crop", "color", "text")))
        return EDITS[kind].change(frames, rng)

    return Edit(label, touch_up, combines=True, rows=partial(part_rows, length_s=length_s))


IN_LONGER_FOOTAGE = "in_longer_footage"
"""What the task `parts` asks for: a clip, or the longest part of it, in footage that is two to
three times as long."""
ALL_EDITS = EDITS | HARD_EDITS
for length_s in (3, 5, 10, 30):
    ALL_EDITS[f"part_{length_s}s"] = _part_edit(length_s)
ALL_EDITS[IN_LONGER_FOOTAGE] = _part_edit(30, "part")
LIGHT_EDITS = tuple(kind for kind, edit in EDITS.items() if edit.label == "ND")
STRONG_EDITS = tuple(kind for kind, edit in EDITS.items() if edit.label == "DS")
