"""What views look like: weak and strong clips of sampled frames, cached or online. Every draw is
seeded by (seed, video id, view)."""

import importlib.resources
import string
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import Tensor
from torchvision.transforms import RandomResizedCrop, v2
from torchvision.transforms.v2 import functional

from hapvr.augment.settings import ViewsConfig
from hapvr.augment.views import (
    NOISE,
    Indices,
    ViewPlan,
    crop_or_loop,
    draw_temporal,
    draw_window,
)
from hapvr.seeding import derive_seed, numpy_rng, seeded
from hapvr.video.frames import decode_jpegs

CROP_AREAS = {"weak": (0.8, 1.0), "strong": (0.5, 1.0)}
"""Areas of crops as parts of the frame's. S2VS and HAP-VR give none; these are of S2VS's release.
"""
NOISE_MEAN = 115
NOISE_SPREAD = 57
"""Levels of Gaussian noise: mean and standard deviation of ImageNet's pixels, as the papers give
none."""


class ViewDrawer:
    """Draws the clips of plans. read: gives the sampled frames of a video, as JPEG. size_px: side
    of the square frames of a clip. The decoded frames of the two videos read last stay in memory.
    """

    def __init__(
        self, read: Callable[[str], Sequence[bytes]], *, config: ViewsConfig, size_px: int
    ) -> None:
        self._frames = lru_cache(maxsize=2)(
            lambda video: torch.from_numpy(decode_jpegs(read(video))).contiguous()
        )
        self._config = config
        self._size_px = size_px

    def draw(self, plan: ViewPlan) -> Tensor:
        """The clip of a plan, [T, 3, S, S] uint8. With a host, the plan's own view is the donor:
        it is pasted small on the host's strong view of the same index."""
        frames = self._frames(plan.video_id)
        own = draw_view(frames, plan, config=self._config, size_px=self._size_px)
        if not plan.host_id:
            return own
        host = self.draw(replace(plan, video_id=plan.host_id, host_id=""))
        rng = numpy_rng(self._config.seed, plan.video_id, "video_in_video", plan.index)
        return video_in_video(host, donor=own, rng=rng)


def draw_view(frames: Tensor, plan: ViewPlan, *, config: ViewsConfig, size_px: int) -> Tensor:
    """A clip of a video (method 4), [T, 3, size_px, size_px] uint8 RGB; equal arguments give equal
    bytes.

    A weak one is a random temporal crop with a mild spatial crop and flip. A strong one has, of
    `config.strong`, a temporal augmentation, RandAugment on the clip, overlays and blur on frames,
    and a stronger crop; it is without its host, see `video_in_video`.

    frames: [N, 3, H, W] uint8, the video's sampled frames."""
    rng = numpy_rng(config.seed, plan.video_id, plan.strength, plan.index)
    is_strong = plan.strength == "strong" and bool(config.strong)
    indices = _draw_indices(
        len(frames),
        plan,
        config=config,
        rng=rng,
        temporal=is_strong and "temporal" in config.strong,
    )
    areas = CROP_AREAS["strong" if is_strong else "weak"]
    clip = _crop_and_flip(frames, indices, areas=areas, size_px=size_px, rng=rng)
    _fill_missing(clip, indices, noise=config.noise, rng=rng)
    if is_strong and "global" in config.strong:
        seed = derive_seed(config.seed, plan.video_id, "rand_augment", plan.index)
        clip = rand_augment(clip, seed=seed)

    if is_strong and "frame" in config.strong:
        clip = draw_overlays(clip, rng=rng)
    return clip


def _draw_indices(
    num_available: int,
    plan: ViewPlan,
    *,
    config: ViewsConfig,
    rng: np.random.Generator,
    temporal: bool,
) -> Indices:
    """[T], which frame of the video each frame of the clip shows; below 0 for none."""
    num_frames = config.num_frames
    of_window = numpy_rng(config.seed, plan.video_id, "window", plan.window)
    window = draw_window(num_available, num_frames=num_frames, rng=of_window, part=plan.window_part)
    if temporal:
        return draw_temporal(
            window, num_frames=num_frames, rng=rng, segment_length=config.segment_length
        )

    return crop_or_loop(window, num_frames=num_frames, rng=rng)


def _crop_and_flip(
    frames: Tensor,
    indices: Indices,
    *,
    areas: tuple[float, float],
    size_px: int,
    rng: np.random.Generator,
) -> Tensor:
    """One random crop and flip for all frames, [T, 3, size_px, size_px]. A frame without a source
    shows the first frame."""
    with seeded(int(rng.integers(2**62))):
        box = RandomResizedCrop.get_params(frames, list(areas), [3 / 4, 4 / 3])
    flip = bool(rng.random() < 0.5)
    # Each frame is resized once, however often the clip shows it.
    shown, position = np.unique(np.maximum(indices, 0), return_inverse=True)
    clip: Tensor = functional.resized_crop(  # type: ignore[attr-defined]  # re-exported without __all__
        frames[torch.from_numpy(shown)], *box, [size_px, size_px], antialias=True
    )
    if flip:
        clip = clip.flip(-1)
    return clip[torch.from_numpy(position)]


