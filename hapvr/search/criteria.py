"""Criteria by which the copy to keep is chosen: each excludes the copies that are clearly worse
than the best, or says why it cannot tell."""

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from hapvr.search.copies import EDITED, Copy, Criterion, Verdict, excluding
from hapvr.video.facts import DETAIL_SCALES
from hapvr.video.sources import is_inside

LENGTH_SLACK_S = 0.5
"""Copies differ by a few pictures at their ends; what lacks more is shorter."""
MAX_LENGTH_RATIO = 1.4
"""Copies show at least 80 % of each other, so one of the clocks is wrong beyond that."""
MORE_PIXELS = 1.15
"""Times as many pixels as another copy, from which on a copy is larger."""
SAME_DETAIL = {0.25: 0.7, 0.35: 0.7, 0.5: 0.7, 0.66: 0.85}
"""Scale -> part of the smaller copy's relative detail that a larger one must have in what is lost
at this scale, or it may be the smaller one, enlarged. Six clips, at CRF 18 to 30: 0.58 to 0.86 at
half size (0.80 to 0.98 at 0.66), and enlarged 0.23 to 0.64 (0.46 to 0.94)."""
SAME_COARSE_DETAIL = 0.6
"""As much at the smaller scales. Seven clips of 768 x 432 beside their half, at CRF 14 and 26: 0.69
to 1.16; enlarged from widths of 160 and 240 pixels 0.16 to 0.43 at one of them."""
MORE_FPS = 1.1
CONVERTED_FPS = 1.45
"""Times as many pictures per second, below which a converter may have repeated some: 25 to 30."""
LESS_NEW = 0.85
"""Part of the share of new pictures of a slower copy, below which a faster one repeats some."""
MORE_BITS = 1.1
MORE_BITS_OF_OTHER_CODECS = 2.0
"""How efficient an encoder was is not known, only what its codec allows."""
CLEARLY_LESS_DETAIL = 0.75
"""Part of the detail of another copy of about its size below which, at one scale, a copy surely has
less. Twelve clips: enlarged ones have 0.24 to 0.6, compressed ones 0.64 to 1.2."""
MIN_PAUSE_S = 0.4
"""Time without a new picture from which on a part may be missing: phones drop single pictures."""
LONGER_PAUSE = 2.0
"""Times as long as in another copy, from which on that one has pictures meanwhile."""

ALL_DAMAGED = "of each of the copies only a part can be read"
UNSURE_LENGTH = (
    "it is not sure how long {} is: its pictures last {:.1f} s, its header says {:.1f} s"
)
WRONG_CLOCK = "the lengths of {} ({:.1f} s) and {} ({:.1f} s) differ too much for copies"
LONGER_BY_STILLS = (
    "{} is longer, but shows nothing new for {:.1f} s at its ends, so {} may show as much"
)
LONGER_IS_EDITED = "{} is longer, but is noisy or shows more, such as text"
LARGER_IS_SILENT = "{} has more pixels, but no sound"
MAY_BE_ENLARGED = "{} has more pixels, but shows no more detail: it may have been enlarged"
HAS_BARS = "it has bars or blurred sides"
SHARPER_IS_WORSE = "{} shows less detail than {}, as if it was enlarged, but has {}"
MAY_LACK_A_PART = (
    "{} has no new picture for {:.1f} s where {} has some, so a part of it may be missing"
)
FASTER_HAS_LESS_DATA = "{} has more pictures per second, but less picture data than {}"
MAY_BE_CONVERTED = "{} has a few more pictures per second, which a converter may have added"
MAY_REPEAT = "{} has more pictures per second, but some of them only repeat others"
WOVEN = "{} has the rows of two pictures in one, as of an interlaced film, {} has not"
LARGER_HAS_BARS = "{} has more pixels, but bars or blurred sides"


def by_damage(copies: Sequence[Copy]) -> Verdict:
    """A file of which only a part can be read is never kept beside a whole one."""
    left = [copy for copy in copies if not _damage(copy)]
    if not left:
        return Verdict(copies, doubt=ALL_DAMAGED)
    return excluding(
        copies,
        left,
        merit="it can be read whole",
        fault=lambda copy: f"only a part of it can be read ({_damage(copy)})",
    )


def _damage(copy: Copy) -> str:
    missing = copy.metadata.missing
    # what is behind sampling.max_frames is not damaged
    is_cut = "sampling.max_frames" in missing
    return copy.measured.damage or ("" if is_cut else missing)


