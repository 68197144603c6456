"""Views of stored frames: the cached ones and those that training draws itself are made here, from the same draws."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from hapvr.augment.policy import strong_view, weak_view
from hapvr.augment.video_in_video import takes_donor, video_in_video
from hapvr.augment.view import View
from hapvr.config import ViewsConfig
from hapvr.features.images import decode_frames
from hapvr.seeding import numpy_rng
from hapvr.storage.frames import FrameReader
from hapvr.storage.views import ViewRow

Strength = Literal["weak", "strong"]


class ViewDrawer:
    """Views of the videos of one shard. Every draw comes from (views.seed, video id, view index).

    size_px: side of the square frames. Memory holds the frames of the video that was drawn last.
    """

    def __init__(self, file: FrameReader, *, config: ViewsConfig, size_px: int) -> None:
        self._file = file
        self._config = config
        self._size_px = size_px
        self._last: tuple[str, Tensor] | None = None

    def donor_id(self, video_id: str, index: int, strength: Strength) -> str:
        """The video of the same shard that is pasted on this view (video-in-video); "" for none, and on weak views."""
        others = [other for other in self._file.video_ids if other != video_id]
        if strength == "weak" or not others or not takes_donor(**self._where(video_id, index)):
            return ""
        return others[int(numpy_rng(self._config.seed, video_id, "donor", index).integers(len(others)))]

    def draw(self, video_id: str, index: int, strength: Strength) -> tuple[ViewRow, View]:
        """A view and what it is."""
        if self._last is None or self._last[0] != video_id:
            self._last = (video_id, decode_frames(self._file.read(video_id).jpegs))
        view = self._view(self._last[1], video_id, index, strength)
        donor_id = self.donor_id(video_id, index, strength)
        if donor_id:
            donor = self._view(decode_frames(self._file.read(donor_id).jpegs), donor_id, index, strength)
            view = video_in_video(view, donor, **self._where(video_id, index))
        source = tuple(view.source_index.tolist())
        return ViewRow(video_id, index, view.strength, view.operations, donor_id, source), view

    def _view(self, frames: Tensor, video_id: str, index: int, strength: Strength) -> View:
        return (strong_view if strength == "strong" else weak_view)(
            frames,
            num_frames=self._config.num_frames,
            size_px=self._size_px,
            **self._where(video_id, index),
        )

    def _where(self, video_id: str, index: int) -> dict[str, Any]:
        return {
            "config": self._config.augment,
            "seed": self._config.seed,
            "video_id": video_id,
            "view_index": index,
        }
