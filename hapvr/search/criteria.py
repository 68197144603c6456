"""Criteria by which the copy to keep is chosen: each excludes the copies that are clearly worse
than the best, or says why it cannot tell."""

from collections.abc import Sequence

from hapvr.search.copies import (
    EDITED,
    HAS_BARS,
    MORE_FPS,
    MORE_PIXELS,
    Copy,
    Criterion,
    Verdict,
    excluding,
    has_about_as_many_bits,
    richest,
)
from hapvr.search.looks import shows_more_in_one_place
from hapvr.search.sharpness import are_of_one_size
from hapvr.video.sources import is_inside

LENGTH_SLACK_S = 0.5
"""Copies differ by a few pictures at their ends; what lacks more is shorter."""
MAX_LENGTH_RATIO = 1.4
"""Copies show at least 80 % of each other, so one of the clocks is wrong beyond that."""
CONVERTED_FPS = 1.45
"""Times as many pictures per second, below which a converter may have repeated some: 25 to 30."""
LESS_NEW = 0.9
"""Part of the share of new pictures of a slower copy, below which a faster one repeats some."""
LEAST_NEW = 0.85
"""Share of new pictures below which it is not sure that none are repeated: 0.78 in two films whose
pictures were doubled or mixed, one of which has some that come twice itself, and 1.0 in a plain
one."""
FEWER_PICTURES = 0.9
"""Part of the pictures of a copy of its rate and length below which a copy lacks some."""
AS_MANY_PICTURES = 1.02
FINER = 1.02
"""Times as fine as a copy with fewer bits a better one is: 1.04 to 1.3 in 15 clips at 1.6 to 4
times the bits; 0.82 to 0.98 for copies of copies and what has damage or noise, 1.01 for a weak
encoder."""
MORE_BLOCKS = 1.2
"""Times as blocky as another copy, from which on what is fine in a copy are edges of blocks: 1.35
and 1.39 in two copies at very few bits, one of them in VP8; beside copies of copies 0.77 to 1.0."""
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
LONGER_LOOKS_OTHERWISE = (
    "{} is longer, but its pictures differ in one place from those of {}, as by a logo or text"
)
SLOWED = "{} is longer, but has as many pictures as {}: one of them plays at another speed"
LARGER_IS_SILENT = "{} has more pixels, but no sound"
MAY_LACK_A_PART = (
    "{} has no new picture for {:.1f} s where {} has some, so a part of it may be missing"
)
FASTER_HAS_LESS_DATA = "{} has more pictures per second, but less picture data than {}"
MAY_BE_CONVERTED = "{} has a few more pictures per second, which a converter may have added"
MOVES_TOO_LITTLE = (
    "{} has more pictures per second, but so little moves that they may only repeat others"
)
LACKS_PICTURES = "{} has {} pictures, but {} has {} in about the same time"
RICHER_IS_COARSER = (
    "{} has more picture data than {}, but shows no more that is fine, as a copy of a copy does"
)
MAY_REPEAT = "{} has more pictures per second, but some of them only repeat others"
WOVEN = "{} has the rows of two pictures in one, as of an interlaced film, {} has not"


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
    for copy in shorter:
        if _plays_at_another_speed(longest, copy):
            return SLOWED.format(longest.video_id, copy.video_id)

    if shorter and all(shows_more_in_one_place(long, short) for long in left for short in shorter):
        return LONGER_LOOKS_OTHERWISE.format(longest.video_id, shorter[0].video_id)
    shown_s = max(copy.measured.length_s - copy.metadata.still_s for copy in left)
    for copy in shorter:
        if copy.measured.length_s >= shown_s - LENGTH_SLACK_S:
            still_s = longest.metadata.still_s
            return LONGER_BY_STILLS.format(longest.video_id, still_s, copy.video_id)

    return ""


def _plays_at_another_speed(longer: Copy, shorter: Copy) -> bool:
    """Whether a longer copy has as many pictures as a shorter one, and fewer in a second."""
    few, many = sorted((longer.measured.num_pictures, shorter.measured.num_pictures))
    is_slower = AS_MANY_PICTURES * longer.measured.fps < shorter.measured.fps
    return is_slower and 0 < many <= AS_MANY_PICTURES * few


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


