"""Whether copies show the same picture as a whole, and the right way round: a logo, text, other
colours and a cropped frame stay in the mean of a video's frames, where compression leaves nothing;
a subtitle and damage stay for some seconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import isqrt, sqrt

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from hapvr.search.copies import Copy, Doubt, Verdict, excluding
from hapvr.video.looks import MOMENT_PX

SAME_COLOURS = 16.0
"""Levels, of 255, by which the means of copies differ at most in any place, in any colour. Fifty
real clips: 1 to 10 where they are compressed, scaled, stretched or of another codec, 14 for one at
CRF 36; 36 or more with a logo, text, a running clock, fades, other brightness or colours, in grey,
or cropped by 3 %."""
SAME_ON_AVERAGE = 5.0
"""Levels by which they differ at most on average: 0.3 to 2.5, 3.6 at CRF 36; 6 and more where black
and white were mapped wrong."""
COLOURS_PX = 32
EDGE = 1
"""Rows and columns at the edges that are left out: scaling and bars change them."""
STAYS = 10.0
"""Levels by which a place differs the same way in two frames in a row, from which on something else
is shown there. 40 real clips: 8 at most where they are compressed, scaled, stretched, between bars
or of a copy; 11 or more with a logo, text, a clock, a subtitle, a picture that freezes or visible
damage."""
STAYS_OF_USUAL = 4.5
"""The same, as a multiple of the mean difference of the usual frame: a copy that is very poor, such
as a recording of a screen at few bits, differs everywhere. 4.1 for one of these."""
ALIGNED = 3.0
"""Mean difference of the usual frame up to which two videos show the same moments. The same clips:
2.4 at most."""
TEXTURE_PX = 5
"""Side of a window in the mean of a video's frames whose texture is looked at."""
LEAST_TEXTURE = 3.0
"""Levels of texture that compression and scaling may take."""
MORE_TEXTURE = 0.9
"""Difference of texture as a part of what both have there, from which on one shows something else,
such as a faint text. The same clips: 0.75 at most; text of 10 px at 45 % of its contrast: 1.2 in
the median."""
SURELY_MORE_TEXTURE = 2.5
"""The same where two videos do not show the same moments: 1.6 at most, logos and text 4.5 to 10."""
LEAST_SHARED = 3
"""Frames that two videos have in common at least, or nothing is known."""
SAME_RATE = 1.05
LEAST_PIXELS = 0.2
"""Part of the pixels of a larger copy below which texture is not compared."""

OTHER_LOOKS = Doubt(
    "their pictures differ, as by a logo, text, other colours or a cropped frame",
    "its pictures differ from those of the others, as by a logo, text, other colours or a cropped "
    "frame",
)
MIRRORED = -0.5
"""Correlation of what is left of two mean pictures without their symmetry, below which one of them
is mirrored. Eleven clips: below -0.99, and above 0.78 for files of which a part is missing."""
MIN_ASYMMETRY = 2.0
"""Standard deviation of that, of 255, below which it may be noise."""
WHICH_IS_MIRRORED = "some are mirrored, and it cannot be told which"


def by_looks(copies: Sequence[Copy]) -> Verdict:
    """What looks like most copies is compared; what looks otherwise may show more or less than
    they do."""
    # hard edges of bars are not in the same place in each copy, and bars come last in any case
    filled = [copy for copy in copies if not copy.has_bars] or copies
    compared = [copy for copy in filled if copy.metadata.mean_colours]
    alike = set(_like_each(compared))
    if len(alike) < 2:
        return Verdict(copies)

    largest, *others = sorted(alike, key=len, reverse=True)
    if len(largest) == 1 or len(largest) == len(others[0]):
        return Verdict(copies, doubt=OTHER_LOOKS.of_group)

    odd = {copy.video_id for copy in compared} - largest
    staying = dict.fromkeys(odd, OTHER_LOOKS.of_copy)
    return Verdict([copy for copy in copies if copy.video_id not in odd], staying=staying)


