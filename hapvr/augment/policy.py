"""How views look: weak and strong clips of sampled frames, cached or online. Every draw is seeded
by (seed, video id, view)."""

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
from hapvr.augment.views import NOISE, ViewPlan, crop_or_loop, draw_temporal, draw_window
from hapvr.seeding import derive_seed, numpy_rng, seeded
from hapvr.video.frames import decode_jpegs


class ViewDrawer:
    """Draws the clips of plans. read: the sampled frames of a video, as JPEG. size_px: side of the
    square frames of a clip. Memory holds the decoded frames of the two videos that were read last.
    """

    def __init__(
        self, read: Callable[[str], Sequence[bytes]], *, config: ViewsConfig, size_px: int
    ) -> None:
        self._frames = lru_cache(maxsize=2)(
            lambda video: torch.from_numpy(decode_jpegs(read(video))).contiguous()
        )
        self._config, self._size_px = config, size_px

    def draw(self, plan: ViewPlan) -> Tensor:
        """The clip of a plan, [T, 3, S, S] uint8. The donor shows its own strong view of the same
        index."""
        view = draw_view(
            self._frames(plan.video_id), plan, config=self._config, size_px=self._size_px
        )
        if not plan.donor_id:
            return view
        donor = self.draw(replace(plan, video_id=plan.donor_id, donor_id=""))
        return video_in_video(
            view, donor, numpy_rng(self._config.seed, plan.video_id, "video_in_video", plan.index)
        )


def draw_view(frames: Tensor, plan: ViewPlan, *, config: ViewsConfig, size_px: int) -> Tensor:
    """A clip of a video (method 4), [T, 3, size_px, size_px] uint8 RGB; equal arguments give equal
    bytes.

    A weak one is a random temporal crop with a mild spatial crop and flip. A strong one has a
    temporal augmentation, a strong crop and flip, RandAugment on the clip, overlays and blur on
    frames; it is without its donor, see `video_in_video`.

    frames: [N, 3, H, W] uint8, the video's sampled frames."""
    seed, video_id, num_frames = config.seed, plan.video_id, config.num_frames
    of_window = numpy_rng(seed, video_id, "window", plan.window)
    window = draw_window(len(frames), num_frames=num_frames, rng=of_window, part=plan.window_part)
    rng = numpy_rng(seed, video_id, plan.strength, plan.index)
    # areas of crops as parts of the frame's (S2VS, Table 11)
    if plan.strength == "weak":
        indices, areas = crop_or_loop(window, num_frames=num_frames, rng=rng), [0.8, 1.0]
    else:
        indices, areas = draw_temporal(window, num_frames=num_frames, rng=rng), [0.5, 1.0]
    with seeded(int(rng.integers(2**62))):
        top, left, height, width = RandomResizedCrop.get_params(frames, areas, [3 / 4, 4 / 3])
    flip = bool(rng.random() < 0.5)
    shown, position = np.unique(np.maximum(indices, 0), return_inverse=True)
    clip: Tensor = functional.resized_crop(  # type: ignore[attr-defined]  # re-exported without __all__
        frames[torch.from_numpy(shown)],
        top,
        left,
        height,
        width,
        [size_px, size_px],
        antialias=True,
    )
    clip = (clip.flip(-1) if flip else clip)[torch.from_numpy(position)]
    # frames without a source become black or noise
    clip[torch.from_numpy(indices < 0)] = 0
    noisy = indices == NOISE
    if noisy.any():
        noise = rng.integers(0, 256, size=(int(noisy.sum()), *clip.shape[1:]), dtype=np.uint8)
        clip[torch.from_numpy(noisy)] = torch.from_numpy(noise)
    if plan.strength == "weak":
        return clip
    return draw_overlays(
        rand_augment(clip, seed=derive_seed(seed, video_id, "rand_augment", plan.index)), rng=rng
    )


def rand_augment(frames: Tensor, *, seed: int) -> Tensor:
    """RandAugment (Cubuk et al., 2020) with one draw for all frames: [T, 3, S, S] uint8 -> the same
    shape. seed: all randomness; the global generator is left as it was."""
    with seeded(seed):
        operations = v2.RandAugment(num_ops=2, magnitude=9)  # type: ignore[attr-defined]
        augmented: Tensor = operations(frames)
    return augmented


def video_in_video(host: Tensor, donor: Tensor, rng: np.random.Generator) -> Tensor:
    """The donor pasted small upon the host, at one random place in all frames, its side 0.3 to 0.7
    of theirs. Both are [T, 3, S, S]."""
    size_px = host.shape[-1]
    inset_px = max(1, round(size_px * rng.uniform(0.3, 0.7)))
    top, left = (int(start) for start in rng.integers(size_px - inset_px + 1, size=2))
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
    size and place. Their box may stick out of the frame, but its centre lies inside."""
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
    first, second = (tuple(int(level) for level in rng.integers(0, 256, size=3)) for _ in range(2))
    layer = Image.new("RGBA", picture.size)
    draw = ImageDraw.Draw(layer)
    if kind == "emoji":
        draw.ellipse((x + left, y + top, x + right, y + bottom), fill=(*first, opacity))
    draw.text((x, y), text, font=font, fill=(*second, opacity))
    return Image.alpha_composite(picture.convert("RGBA"), layer).convert("RGB")
