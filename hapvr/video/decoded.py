"""The sampled frames of one video as a network sees them, and their hashes, from the same pixels:
decoding a JPEG takes longer than either."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hapvr.video.content import WHOLE_PICTURE, cut_to, film_of
from hapvr.video.frames import (
    SAMPLED_FRAMES,
    Hashes,
    content_box,
    decode_jpeg,
    grey_levels,
    in_threads,
    picture_hash,
    spread_places,
    square,
)
from hapvr.video.settings import Picture

DECODED_FRAMES = 8
"""Frames of one video that a thread holds at their full size."""


class DecodedFrames:
    """The frames of one video, decoded on demand. Threads may share it."""

    def __init__(self, jpegs: Sequence[bytes], picture: Picture) -> None:
        """picture: which part of a frame the network sees."""
        self._jpegs = jpegs
        self._picture = picture
        places = spread_places(len(jpegs), SAMPLED_FRAMES)
        self._decoded = {place: decode_jpeg(jpegs[place]) for place in places}
        few = [grey_levels(frame) for frame in self._decoded.values()]
        self._content = content_box(few)
        self._film = film_of(few) if picture == "squeezed" else WHOLE_PICTURE

    def __len__(self) -> int:
        return len(self._jpegs)

    def part(self, start: int, end: int) -> tuple[NDArray[np.uint8], Hashes]:
        """The frames from `start` to `end` - 1, [N, 3, H, W], as far as the network sees them, and
        their hashes, [N]."""
        frames = [self._frame(place) for place in range(start, min(end, len(self)))]
        hashes = [picture_hash(grey_levels(frame), self._content) for frame in frames]
        shown = cut_to(np.stack(frames).transpose(0, 3, 1, 2), self._film)
        return shown, np.array(hashes, np.uint64)

    def _frame(self, place: int) -> NDArray[np.uint8]:
        """[H, W, 3]"""
        decoded = self._decoded.get(place)
        return decode_jpeg(self._jpegs[place]) if decoded is None else decoded

    def squares(self, size_px: int) -> tuple[NDArray[np.uint8], Hashes]:
        """[T, 3, size_px, size_px] and [T], as of `part`, for all frames. A long video is never in
        memory as a whole at its full size."""

        def squares_from(start: int) -> tuple[NDArray[np.uint8], Hashes]:
            frames, hashes = self.part(start, start + DECODED_FRAMES)
            return square(frames, size_px, self._picture), hashes

        parts = in_threads(squares_from, range(0, len(self), DECODED_FRAMES))
        pictures = np.concatenate([frames for frames, _ in parts])
        return pictures, np.concatenate([hashes for _, hashes in parts])