def _like_each(copies: Sequence[Copy]) -> list[frozenset[str]]:
    """For each copy the ids of those that look like it, which it is among."""
    like = {copy.video_id: {copy.video_id} for copy in copies}
    for first, second in combinations(copies, 2):
        if _look_alike(first, second):
            like[first.video_id].add(second.video_id)
            like[second.video_id].add(first.video_id)

    return [frozenset(ids) for ids in like.values()]


def surely_look_alike(first: Copy, second: Copy) -> bool:
    """Whether two copies show the same picture as a whole and in each place; False where that is
    not known."""
    copies = (first, second)
    if any(copy.has_bars or copy.facts is None for copy in copies):
        return False
    if not all(copy.metadata.mean_colours and copy.metadata.moments for copy in copies):
        return False
    return _are_comparable(first, second) and _look_alike(first, second)


def _look_alike(first: Copy, second: Copy) -> bool:
    """Of copies that are about as long."""
    inner = slice(EDGE, -EDGE)
    colours = _mean_colours(first.metadata.mean_colours, COLOURS_PX)
    colours_of_second = _mean_colours(second.metadata.mean_colours, COLOURS_PX)
    differences = np.abs(colours - colours_of_second)[inner, inner].max(axis=-1)
    if differences.max() > SAME_COLOURS or differences.mean() > SAME_ON_AVERAGE:
        return False
    if _aligned(first, second).has_other_place:
        return False
    return not _are_comparable(first, second) or _texture_between(first, second) <= MORE_TEXTURE


def _are_comparable(first: Copy, second: Copy) -> bool:
    """Whether the same moments are in the means of two copies, and at about one resolution."""
    slow, fast = sorted((first.measured.fps, second.measured.fps))
    few, many = sorted((first.num_pixels, second.num_pixels))
    return fast <= SAME_RATE * slow and few >= LEAST_PIXELS * many


