"""Video in video: one clip pasted small upon another; the result is a copy of both (S2VS 3.2)."""

from __future__ import annotations

import math
from dataclasses import replace

from torchvision.transforms.v2 import functional

from hapvr.augment.settings import AugmentConfig
from hapvr.augment.view import View
from hapvr.errors import ArgumentError
from hapvr.seeding import numpy_rng


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
    if host.frames.shape != donor.frames.shape:
        raise ArgumentError(
            f"video_in_video: host {list(host.frames.shape)} and donor {list(donor.frames.shape)}: wanted equal shapes"
        )
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