def by_length(copies: Sequence[Copy]) -> Verdict:
    """A shorter file is never kept beside a longer one."""
    longest = max(copies, key=lambda copy: copy.measured.length_s)
    longest_s = longest.measured.length_s
    enough_s = longest_s - LENGTH_SLACK_S
    left = [copy for copy in copies if copy.measured.length_s >= enough_s]
    for copy in copies:
        if copy in left:
            continue
        length_s = copy.measured.length_s
        declared_s = copy.measured.declared_s
        if declared_s is not None and declared_s >= enough_s:
            doubt = UNSURE_LENGTH.format(copy.video_id, length_s, declared_s)
            return Verdict(copies, doubt=doubt)
        if longest_s > MAX_LENGTH_RATIO * length_s:
            doubt = WRONG_CLOCK.format(longest.video_id, longest_s, copy.video_id, length_s)
            return Verdict(copies, doubt=doubt)

    doubt = _doubt_of_longest(longest, left, [copy for copy in copies if copy not in left])
    if doubt:
        return Verdict(copies, doubt=doubt)

    return excluding(
        copies,
        left,
        merit=f"it is the longest ({longest_s:.1f} s)",
        fault=lambda copy: (
            f"it is shorter, {copy.measured.length_s:.1f} s against {longest_s:.1f} s"
        ),
    )


def _doubt_of_longest(longest: Copy, left: Sequence[Copy], shorter: Sequence[Copy]) -> str:
    """Why those that are left may show no more than the shorter ones, though they last longer; ""
    where nothing says so."""
    if shorter and all(copy.spoilt == EDITED for copy in left):
        return LONGER_IS_EDITED.format(longest.video_id)
    shown_s = max(copy.measured.length_s - copy.metadata.still_s for copy in left)
    for copy in shorter:
        if copy.measured.length_s >= shown_s - LENGTH_SLACK_S:
            still_s = longest.metadata.still_s
            return LONGER_BY_STILLS.format(longest.video_id, still_s, copy.video_id)

    return ""


def by_folder(folder: str) -> Criterion:
    """Copies in a folder win where there are some."""

    def criterion(copies: Sequence[Copy]) -> Verdict:
        left = [copy for copy in copies if is_inside(copy.video_id, folder)]
        if not left:
            return Verdict(copies)
        return excluding(
            copies,
            left,
            merit=f"it is in {folder}, which is preferred",
            fault=lambda _: f"another one is in {folder}, which is preferred",
        )

    return criterion


def by_smallest(copies: Sequence[Copy]) -> Verdict:
    """Only where the user asks for it."""
    least = min(copy.metadata.num_bytes for copy in copies)
    left = [copy for copy in copies if copy.metadata.num_bytes == least]
    return excluding(
        copies,
        left,
        merit=f"its file is the smallest ({_megabytes(least)})",
        fault=lambda copy: f"its file is larger, {_megabytes(copy.metadata.num_bytes)}",
    )


def by_purity(copies: Sequence[Copy]) -> Verdict:
    """What shows more than the copies have in common comes last."""
    left = [copy for copy in copies if not copy.spoilt]
    if not left:
        return Verdict(copies)
    return excluding(
        copies,
        left,
        merit="it shows only what the copies have in common",
        fault=lambda copy: copy.spoilt,
    )