def by_fps(copies: Sequence[Copy]) -> Verdict:
    """More pictures per second win, where they show something new."""
    if not all(copy.measured.fps for copy in copies):
        return Verdict(copies)
    most = max(copy.measured.fps for copy in copies)
    fast = [copy for copy in copies if MORE_FPS * copy.measured.fps > most]
    slow = [copy for copy in copies if copy not in fast]
    if not slow:
        return Verdict(copies)
    if any(copy.measured.new_share is None for copy in copies):
        return Verdict(copies, doubt=MOVES_TOO_LITTLE.format(fast[0].video_id))
    if _most_new_fps(fast) <= MORE_FPS * _most_new_fps(slow):
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
    newest = max(_new_share(copy) for copy in fast)
    if newest < max(LEAST_NEW, LESS_NEW * max(_new_share(copy) for copy in slow)):
        return MAY_REPEAT.format(fast[0].video_id)
    if not has_about_as_many_bits(richest(fast), richest(slow)):
        return FASTER_HAS_LESS_DATA.format(fast[0].video_id, richest(slow).video_id)
    return ""


def _new_share(copy: Copy) -> float:
    """0 where it is not known."""
    return copy.measured.new_share or 0.0


def _most_new_fps(copies: Sequence[Copy]) -> float:
    """Pictures per second that show something new, of the copy that has most of them."""
    return max(copy.measured.fps * _new_share(copy) for copy in copies)


def _without_repeating(fast: Sequence[Copy], slow: Sequence[Copy]) -> Verdict:
    """Of copies that show as much, the slow ones: the fast ones repeat pictures."""
    if not has_about_as_many_bits(richest(slow), richest(fast)):
        return Verdict([*fast, *slow], doubt=MAY_REPEAT.format(richest(fast).video_id))
    return excluding(
        [*fast, *slow],
        slow,
        merit="it repeats no pictures",
        fault=lambda _: "it repeats pictures",
    )


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
    best = richest(copies)
    left = [copy for copy in copies if has_about_as_many_bits(copy, best)]
    for copy in copies:
        if copy not in left and _is_about_as_fine(copy, best):
            return Verdict(copies, doubt=RICHER_IS_COARSER.format(best.video_id, copy.video_id))

    return excluding(
        copies,
        left,
        merit=f"it has the most picture data ({_data(best)})",
        fault=lambda copy: f"it has less picture data, {_data(copy)}",
    )


def _is_about_as_fine(copy: Copy, best: Copy) -> bool:
    """Whether a copy shows about as much that is fine as one of its size with more bits, other than
    edges of blocks; False where that is not known. Whoever compresses a film again can add bits,
    but not what was lost before."""
    if not are_of_one_size(copy, best):
        return False
    if copy.measured.blockiness >= MORE_BLOCKS * best.measured.blockiness > 0:
        return False
    return 0 < best.measured.fineness < FINER * copy.measured.fineness


def what_may_be_missing(kept: Copy, copies: Sequence[Copy]) -> str:
    """Why a copy may lack a part that others have, or is woven where they are not, "" where nothing
    says so: containers but MP4 and AVI do not say how many pictures they should have."""
    plain = next((copy for copy in copies if not copy.measured.woven), None)
    if kept.measured.woven and plain is not None:
        return WOVEN.format(kept.video_id, plain.video_id)
    pause_s = kept.measured.pause_s
    num_pictures = kept.measured.num_pictures
    for copy in copies:
        is_as_long = copy.measured.length_s >= kept.measured.length_s - LENGTH_SLACK_S
        if not is_as_long or _damage(copy):
            continue
        if pause_s > max(MIN_PAUSE_S, LONGER_PAUSE * copy.measured.pause_s):
            return MAY_LACK_A_PART.format(kept.video_id, pause_s, copy.video_id)
        has_its_rate = copy.measured.fps <= MORE_FPS * kept.measured.fps
        if has_its_rate and num_pictures < FEWER_PICTURES * copy.measured.num_pictures:
            return LACKS_PICTURES.format(
                kept.video_id, num_pictures, copy.video_id, copy.measured.num_pictures
            )

    return ""


def _data(copy: Copy) -> str:
    return f"{_megabytes(copy.measured.video_bytes)} of {copy.metadata.codec}"


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.3g} MB"