@lru_cache(maxsize=1024)
def _mean_colours(stored: bytes, side: int) -> NDArray[np.float32]:
    """[side, side, 3]"""
    step = isqrt(len(stored) // 3) // side
    cells = np.frombuffer(stored, np.uint8).reshape(side, step, side, step, 3)
    return np.asarray(cells.mean(axis=(1, 3)), np.float32)


@dataclass(frozen=True)
class _Alignment:
    """Two videos, one shifted by as many frames as makes them most alike."""

    usual: float
    """mean difference of the usual frame, in levels"""
    stays: float
    """largest difference of one place that is the same way in two frames in a row"""

    @property
    def has_other_place(self) -> bool:
        """Whether something else is shown in one place for a while."""
        return self.stays > max(STAYS, STAYS_OF_USUAL * self.usual)


NOT_ALIGNED = _Alignment(usual=0.0, stays=0.0)
"""Of videos of which nothing is known, or too short."""


def _aligned(first: Copy, second: Copy) -> _Alignment:
    """The shift is as long as the difference of their lengths, and a frame, at most."""
    pictures = _moments(first.metadata.moments)
    others = _moments(second.metadata.moments)
    most = abs(len(pictures) - len(others)) + 1
    best = NOT_ALIGNED
    least = np.inf
    # of shifts that are as good, as in a still scene, the smallest, and the first without a
    # difference
    for shift in sorted(range(-most, most + 1), key=abs):
        begin = pictures[max(shift, 0) :]
        other_begin = others[max(-shift, 0) :]
        shared = min(len(begin), len(other_begin))
        if shared < LEAST_SHARED:
            continue

        differences = begin[:shared] - other_begin[:shared]
        of_frames = np.abs(differences).mean(axis=(1, 2))
        if of_frames.mean() < least:
            least = of_frames.mean()
            best = _Alignment(float(np.median(of_frames)), _largest_that_stays(differences))

        if best.usual <= ALIGNED and not best.has_other_place:
            break

    return best


def _largest_that_stays(differences: NDArray[np.float32]) -> float:
    """Of differences [N, H, W] of frames in a row, apart from what changes in the whole picture."""
    local = differences - np.median(differences, axis=(1, 2), keepdims=True)
    is_same_way = np.sign(local[1:]) == np.sign(local[:-1])
    lesser = np.minimum(np.abs(local[1:]), np.abs(local[:-1]))
    return float(np.max(lesser * is_same_way))


@lru_cache(maxsize=1024)
def _moments(stored: bytes) -> NDArray[np.float32]:
    """[N, MOMENT_PX, MOMENT_PX]"""
    return np.frombuffer(stored, np.uint8).reshape(-1, MOMENT_PX, MOMENT_PX).astype(np.float32)


def _texture_between(first: Copy, second: Copy) -> float:
    """By how much the texture of the means of two copies differs in one place, as a part of what
    both have there."""
    fine, texture = _fine(first.metadata.mean_colours)
    fine_of_second, texture_of_second = _fine(second.metadata.mean_colours)
    shared = np.minimum(texture, texture_of_second)
    return float(np.max(_texture(fine - fine_of_second) / (shared + LEAST_TEXTURE)))


@lru_cache(maxsize=1024)
def _fine(stored: bytes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A mean of frames without its coarse parts and its edge, and the texture of that."""
    grey = _mean_colours(stored, isqrt(len(stored) // 3)).mean(axis=-1)
    edge = TEXTURE_PX // 2
    fine = np.asarray(grey[edge:-edge, edge:-edge] - _window_means(grey), np.float32)
    return fine, _texture(fine)


def _texture(fine: NDArray[np.float32]) -> NDArray[np.float32]:
    """Root mean square of each window."""
    return np.sqrt(_window_means(fine**2))


def _window_means(picture: NDArray[np.float32]) -> NDArray[np.float32]:
    windows = sliding_window_view(picture, (TEXTURE_PX, TEXTURE_PX))
    return np.asarray(windows.mean(axis=(-2, -1)), np.float32)


def shows_more_in_one_place(longer: Copy, shorter: Copy) -> bool:
    """Whether a longer copy differs from a shorter one as by a logo or text, False where nothing
    is known."""
    if not longer.metadata.mean_colours or not shorter.metadata.mean_colours:
        return False
    alignment = _aligned(longer, shorter)
    if alignment.usual <= ALIGNED:
        return alignment.has_other_place
    return _texture_between(longer, shorter) > SURELY_MORE_TEXTURE


def by_mirroring(copies: Sequence[Copy]) -> Verdict:
    """The fewer ones of those whose left and right are exchanged come last."""
    first = _mean_picture(copies[0])
    turned = [copy for copy in copies if is_mirrored(_mean_picture(copy), first)]
    others = [copy for copy in copies if copy not in turned]
    if not turned:
        return Verdict(copies)
    if len(turned) == len(others):
        return Verdict(copies, doubt=WHICH_IS_MIRRORED)
    left = max(turned, others, key=len)
    return excluding(copies, left, merit="it is not mirrored", fault=lambda _: "it is mirrored")


def _mean_picture(copy: Copy) -> NDArray[np.uint8] | None:
    stored = copy.metadata.mean_picture
    side = round(sqrt(len(stored)))
    return np.frombuffer(stored, np.uint8).reshape(side, side) if stored else None


def is_mirrored(picture: NDArray[np.uint8] | None, reference: NDArray[np.uint8] | None) -> bool:
    """Whether the mean picture [N, N] of a copy is that of another one with left and right
    exchanged; False where either is not known or nearly symmetric."""
    if picture is None or reference is None:
        return False
    # most of a landscape is symmetric, and says nothing
    first = _asymmetry(picture)
    second = _asymmetry(reference)
    if min(first.std(), second.std()) < MIN_ASYMMETRY:
        return False
    return bool(np.corrcoef(first.ravel(), second.ravel())[0, 1] < MIRRORED)


def _asymmetry(picture: NDArray[np.uint8]) -> NDArray[np.float64]:
    """What is left of a picture [H, W] without what it shares with its mirror image."""
    shown = picture.astype(np.float64)
    return (shown - shown[:, ::-1]) / 2