def by_sound(copies: Sequence[Copy]) -> Verdict:
    """Sound is kept where another copy has none."""
    left = [copy for copy in copies if copy.measured.sound]
    silent = [copy for copy in copies if not copy.measured.sound]
    if not left or not silent:
        return Verdict(copies)
    largest = max(silent, key=lambda copy: copy.num_pixels)
    if largest.num_pixels > MORE_PIXELS * max(copy.num_pixels for copy in left):
        return Verdict(copies, doubt=LARGER_IS_SILENT.format(largest.video_id))
    return excluding(copies, left, merit="it has sound", fault=lambda _: "it has no sound")


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
    richest = _richest(filled or sharp)
    most = np.max([copy.measured.detail for copy in filled or sharp], axis=0)
    return [
        copy
        for copy in wanted
        if _has_about_as_many_bits(copy, richest) and _has_detail(copy, most)
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
    """The others beside which a copy has clearly less detail."""
    return [
        other
        for other in others
        if other.measured.detail and not _has_detail(copy, np.asarray(other.measured.detail))
    ]


def _advantage(copy: Copy, sharp: Copy) -> str:
    """What speaks for a copy with less detail, "" where nothing does."""
    if copy.measured.fps > MORE_FPS * sharp.measured.fps:
        return "more pictures per second"
    return "more picture data" if copy.picture_bits > sharp.picture_bits else ""


def by_fps(copies: Sequence[Copy]) -> Verdict:
    """More pictures per second win, where they show something new."""
    if not all(copy.measured.fps for copy in copies):
        return Verdict(copies)
    most = max(copy.measured.fps for copy in copies)
    fast = [copy for copy in copies if MORE_FPS * copy.measured.fps > most]
    slow = [copy for copy in copies if copy not in fast]
    if not slow:
        return Verdict(copies)
    most_new = max(copy.measured.new_fps for copy in fast)
    if most_new <= MORE_FPS * max(copy.measured.new_fps for copy in slow):
        return _without_repeating(fast, slow)
    doubt = _doubt_of_fast(fast, slow)
    if doubt:
        return Verdict(copies, doubt=doubt)

    return excluding(
        copies,
        fast,
        merit=f"it has the most pictures per second ({most:.3g})",
        fault=lambda copy: f"it has fewer pictures per second, {copy.measured.fps:.3g}",
    )


def _doubt_of_fast(fast: Sequence[Copy], slow: Sequence[Copy]) -> str:
    """Why the fast copies may show no more than the slow ones, "" where nothing says so: pictures
    that were repeated cost few bits, and are not always seen to be."""
    most = max(copy.measured.fps for copy in fast)
    if most < CONVERTED_FPS * max(copy.measured.fps for copy in slow):
        return MAY_BE_CONVERTED.format(fast[0].video_id)
    newest = max(copy.measured.new_share for copy in fast)
    if newest < LESS_NEW * max(copy.measured.new_share for copy in slow):
        return MAY_REPEAT.format(fast[0].video_id)
    if not _has_about_as_many_bits(_richest(fast), _richest(slow)):
        return FASTER_HAS_LESS_DATA.format(fast[0].video_id, _richest(slow).video_id)
    return ""


def _without_repeating(fast: Sequence[Copy], slow: Sequence[Copy]) -> Verdict:
    """Of copies that show as much, the slow ones: the fast ones repeat pictures."""
    if not _has_about_as_many_bits(_richest(slow), _richest(fast)):
        return Verdict([*fast, *slow], doubt=MAY_REPEAT.format(_richest(fast).video_id))
    return excluding(
        [*fast, *slow],
        slow,
        merit="it repeats no pictures",
        fault=lambda _: "it repeats pictures",
    )


def _richest(copies: Sequence[Copy]) -> Copy:
    return max(copies, key=lambda copy: copy.picture_bits)


def by_bars(copies: Sequence[Copy]) -> Verdict:
    """Of those that are equally large, those with bars or blurred sides come last."""
    left = [copy for copy in copies if not copy.has_bars]
    if not left:
        return Verdict(copies)
    return excluding(
        copies,
        left,
        merit="the film fills its picture",
        fault=lambda _: HAS_BARS,
    )


def by_bits(copies: Sequence[Copy]) -> Verdict:
    """More bits of the video stream win, as much as they are worth in their codec."""
    best = _richest(copies)
    left = [copy for copy in copies if _has_about_as_many_bits(copy, best)]
    return excluding(
        copies,
        left,
        merit=f"it has the most picture data ({_data(best)})",
        fault=lambda copy: f"it has less picture data, {_data(copy)}",
    )


def what_may_be_missing(kept: Copy, copies: Sequence[Copy]) -> str:
    """Why a copy may lack a part that others have, or is woven where they are not, "" where nothing
    says so: containers but MP4 and AVI do not say how many pictures they should have."""
    plain = next((copy for copy in copies if not copy.measured.woven), None)
    if kept.measured.woven and plain is not None:
        return WOVEN.format(kept.video_id, plain.video_id)
    pause_s = kept.measured.pause_s
    for copy in copies:
        is_as_long = copy.measured.length_s >= kept.measured.length_s - LENGTH_SLACK_S
        is_reference = is_as_long and not _damage(copy)
        if is_reference and pause_s > max(MIN_PAUSE_S, LONGER_PAUSE * copy.measured.pause_s):
            return MAY_LACK_A_PART.format(kept.video_id, pause_s, copy.video_id)

    return ""


def _has_about_as_many_bits(copy: Copy, best: Copy) -> bool:
    same_codec = copy.metadata.codec == best.metadata.codec
    enough = MORE_BITS if same_codec else MORE_BITS_OF_OTHER_CODECS
    return enough * copy.picture_bits >= best.picture_bits


def _size(copy: Copy) -> str:
    width, height = copy.metadata.content_px
    return f"{width} x {height}"


def _data(copy: Copy) -> str:
    return f"{_megabytes(copy.measured.video_bytes)} of {copy.metadata.codec}"


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.3g} MB"
