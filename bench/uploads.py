"""Uploads as people make them: a video edited two and three times over, in other footage, in a
layout, filmed from a screen."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hapvr.demo.edits import ALL_EDITS, Edit, crop_to, resized
from hapvr.demo.files import write_mp4
from hapvr.demo.scene import Pixels, Rng
from hapvr.demo.timelines import Rows, excerpt_rows
from hapvr.demo.user_clips import UserClip, load_frames
from hapvr.seeding import numpy_rng

LONG_S = 12.0
SPEEDS = (0.6, 0.8, 1.3, 1.7)
LINES = ("when the demo works", "nobody:\nabsolutely nobody:", "me at 3 am", "wait for it")
WHITE = (245, 245, 245)
DARK = (24, 22, 28)


def stacked(frames: Pixels, rng: Rng, *, kinds: tuple[str, ...]) -> Pixels:
    """The frames [N, H, W, 3] after some of ALL_EDITS, one after the other."""
    return reduce(lambda shown, kind: ALL_EDITS[kind].change(shown, rng), kinds, frames)


def _canvas(frames: Pixels, height: int, width: int, colour: tuple[int, int, int] = DARK) -> Pixels:
    return np.full((len(frames), height, width, 3), colour, np.uint8)


def _put(
    canvas: Pixels, frames: Pixels, top: float, left: float, height: float, width: float
) -> None:
    """Place frames, as often as the canvas lasts, into a box."""
    y = int(top)
    x = int(left)
    high = int(height)
    wide = int(width)
    shown = resized(frames[: len(canvas)], width_px=wide, height_px=high)
    canvas[:, y : y + high, x : x + wide] = shown[np.arange(len(canvas)) % len(shown)]


def _small_picture(frames: Pixels, donor: Pixels, fps: float, rng: Rng) -> Pixels:
    """Over other footage, on 15 to 25 % of its area, with other colours."""
    height, width = frames.shape[1:3]
    side = rng.uniform(0.15, 0.25) ** 0.5
    across = rng.uniform(0.02, 0.98)
    down = rng.uniform(0.02, 0.98)
    result = _canvas(frames, height, width)
    _put(result, donor, 0, 0, height, width)
    shown = stacked(frames, rng, kinds=("color",))
    _put(
        result,
        shown,
        down * (1 - side) * height,
        across * (1 - side) * width,
        side * height,
        side * width,
    )
    return result


def _reaction(frames: Pixels, donor: Pixels, fps: float, rng: Rng) -> Pixels:
    """Large beside a smaller video of somebody, on a plain screen, with text over all of it."""
    height, width = frames.shape[1:3]
    colour = tuple(int(level) for level in rng.integers(0, 256, 3))
    result = _canvas(frames, height, width, (colour[0], colour[1], colour[2]))
    left = rng.uniform(0.02, 0.08) * width
    _put(result, frames, 0.06 * height, left, 0.6 * height, 0.6 * width)
    _put(result, donor, 0.6 * height, 0.68 * width, 0.36 * height, 0.3 * width)
    return stacked(result, rng, kinds=("text",))


def _split_screen(frames: Pixels, donor: Pixels, fps: float, rng: Rng) -> Pixels:
    """Its middle on one half of the screen, side by side with other footage or one above the
    other."""
    height, width = frames.shape[1:3]
    result = _canvas(frames, height, width)
    above = bool(rng.integers(2))
    first = bool(rng.integers(2))
    for place, video in ((0, frames if first else donor), (1, donor if first else frames)):
        high, wide = video.shape[1:3]
        if above:
            _put(
                result,
                video[:, high // 4 : high - high // 4],
                place * height / 2,
                0,
                height / 2,
                width,
            )
        else:
            _put(
                result,
                video[:, :, wide // 4 : wide - wide // 4],
                0,
                place * width / 2,
                height,
                width / 2,
            )

    return result


def _meme(frames: Pixels, donor: Pixels, fps: float, rng: Rng) -> Pixels:
    """In a white frame below a line of text, cropped."""
    height, width = frames.shape[1:3]
    picture = Image.new("RGB", (width, int(height * rng.uniform(1.3, 1.6))), WHITE)
    font = ImageFont.load_default(size=width * 0.07)
    ImageDraw.Draw(picture).multiline_text(
        (0.05 * width, 0.04 * height), str(rng.choice(LINES)), fill=DARK, font=font
    )
    result = np.repeat(np.asarray(picture)[None], len(frames), axis=0)
    shown = stacked(frames, rng, kinds=("crop",))
    margin = rng.uniform(0, 0.06)
    _put(
        result,
        shown,
        0.28 * height,
        margin * width,
        result.shape[1] - 0.32 * height,
        (1 - 2 * margin) * width,
    )
    return result


def _filmed_screen(frames: Pixels, rng: Rng) -> Pixels:
    """By a camera that stands askew and shakes, in a dark room."""
    height, width = frames.shape[1:3]
    corners = np.array([(0, 0), (width, 0), (width, height), (0, height)], float)
    screen = (
        corners * 0.7
        + (0.15 * width, 0.15 * height)
        + rng.uniform(-0.12, 0.12, (4, 2)) * (width, height)
    )
    filmed = []
    for frame in stacked(frames, rng, kinds=("color",)):
        shaken = screen + rng.uniform(-0.004, 0.004, 2) * width
        rows = [
            [x, y, 1, 0, 0, 0, -u * x, -u * y]
            for (x, y), (u, _) in zip(shaken, corners, strict=True)
        ]
        rows += [
            [0, 0, 0, x, y, 1, -v * x, -v * y]
            for (x, y), (_, v) in zip(shaken, corners, strict=True)
        ]
        warp = np.linalg.solve(np.array(rows), corners.T.ravel())
        picture = Image.fromarray(frame).transform(
            (width, height),
            Image.Transform.PERSPECTIVE,
            warp.tolist(),
            Image.Resampling.BILINEAR,
            fillcolor=DARK,
        )
        filmed.append(np.asarray(picture))

    return _noisy(np.stack(filmed), rng, level=6)


def _noisy(frames: Pixels, rng: Rng, *, level: float, brightness: float = 1.0) -> Pixels:
    noise = rng.standard_normal(frames.shape, np.float32) * np.float32(level)
    return (frames * np.float32(brightness) + noise).clip(0, 255).astype(np.uint8)


def _speed_rows(count: int, num_donor: int, fps: float, rng: Rng) -> Rows:
    speed = float(rng.choice(SPEEDS))
    return np.asarray((np.arange(max(int(count / speed), 1)) * speed).astype(np.int64))


EASY = ("text", "crop", "low_bitrate")
UPLOADS: dict[str, Edit] = {
    "text": ALL_EDITS["text"],
    "crop": ALL_EDITS["crop"],
    "low_bitrate": ALL_EDITS["low_bitrate"],
    "small picture": Edit("DS", combines=True, whole=_small_picture),
    "reaction layout": Edit("DS", combines=True, whole=_reaction),
    "split screen": Edit("DS", combines=True, whole=_split_screen),
    "meme frame": Edit("DS", whole=_meme),
    "filmed screen": Edit("DS", _filmed_screen),
    "crop to 30 %": Edit(
        "DS", lambda frames, rng: stacked(crop_to(frames, 0.3, rng), rng, kinds=("color",))
    ),
    "low light": Edit(
        "DS", lambda frames, rng: _noisy(frames, rng, level=8, brightness=0.2), crf=32
    ),
    "poor": Edit("DS", partial(stacked, kinds=("rescale", "rescale", "color")), crf=44),
    "odd speed": Edit("DS", partial(stacked, kinds=("crop", "text")), rows=_speed_rows),
    "fast grey noise": ALL_EDITS["fast_grey_noise"],
    "flip blur bars": ALL_EDITS["flip_blur_pad"],
    "3 s in a film": ALL_EDITS["part_3s"],
    "10 s in a film": ALL_EDITS["part_10s"],
}
"""The kinds of uploads by name; the first three are easy."""


EXCERPTS: dict[str, Edit] = {
    f"{seconds} s of a film": Edit(
        "DS", partial(stacked, kinds=("crop", "text")), rows=partial(excerpt_rows, length_s=seconds)
    )
    for seconds in (2, 5, 10)
}
"""What is taken of a clip that is to be found in a long film."""


def plain_pictures(count: int, num_frames: int, rng: Rng) -> list[Pixels]:
    """Skies and title cards, of which many videos have some: look-alikes of each other and of
    nothing else."""
    pictures = []
    for number in range(count):
        top = rng.integers(90, 256, 3)
        low = rng.integers(60, 256, 3)
        slope = np.linspace(0, 1, 240)[:, None, None]
        picture = Image.fromarray(
            np.repeat(top * (1 - slope) + low * slope, 320, axis=1).astype(np.uint8)
        )
        if number % 2:
            font = ImageFont.load_default(size=30)
            ImageDraw.Draw(picture).text(
                (40, 60 + 8 * number), str(rng.choice(LINES)), fill=DARK, font=font
            )

        frames = np.repeat(np.asarray(picture)[None], num_frames, axis=0)
        pictures.append(_noisy(frames, rng, level=3))

    return pictures


@dataclass(frozen=True)
class Task:
    """What to make of one clip."""

    clip: UserClip
    role: str
    """original, film, donor or distractor"""
    asked: bool
    """whether its uploads are queries now"""
    others: tuple[Path, ...]
    """footage to show it in"""
    out: Path
    """the folder of all that is made"""

    @property
    def name(self) -> str:
        """Of all files that are made of the clip."""
        return f"{self.clip.sha256[:10]}-{self.clip.path.stem}.mp4"

    def contents(self) -> dict[str, frozenset[str]]:
        """By video to search in, or not made as the clip is short: the clips that it shows."""
        video_id = f"clips/{self.name}"
        clip = self.clip.path.name
        if self.role == "donor":
            return {}
        if self.role == "distractor":
            return {video_id: frozenset([clip])}
        if self.role == "film":
            return {video_id: frozenset([clip]) | {path.name for path in self.others}}
        return {video_id: frozenset([clip]), later_half(video_id): frozenset([clip])}


@dataclass(frozen=True)
class Upload:
    """A query."""

    path: Path
    edit: str
    original: str
    """the id of the one video that it matches"""
    shown: frozenset[str]
    """names of the clips that it may show"""


def later_half(video_id: str) -> str:
    """The id of the later half of an original that was cut in two."""
    return video_id.replace("clips/", "clips/later-", 1)


def make(task: Task) -> list[Upload]:
    """Write the videos of a clip; existing uploads are not touched."""
    video_id = f"clips/{task.name}"
    video = task.out / video_id
    if task.role == "distractor":
        shutil.copyfile(task.clip.path, video)
    if task.role in ("distractor", "donor"):
        return []

    frames, fps = load_frames(task.clip.path)
    donors = [load_frames(path)[0] for path in task.others]
    if task.role == "original" and len(frames) >= LONG_S * fps:
        half = len(frames) // 2
        write_mp4(task.out / later_half(video_id), frames[half:], fps=fps)
        frames = frames[:half]

    if task.role == "film":
        edits = EXCERPTS
        shown = frozenset([task.clip.path.name])
        write_mp4(video, _film(frames, donors), fps=fps)
    else:
        edits = UPLOADS
        shown = frozenset([task.clip.path.name, task.others[0].name])
        write_mp4(video, frames, fps=fps)

    uploads = []
    for kind, edit in edits.items() if task.asked else ():
        path = task.out / "uploads" / kind.replace(" ", "_") / task.name
        if not path.is_file():
            rng = numpy_rng("upload", task.clip.sha256, kind)
            write_mp4(path, edit.apply(frames, donors[0], fps, rng), fps=fps, crf=edit.crf)

        uploads.append(Upload(path, kind, video_id, shown))

    return uploads


def _film(frames: Pixels, donors: Sequence[Pixels]) -> Pixels:
    """The frames after some of the other footage and before the rest of it."""
    height, width = frames.shape[1:3]
    footage = [resized(donor, width_px=width, height_px=height) for donor in donors]
    return np.concatenate([*footage[1:], frames, footage[0]])
