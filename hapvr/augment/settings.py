"""Settings of the training clips and of their augmentations."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from hapvr.settings import Rate, Settings

WINDOWS = 4
"""Stretches of a video that its cached views are cut from in turn; the views of one training item are of one stretch."""


class AugmentConfig(Settings):
    """Probabilities and ranges of the augmentations (S2VS 3.2 and its Table 11; HAP-VR B.3)."""

    weak_crop_scale: tuple[Rate, Rate] = (0.8, 1.0)
    strong_crop_scale: tuple[Rate, Rate] = (0.5, 1.0)
    randaugment_operations: Annotated[int, Field(ge=0)] = 2
    randaugment_magnitude: Annotated[int, Field(ge=0, le=30)] = 9
    text_probability: Rate = 0.3
    emoji_probability: Rate = 0.3
    blur_probability: Rate = 0.5
    temporal: bool = Field(default=True, description="false: strong views are temporal crops, as weak ones are")
    video_in_video_probability: Rate = 0.3
    video_in_video_scale: tuple[Rate, Rate] = (0.3, 0.7)
    video_in_video_form: Literal["paper", "release"] = Field(
        default="paper",
        description="`paper`: another video is pasted on the clip, `video_in_video_scale` is a part of the side; "
        "`release`: the clip is pasted on another video, it is a part of the area, and the inset may stick out",
    )

    @model_validator(mode="after")
    def _check(self) -> AugmentConfig:
        for name in ("weak_crop_scale", "strong_crop_scale", "video_in_video_scale"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ValueError(f"{name}: wanted 0 < low <= high <= 1, got ({low:g}, {high:g})")
        return self


class ViewsConfig(Settings):
    """The training clips of `num_frames` frames. The cache has `num_weak` weak and `num_strong` strong ones of each video."""

    num_frames: Annotated[int, Field(ge=4)] = 28
    num_weak: Annotated[int, Field(ge=1)] = 4
    num_strong: Annotated[int, Field(ge=1)] = 8
    seed: ClassVar[int] = 0
    """Seeds windows, augmentations and donors."""
    augment: AugmentConfig = AugmentConfig()

    @property
    def num_windows(self) -> int:
        """Windows of the cached views of a video; each has a weak and a strong view at least."""
        return min(WINDOWS, self.num_weak, self.num_strong)

    def window_of(self, index: int) -> int:
        """The number of the window that a cached view is cut from; weak views have the first indices."""
        return (index if index < self.num_weak else index - self.num_weak) % self.num_windows
