"""Video in video: one clip pasted small upon another; the result is a copy of both (S2VS 3.2)."""

from __future__ import annotations

from dataclasses import replace

from torchvision.transforms.v2 import functional

from hapvr.augment.view import View
from hapvr.config import AugmentConfig
from hapvr.errors import ArgumentError
from hapvr.seeding import numpy_rng


def takes_donor(*, config: AugmentConfig, seed: int, video_id: str, view_index: int) -> bool:
    """Whether this strong view is to get a donor pasted on it, by `config.video_in_video_probability`."""
    draw = numpy_rng(seed, video_id, "takes_donor", view_index).random()
    return bool(draw < config.video_in_video_probability)


def video_in_video(
    host: View, donor: View, *, config: AugmentConfig, seed: int, video_id: str, view_index: int
) -> View:
    """The host with the donor, scaled by `config.video_in_video_scale`, at one random place in all frames.

    Both have equal shapes [T, 3, S, S]. video_id, view_index: the host's. The result keeps the host's source_index.
    """
    if host.frames.shape != donor.frames.shape:
        raise ArgumentError(
            f"video_in_video: host {list(host.frames.shape)} and donor {list(donor.frames.shape)}: wanted equal shapes"
        )
    rng = numpy_rng(seed, video_id, "video_in_video", view_index)
    size_px = host.frames.shape[-1]
    inner_px = max(1, round(size_px * rng.uniform(*config.video_in_video_scale)))
    top, left = (int(start) for start in rng.integers(size_px - inner_px + 1, size=2))
    frames = host.frames.clone()
    frames[:, :, top : top + inner_px, left : left + inner_px] = functional.resize(  # type: ignore[attr-defined]  # re-exported without __all__
        donor.frames, [inner_px, inner_px], antialias=True
    )
    done = f"video_in_video(size_px={inner_px}, top_px={top}, left_px={left})"
    return replace(host, frames=frames, operations=(*host.operations, done))
