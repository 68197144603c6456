"""Criteria by what can be seen in the pictures of copies: more pixels that show more, and more
detail."""

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from hapvr.search.copies import (
    HAS_BARS,
    MORE_FPS,
    MORE_PIXELS,
    Copy,
    Verdict,
    excluding,
    has_about_as_many_bits,
    richest,
)
from hapvr.video.facts import DETAIL_SCALES

SAME_DETAIL = {0.25: 0.7, 0.35: 0.7, 0.5: 0.7, 0.66: 0.85}
"""Scale -> part of the smaller copy's relative detail that a larger one must have in what is lost
at this scale, or it may be the smaller one, enlarged. Six clips, at CRF 18 to 30: 0.58 to 0.86 at
half size (0.80 to 0.98 at 0.66), and enlarged 0.23 to 0.64 (0.46 to 0.94)."""
SAME_COARSE_DETAIL = 0.6
"""As much at the smaller scales. Seven clips of 768 x 432 beside their half, at CRF 14 and 26: 0.69
to 1.16; enlarged from widths of 160 and 240 pixels 0.16 to 0.43 at one of them."""
CLEARLY_LESS_DETAIL = 0.75
"""Part of the detail of another copy of about its size below which, at one scale, a copy surely has
less. Twelve clips: enlarged ones have 0.24 to 0.6, compressed ones 0.64 to 1.2."""
AS_FINE = 0.85
"""Part of the fineness of another copy above which a copy was not enlarged: 0.2 to 0.3 where one
was, or was blurred, 0.5 and more where it is only compressed."""
SAME_SIZE = 1.03
"""Times as many pixels up to which the fineness of two copies is compared."""

MAY_BE_ENLARGED = "{} has more pixels, but shows no more detail: it may have been enlarged"
SHARPER_IS_WORSE = "{} shows less detail than {}, as if it was enlarged, but has {}"
LARGER_HAS_BARS = "{} has more pixels, but bars or blurred sides"


def by_resolution(copies: Sequence[Copy]) -> Verdict:
    """More pixels of the film win where they show more detail."""
    most = max(copy.num_pixels for copy in copies)
    large = [copy for copy in copies if MORE_PIXELS * copy.num_pixels > most]
    small = [copy for copy in copies if copy not in large]
    if not small:
        return Verdict(copies)
    left = _with_more_detail(large, small)
    if not left:
        return Verdict(copies, doubt=MAY_BE_ENLARGED.format(large[0].video_id))
    if _all_have_bars(left) and not _all_have_bars(small):
        return Verdict(copies, doubt=LARGER_HAS_BARS.format(left[0].video_id))
    unsure = _without_clear_lack([copy for copy in large if copy not in left], left)
    if unsure:
        return Verdict(copies, doubt=MAY_BE_ENLARGED.format(unsure[0].video_id))

    def fault(copy: Copy) -> str:
        if copy in small:
            return f"it has fewer pixels, {_size(copy)}"
        if copy.has_bars and not _all_have_bars(left):
            return HAS_BARS
        return "it shows less detail: it may have been enlarged"

    merit = f"it has the most pixels of the film ({_size(left[0])})"
    return excluding(copies, left, merit=merit, fault=fault)


def _with_more_detail(large: Sequence[Copy], small: Sequence[Copy]) -> list[Copy]:
    """The large copies that surely show more than the largest of the small ones."""
    most = max(copy.num_pixels for copy in small)
    # one of them may be enlarged itself, or worn by compression: all of them count
    references = [copy for copy in small if MORE_PIXELS * copy.num_pixels > most]
    return [copy for copy in large if all(shows_more(copy, reference) for reference in references)]


