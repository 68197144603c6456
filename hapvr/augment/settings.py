"""Settings of the training clips."""

from typing import ClassVar, Literal

from pydantic import Field

from hapvr.settings import Rate, Settings

Transformation = Literal["global", "frame", "temporal", "video_in_video"]
ALL_TRANSFORMATIONS: tuple[Transformation, ...] = ("global", "frame", "temporal", "video_in_video")
"""The four groups of S2VS 3.2, in the order of its Table 3."""


class ViewsConfig(Settings):
    """The training clips of `num_frames` frames. The cache has `num_weak` weak and `num_strong`
    strong ones of each video."""

    num_frames: int = Field(default=28, ge=4)
    num_weak: int = Field(default=4, ge=1)
    num_strong: int = Field(default=8, ge=1)
    strong: tuple[Transformation, ...] = ALL_TRANSFORMATIONS
    """what strong views have besides a crop and a flip (S2VS 3.2, Table 3); none: they are drawn
    like weak ones"""
    video_in_video_rate: Rate = 0.3
    """part of the strong views that are pasted small on another video's; 0.3 in Table 11 of S2VS
    and in its release, 0.5 in the text of its appendix D"""
    segment_length: Literal["each", "once"] = "each"
    """in shuffle-dropout: `each` segment has a length of its own (S2VS 3.2), or one length is drawn
    `once` for a clip (S2VS Figure 7, and its release)"""
    noise: Literal["gaussian", "uniform"] = "gaussian"
    """what fills dropped segments besides black frames; `gaussian`: S2VS 3.2, `uniform`: its
    release"""
    seed: ClassVar[int] = 0
    """Seeds windows, augmentations and hosts."""

    @property
    def num_windows(self) -> int:
        """Stretches of a video that its cached views are cut from in turn; each has a weak and a
        strong view at least. The views of one training item are of one stretch."""
        return min(4, self.num_weak, self.num_strong)

    def indices_of(self, window: int) -> tuple[list[int], list[int]]:
        """The weak and the strong cached views that are cut from a window."""
        step = self.num_windows
        weak = range(window, self.num_weak, step)
        strong = range(self.num_weak + window, self.num_weak + self.num_strong, step)
        return list(weak), list(strong)
