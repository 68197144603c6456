"""Weak and strong views: which augmentations a training clip gets. Every draw is seeded by (seed, video id, view)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hapvr.augment.overlays import draw_overlays
from hapvr.augment.settings import AugmentConfig
from hapvr.augment.spatial import CropBox, crop_resize, draw_crop, rand_augment
from hapvr.augment.temporal import NOISE, Indices, crop_or_loop, draw_temporal
from hapvr.augment.view import NO_SOURCE, View, check_frames
from hapvr.errors import ArgumentError
from hapvr.seeding import derive_seed, numpy_rng


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
    Equal arguments give equal bytes. Raises ArgumentError.
    """
    _check(frames, window, num_frames, size_px)
    rng = numpy_rng(seed, video_id, "weak", view_index)
    indices = crop_or_loop(window, num_frames=num_frames, rng=rng)
    clip, cropped = _crop(frames, indices, size_px, config.weak_crop_scale, config.flip_probability, rng)
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

    Arguments and errors as for `weak_view`. Video in video needs a second video: see `hapvr.augment.video_in_video`.
    """
    _check(frames, window, num_frames, size_px)
    rng = numpy_rng(seed, video_id, "strong", view_index)
    indices, moved = draw_temporal(window, num_frames=num_frames, config=config, rng=rng)
    clip, cropped = _crop(frames, indices, size_px, config.strong_crop_scale, config.flip_probability, rng)
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


def _check(frames: Tensor, window: Indices, num_frames: int, size_px: int) -> None:
    check_frames(frames)
    if num_frames < 1 or size_px < 1:
        raise ArgumentError(f"num_frames and size_px must be at least 1, got {num_frames} and {size_px}")
    if not len(window) or window.min() < 0 or window.max() >= len(frames):
        raise ArgumentError(f"window: wanted indices of the {len(frames)} frames, got {window.tolist()[:8]}")


def _crop(
    frames: Tensor,
    indices: Indices,
    size_px: int,
    scale: tuple[float, float],
    flip_probability: float,
    rng: np.random.Generator,
) -> tuple[Tensor, tuple[str, ...]]:
    """The indexed frames, cropped, scaled and perhaps mirrored alike; frames without a source become black or noise."""
    box: CropBox = draw_crop(frames.shape[2], frames.shape[3], scale=scale, rng=rng)
    flip = bool(rng.random() < flip_probability)
    shown, position = np.unique(np.maximum(indices, 0), return_inverse=True)
    clip = crop_resize(frames[torch.from_numpy(shown)], box=box, size_px=size_px, flip=flip)[torch.from_numpy(position)]
    clip[torch.from_numpy(indices < 0)] = 0
    noisy = indices == NOISE
    if noisy.any():
        noise = rng.integers(0, 256, size=(int(noisy.sum()), *clip.shape[1:]), dtype=np.uint8)
        clip[torch.from_numpy(noisy)] = torch.from_numpy(noise)
    cropped = f"crop(top_px={box.top_px}, left_px={box.left_px}, height_px={box.height_px}, width_px={box.width_px})"
    return clip, (cropped, "flip") if flip else (cropped,)
