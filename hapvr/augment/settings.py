"""Settings of the training clips."""

from typing import ClassVar

from pydantic import Field

from hapvr.settings import Settings


class ViewsConfig(Settings):
    """The training clips of `num_frames` frames. The cache has `num_weak` weak and `num_strong`
    strong ones of each video."""

    num_frames: int = Field(default=28, ge=4)
    num_weak: int = Field(default=4, ge=1)
    num_strong: int = Field(default=8, ge=1)
    seed: ClassVar[int] = 0
    """Seeds windows, augmentations and donors."""

    @property
    def num_windows(self) -> int:
        """Stretches of a video that its cached views are cut from in turn; each has a weak and a
        strong view at least. The views of one training item are of one stretch."""
        return min(4, self.num_weak, self.num_strong)

    def indices_of(self, window: int) -> tuple[list[int], list[int]]:
        """The weak and the strong cached views that are cut from a window."""
        weak, strong, step = self.num_weak, self.num_strong, self.num_windows
        return [*range(window, weak, step)], [*range(weak + window, weak + strong, step)]