def _fill_missing(
    clip: Tensor,
    indices: Indices,
    *,
    noise: Literal["gaussian", "uniform"],
    rng: np.random.Generator,
) -> None:
    """Make frames without a source black, or noise, in place."""
    clip[torch.from_numpy(indices < 0)] = 0
    noisy = indices == NOISE
    if not noisy.any():
        return
    shape = (int(noisy.sum()), *clip.shape[1:])
    if noise == "gaussian":
        drawn = rng.normal(NOISE_MEAN, NOISE_SPREAD, size=shape)
        levels = drawn.clip(0, 255).round().astype(np.uint8)
    else:
        levels = rng.integers(0, 256, size=shape, dtype=np.uint8)

    clip[torch.from_numpy(noisy)] = torch.from_numpy(levels)


def rand_augment(frames: Tensor, *, seed: int) -> Tensor:
    """RandAugment (Cubuk et al., 2020) with one draw for all frames: [T, 3, S, S] uint8 -> the same
    shape. seed: decides all randomness; the global generator keeps its state."""
    with seeded(seed):
        operations = v2.RandAugment(num_ops=2, magnitude=9)  # type: ignore[attr-defined]
        augmented: Tensor = operations(frames)
    return augmented


def video_in_video(host: Tensor, *, donor: Tensor, rng: np.random.Generator) -> Tensor:
    """The host with the donor pasted on it, at one random place in all frames, its side 0.3 to 0.7
    of theirs (S2VS 3.2 and Table 11). Both are [T, 3, S, S]."""
    size_px = host.shape[-1]
    inset_px = max(1, round(size_px * rng.uniform(0.3, 0.7)))
    corner = rng.integers(size_px - inset_px + 1, size=2)
    top = int(corner[0])
    left = int(corner[1])
    frames = host.clone()
    frames[:, :, top : top + inset_px, left : left + inset_px] = functional.resize(  # type: ignore[attr-defined]  # re-exported without __all__
        donor, [inset_px, inset_px], antialias=True
    )
    return frames


OVERLAY_PROBABILITIES = {"text": 0.3, "emoji": 0.3, "blur": 0.5}
EMOTICONS = tuple(
    chr(code) for code in range(0x1F600, 0x1F641) if code not in (0x1F624, 0x1F62C)
)  # the font lacks these
_LETTERS = np.array(list(string.ascii_letters + string.digits + "!?&"))


def draw_overlays(frames: Tensor, *, rng: np.random.Generator) -> Tensor:
    """Text, emoji and then blur on frames chosen one by one, each with its OVERLAY_PROBABILITIES
    (S2VS 3.2). frames: [T, 3, S, S] uint8. Returns new frames of the same shape."""
    chosen = {
        name: rng.random(len(frames)) < probability
        for name, probability in OVERLAY_PROBABILITIES.items()
    }
    changed = np.array(frames.permute(0, 2, 3, 1))
    for index in np.flatnonzero(np.any(list(chosen.values()), axis=0)):
        picture = Image.fromarray(changed[index])
        for name in ("text", "emoji"):
            if chosen[name][index]:
                picture = overlay(picture, name, rng=rng)

        if chosen["blur"][index]:
            picture = picture.filter(ImageFilter.GaussianBlur(rng.uniform(0.1, 2.0)))
        changed[index] = np.asarray(picture)

    return torch.from_numpy(changed).permute(0, 3, 1, 2).contiguous()


def overlay(
    picture: Image.Image, kind: Literal["text", "emoji"], *, rng: np.random.Generator
) -> Image.Image:
    """The picture with one to four random words, or a random face on a disc, in random colours,
    size and place. The box of the overlay may stick out of the frame, but its centre is inside."""
    words = []
    if kind == "text":
        words = [
            "".join(rng.choice(_LETTERS, size=rng.integers(2, 9)))
            for _ in range(rng.integers(1, 5))
        ]

    # matplotlib ships the DejaVu fonts, which have letters and emoticons under a free licence
    fonts = importlib.resources.files("matplotlib").joinpath("mpl-data", "fonts", "ttf")
    file = str(fonts.joinpath("DejaVuSans-Bold.ttf" if words else "DejaVuSans.ttf"))
    font = ImageFont.truetype(file, max(6, round(picture.height * rng.uniform(0.2, 0.5))))
    text = " ".join(words) or str(rng.choice(EMOTICONS))
    left, top, right, bottom = font.getbbox(text)
    x = rng.uniform(0, picture.width) - (left + right) / 2
    y = rng.uniform(0, picture.height) - (top + bottom) / 2
    opacity = round(255 * rng.uniform(0.7, 1.0))
    disc_colour = _random_colour(rng)
    text_colour = _random_colour(rng)
    layer = Image.new("RGBA", picture.size)
    draw = ImageDraw.Draw(layer)
    if kind == "emoji":
        draw.ellipse((x + left, y + top, x + right, y + bottom), fill=(*disc_colour, opacity))
    draw.text((x, y), text, font=font, fill=(*text_colour, opacity))
    return Image.alpha_composite(picture.convert("RGBA"), layer).convert("RGB")


def _random_colour(rng: np.random.Generator) -> tuple[int, int, int]:
    red, green, blue = rng.integers(0, 256, size=3).tolist()
    return red, green, blue
