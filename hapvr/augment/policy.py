"""Weak and strong views: which augmentations a training clip gets. Every draw is seeded by (seed, video id, view)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional

from hapvr.augment.overlays import draw_overlays
from hapvr.augment.settings import AugmentConfig
from hapvr.augment.spatial import CropBox, crop_resize, draw_crop, rand_augment
from hapvr.augment.temporal import NOISE, PROBABILITIES, Indices, crop_or_loop, draw_temporal
from hapvr.seeding import derive_seed, numpy_rng

NO_SOURCE = -1
"""source_index of frames that show no frame of the video: blank or noise."""

FLIP_PROBABILITY = 0.5


@dataclass(frozen=True)
class View:
    """A training clip made from one video's sampled frames.

    frames: [T, 3, S, S] uint8 RGB. source_index: [T] int64, the video's frame behind each frame, or NO_SOURCE.
    strength: weak or strong. operations: what was done, in order, with its parameters.
    """

    frames: Tensor
    source_index: Tensor
    strength: Literal["weak", "strong"]
    operations: tuple[str, ...]


def weak_view(
    frames: Tensor,
    window: Indices,
    *,
    num_frames: int,
    size_px: int,
    config: AugmentConfig,
    seed: int,
    video_id: str,
    view_index: int,
) -> View:
    """A random temporal crop with a mild spatial crop and flip (method 4).

    frames: [N, 3, H, W] uint8, the video's sampled frames. window: the frames that the clip may show, in order, see
    `hapvr.augment.temporal.draw_window`; views of one window overlap. size_px: the side of the clip's frames.
    Equal arguments give equal bytes.
    """
    rng = numpy_rng(seed, video_id, "weak", view_index)
    indices = crop_or_loop(window, num_frames=num_frames, rng=rng)
    clip, cropped = _crop(frames, indices, size_px, config.weak_crop_scale, rng)
    return View(clip, torch.from_numpy(indices), "weak", ("temporal_crop", *cropped))


def strong_view(
    frames: Tensor,
    window: Indices,
    *,
    num_frames: int,
    size_px: int,
    config: AugmentConfig,
    seed: int,
    video_id: str,
    view_index: int,
) -> View:
    """A temporal augmentation, a strong crop and flip, RandAugment on the clip, overlays and blur on frames (method 4).

    Arguments as for `weak_view`. Video in video needs a second video: see `video_in_video`.
    """
    rng = numpy_rng(seed, video_id, "strong", view_index)
    indices, moved = draw_temporal(
        window, num_frames=num_frames, rng=rng, probabilities=PROBABILITIES if config.temporal else {}
    )
    clip, cropped = _crop(frames, indices, size_px, config.strong_crop_scale, rng)
    clip = rand_augment(
        clip,
        num_operations=config.randaugment_operations,
        magnitude=config.randaugment_magnitude,
        seed=derive_seed(seed, video_id, "rand_augment", view_index),
    )
    clip, drawn = draw_overlays(clip, config=config, rng=rng)
    settings = f"rand_augment(n={config.randaugment_operations}, m={config.randaugment_magnitude})"
    source_index = torch.from_numpy(np.maximum(indices, NO_SOURCE))
    return View(clip, source_index, "strong", (moved, *cropped, settings, *drawn))


def _crop(
    frames: Tensor,
    indices: Indices,
    size_px: int,
    scale: tuple[float, float],
    rng: np.random.Generator,
) -> tuple[Tensor, tuple[str, ...]]:
    """The indexed frames, cropped, scaled and perhaps mirrored alike; frames without a source become black or noise."""
    box: CropBox = draw_crop(frames.shape[2], frames.shape[3], scale=scale, rng=rng)
    flip = bool(rng.random() < FLIP_PROBABILITY)
    shown, position = np.unique(np.maximum(indices, 0), return_inverse=True)
    clip = crop_resize(frames[torch.from_numpy(shown)], box=box, size_px=size_px, flip=flip)[torch.from_numpy(position)]
    clip[torch.from_numpy(indices < 0)] = 0
    noisy = indices == NOISE
    if noisy.any():
        noise = rng.integers(0, 256, size=(int(noisy.sum()), *clip.shape[1:]), dtype=np.uint8)
        clip[torch.from_numpy(noisy)] = torch.from_numpy(noise)
    cropped = f"crop(top_px={box.top_px}, left_px={box.left_px}, height_px={box.height_px}, width_px={box.width_px})"
    return clip, (cropped, "flip") if flip else (cropped,)


def takes_donor(*, config: AugmentConfig, seed: int, video_id: str, view_index: int) -> bool:
    """Whether this strong view is to get a donor pasted on it, by `config.video_in_video_probability`."""
    draw = numpy_rng(seed, video_id, "takes_donor", view_index).random()
    return bool(draw < config.video_in_video_probability)


def video_in_video(
    host: View, donor: View, *, config: AugmentConfig, seed: int, video_id: str, view_index: int
) -> View:
    """One of two clips pasted small upon the other, at one random place in all frames.

    Form `paper`: the donor is pasted on the host; its side is `config.video_in_video_scale` of the frame's, and it lies
    inside. Form `release`: the host is pasted on the donor; its area is that part of the frame's, which gives sides of
    0.55 to 0.84 by default, and it may stick out at the borders. Both have equal shapes [T, 3, S, S]. video_id,
    view_index: the host's. The result keeps the host's source_index.
    """
    rng = numpy_rng(seed, video_id, "video_in_video", view_index)
    size_px = host.frames.shape[-1]
    rate = rng.uniform(*config.video_in_video_scale)
    if config.video_in_video_form == "release":
        background, inset = donor.frames, host.frames
        inset_px = max(1, round(size_px * math.sqrt(rate)))
        top, left = (int(centre) - inset_px // 2 for centre in rng.integers(size_px, size=2))
    else:
        background, inset = host.frames, donor.frames
        inset_px = max(1, round(size_px * rate))
        top, left = (int(start) for start in rng.integers(size_px - inset_px + 1, size=2))
    small = functional.resize(inset, [inset_px, inset_px], antialias=True)  # type: ignore[attr-defined]  # re-exported without __all__
    rows, columns = (slice(max(0, start), min(size_px, start + inset_px)) for start in (top, left))
    frames = background.clone()
    frames[:, :, rows, columns] = small[
        :, :, rows.start - top : rows.stop - top, columns.start - left : columns.stop - left
    ]
    done = f"video_in_video(size_px={inset_px}, top_px={top}, left_px={left})"
    return replace(host, frames=frames, operations=(*host.operations, done))
