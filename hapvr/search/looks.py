"""Whether copies show the same picture as a whole, and the right way round: a logo, text, other
colours and a cropped frame stay in the mean of a video's frames, where compression leaves
nothing."""

from collections.abc import Collection, Sequence
from math import isqrt, sqrt

import numpy as np
from numpy.typing import NDArray

from hapvr.search.copies import Copy, Doubt, Verdict, excluding

SAME_COLOURS = 16.0
"""Levels, of 255, by which the means of copies differ at most in any place, in any colour. Fifty
real clips: 1 to 10 where they are compressed, scaled, stretched or of another codec, 14 for one at
CRF 36; 36 or more with a logo, text, a running clock, fades, other brightness or colours, in grey,
or cropped by 3 %."""
SAME_ON_AVERAGE = 5.0
"""Levels by which they differ at most on average: 0.3 to 2.5, 3.6 at CRF 36; 6 and more where black
and white were mapped wrong."""
EDGE = 1
"""Rows and columns at the edges that are left out: scaling and bars change them."""

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
    compared = [copy for copy in copies if copy.metadata.mean_colours and not copy.has_bars]
    alike = {frozenset(_like(copy, compared)) for copy in compared}
    if len(alike) < 2:
        return Verdict(copies)

    largest, *others = sorted(alike, key=len, reverse=True)
    if len(largest) == 1 or len(largest) == len(others[0]):
        return Verdict(copies, doubt=OTHER_LOOKS.of_group)

    odd = {copy.video_id for copy in compared} - largest
    staying = dict.fromkeys(odd, OTHER_LOOKS.of_copy)
    return Verdict([copy for copy in copies if copy.video_id not in odd], staying=staying)


def _like(copy: Copy, others: Collection[Copy]) -> list[str]:
    """Ids of the copies that have the mean of one, which is among them."""
    colours = _mean_colours(copy)
    return [other.video_id for other in others if _are_same(colours, _mean_colours(other))]


def _are_same(first: NDArray[np.int16], second: NDArray[np.int16]) -> bool:
    inner = slice(EDGE, -EDGE)
    differences = np.abs(first - second)[inner, inner].max(axis=-1)
    return bool(differences.max() <= SAME_COLOURS and differences.mean() <= SAME_ON_AVERAGE)


def _mean_colours(copy: Copy) -> NDArray[np.int16]:
    """[N, N, 3]"""
    stored = np.frombuffer(copy.metadata.mean_colours, np.uint8)
    side = isqrt(len(stored) // 3)
    return stored.reshape(side, side, 3).astype(np.int16)


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