def _without_clear_lack(copies: Sequence[Copy], sharp: Sequence[Copy]) -> list[Copy]:
    """Of copies that do not surely show more than a smaller one, those that may be no worse than
    others of their size that do: they have about as many bits, and about as much detail, for which
    noise passes.

    sharp: those others
    """
    # hard edges of bars pass for detail, and bars come last in any case
    filled = [copy for copy in sharp if not copy.has_bars]
    wanted = [copy for copy in copies if not (filled and copy.has_bars)]
    best = richest(filled or sharp)
    most = np.max([copy.measured.detail for copy in filled or sharp], axis=0)
    return [
        copy for copy in wanted if has_about_as_many_bits(copy, best) and _has_detail(copy, most)
    ]


def _has_detail(copy: Copy, most: NDArray[np.float64]) -> bool:
    """Whether a copy has about as much detail as the most of others, at each scale; also where its
    detail is not known."""
    detail = copy.measured.detail
    return not detail or bool(np.min(np.asarray(detail) / most) >= CLEARLY_LESS_DETAIL)


def _all_have_bars(copies: Sequence[Copy]) -> bool:
    return all(copy.has_bars for copy in copies)


def shows_more(large: Copy, small: Copy) -> bool:
    """Whether a copy surely has detail that the smaller one has no pixels for."""
    detail = large.measured.detail
    detail_of_small = small.measured.detail
    if not detail or not detail_of_small:
        return False
    ratio = sqrt(small.num_pixels / large.num_pixels)
    # what is lost at a larger scale is lost at the ratio of the two, too
    last = next((place for place, scale in enumerate(DETAIL_SCALES) if scale >= ratio), None)
    if last is None:
        return False
    # noise of compression is fine, and passes for detail at larger scales
    has_coarse = all(
        detail[place] >= SAME_COARSE_DETAIL * detail_of_small[place] for place in range(last)
    )
    return has_coarse and detail[last] >= SAME_DETAIL[DETAIL_SCALES[last]] * detail_of_small[last]


def by_detail(copies: Sequence[Copy]) -> Verdict:
    """Of those that are equally large, what shows clearly less detail than another one that is no
    worse otherwise comes last: it was enlarged, or is worn by compression."""
    # hard edges of bars pass for detail
    filled = [copy for copy in copies if not copy.has_bars] or copies
    soft = {copy.video_id: _sharper(copy, filled) for copy in filled}
    if all(soft.values()):
        return Verdict(copies)

    for copy in filled:
        better = [sharp for sharp in soft[copy.video_id] if not _advantage(copy, sharp)]
        if soft[copy.video_id] and not better:
            sharp = soft[copy.video_id][0]
            advantage = _advantage(copy, sharp)
            doubt = SHARPER_IS_WORSE.format(copy.video_id, sharp.video_id, advantage)
            return Verdict(copies, doubt=doubt)

    left = [copy for copy in copies if not soft.get(copy.video_id)]
    return excluding(
        copies,
        left,
        merit="it shows the most detail",
        fault=lambda _: "it shows less detail than another one of its size",
    )


def _sharper(copy: Copy, others: Sequence[Copy]) -> list[Copy]:
    """The others beside which a copy has clearly less detail, and less that is fine."""
    return [
        other
        for other in others
        if other.measured.detail
        and not _has_detail(copy, np.asarray(other.measured.detail))
        and not _is_about_as_fine(copy, other)
    ]


def _is_about_as_fine(copy: Copy, other: Copy) -> bool:
    """Whether a copy shows about as much that is fine as another one of its size, so that it was
    not enlarged; False where that is not known."""
    if not are_of_one_size(copy, other):
        return False
    return copy.measured.fineness > AS_FINE * other.measured.fineness > 0


def are_of_one_size(first: Copy, second: Copy) -> bool:
    few, many = sorted((first.num_pixels, second.num_pixels))
    return many <= SAME_SIZE * few


def _advantage(copy: Copy, sharp: Copy) -> str:
    """What speaks for a copy with less detail, "" where nothing does."""
    if copy.measured.fps > MORE_FPS * sharp.measured.fps:
        return "more pictures per second"
    return "more picture data" if copy.picture_bits > sharp.picture_bits else ""


def _size(copy: Copy) -> str:
    width, height = copy.metadata.content_px
    return f"{width} x {height}"
