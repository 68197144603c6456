"""Which of several copies is kept, and why, in words.

One criterion after the other excludes the copies that are clearly worse than the best of those that
are left. Where a criterion cannot tell, where two speak against each other, and where none
distinguishes the last ones, no copy is named: to keep the worse one is worse than to ask.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from hapvr.search.collection import VideoMetadata
from hapvr.settings import DuplicatesSettings
from hapvr.video.facts import DETAIL_SCALES, FileFacts
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
MORE_FPS = 1.1
MORE_BITS = 1.1
MORE_BITS_OF_OTHER_CODECS = 2.0
"""How efficient an encoder was is not known, only what its codec allows."""
MIRRORED_MARGIN = 0.3
"""By how much two mean pictures must correlate better once one is mirrored."""

CODEC_EFFICIENCY = {
    "libdav1d": 2.2,
    "hevc": 1.55,
    "vp9": 1.45,
    "h264": 1.0,
    "vc1": 0.8,
    "wmv3": 0.8,
    "vp8": 0.8,
    "mpeg4": 0.56,
    "msmpeg4": 0.5,
    "msmpeg4v1": 0.5,
    "msmpeg4v2": 0.5,
    "theora": 0.55,
    "h263": 0.54,
    "flv": 0.5,
    "wmv1": 0.5,
    "wmv2": 0.5,
    "mpeg2video": 0.45,
    "mpeg1video": 0.35,
    "dvvideo": 0.12,
    "prores": 0.12,
    "dnxhd": 0.12,
    "mjpeg": 0.1,
    "gif": 0.02,
    "apng": 0.02,
    "png": 0.02,
    "rawvideo": 0.005,
}
"""Bits of H.264 that show as much as one bit of a codec. HEVC, MPEG-4, H.263 and MPEG-2 by Ohm et
al., "Comparison of the Coding Efficiency of Video Coding Standards", IEEE TCSVT 22(12), 2012, table
VI; the others are rough, which MORE_BITS_OF_OTHER_CODECS allows for."""

UNMEASURED = "the file of {} could not be measured"
ALL_DAMAGED = "of each of the copies only a part can be read"
UNSURE_LENGTH = (
    "it is not sure how long {} is: its pictures last {:.1f} s, its header says {:.1f} s"
)
WRONG_CLOCK = "the lengths of {} ({:.1f} s) and {} ({:.1f} s) differ too much for copies"
WHICH_IS_MIRRORED = "some are mirrored, and it cannot be told which"
LARGER_IS_SILENT = "{} has more pixels, but no sound"
MAY_BE_ENLARGED = "{} has more pixels, but shows no more detail: it may have been enlarged"
LARGER_HAS_BARS = "{} has more pixels, but black bars"
TOO_CLOSE = "{} and {} are too much alike to say which is better"

MIXED = "it shows more than the copies have in common: another one is contained in it"
EDITED = (
    "it is noisy, or shows more than the copies have in common, such as text or a picture in the "
    "picture"
)


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A copy to choose from. facts: None where its file could not be measured. spoilt: MIXED,
    EDITED or ""."""

    video_id: str
    metadata: VideoMetadata
    facts: FileFacts | None = None
    spoilt: str = ""

    @property
    def measured(self) -> FileFacts:
        if self.facts is None:
            raise ValueError(f"{self.video_id} was not measured")
        return self.facts

    @property
    def num_pixels(self) -> int:
        """Without black bars."""
        width, height = self.metadata.content_px
        return width * height

    @property
    def has_bars(self) -> bool:
        return min(self.metadata.content) < 1

    @property
    def picture_bits(self) -> float:
        """Of the video stream, as H.264 would need for as much."""
        return self.measured.video_bytes * CODEC_EFFICIENCY.get(self.metadata.codec, 1.0)


@dataclass(frozen=True)
class Choice:
    """named: the id of the copy to keep, None where none is named. reasons: id -> why it is kept or
    not, in a sentence."""

    named: str | None
    reasons: Mapping[str, str]


@dataclass(frozen=True)
class Verdict:
    """What one criterion says. left: the copies that are not clearly worse. merit: what those have
    that the others lack. faults: id -> what is worse about an excluded copy. doubt: why no copy
    must be named, else ""."""

    left: Sequence[Copy]
    merit: str = ""
    faults: Mapping[str, str] = field(default_factory=dict)
    doubt: str = ""


Criterion = Callable[[Sequence[Copy]], Verdict]


def choose(copies: Sequence[Copy], settings: DuplicatesSettings) -> Choice:
    """The copy to keep of a group, whose medoid comes first."""
    contents = _one_of_each_content(copies, settings)
    if len(contents) == 1:
        return _choice_of_equals(copies, contents[0])
    unmeasured = [copy.video_id for copy in contents if copy.facts is None]
    if unmeasured:
        return _undecided(copies, UNMEASURED.format(min(unmeasured)))

    left: Sequence[Copy] = contents
    merits = list[str]()
    faults = dict[str, str]()
    for criterion in _criteria(settings):
        verdict = criterion(left)
        if verdict.doubt:
            return _undecided(copies, verdict.doubt)
        if verdict.faults:
            merits.append(verdict.merit)
            faults |= verdict.faults
        left = verdict.left
        if len(left) == 1:
            return _decided(copies, left[0], merits, faults)
    first, second = sorted(copy.video_id for copy in left)[:2]
    return _undecided(copies, TOO_CLOSE.format(first, second))


def _one_of_each_content(copies: Sequence[Copy], settings: DuplicatesSettings) -> list[Copy]:
    """Of files of the same bytes the one in a preferred or protected folder, then of the first
    path; in the order of the copies."""
    chosen = dict[str, Copy]()
    for copy in copies:
        sha256 = copy.metadata.sha256
        known = chosen.get(sha256, copy)
        chosen[sha256] = min(known, copy, key=lambda one: _order_of_equals(one, settings))
    return list(chosen.values())


def _order_of_equals(copy: Copy, settings: DuplicatesSettings) -> tuple[int, bool, str, str]:
    folders = [entry for entry in settings.prefer if entry.endswith("/")]
    inside = [number for number, one in enumerate(folders) if is_inside(copy.video_id, one)]
    place = min(inside, default=len(folders))
    is_free = not is_protected(copy.video_id, settings)
    return place, is_free, copy.metadata.path_text or "", copy.video_id


def is_protected(video_id: str, settings: DuplicatesSettings) -> bool:
    return any(is_inside(video_id, folder) for folder in settings.protect)


def _choice_of_equals(copies: Sequence[Copy], kept: Copy) -> Choice:
    reasons = {copy.video_id: "The same file as the one to keep." for copy in copies}
    reasons[kept.video_id] = "Kept as its path comes first: the files are the same."
    return Choice(kept.video_id, reasons)


def _undecided(copies: Sequence[Copy], doubt: str) -> Choice:
    return Choice(None, {copy.video_id: not_named(doubt) for copy in copies})


def not_named(doubt: str) -> str:
    """The sentence of a group in which no copy is named."""
    return f"No copy is named to keep: {doubt}."


def _decided(
    copies: Sequence[Copy], kept: Copy, merits: Sequence[str], faults: Mapping[str, str]
) -> Choice:
    by_content = {
        copy.metadata.sha256: faults[copy.video_id] for copy in copies if copy.video_id in faults
    }
    reasons = {}
    for copy in copies:
        fault = by_content.get(copy.metadata.sha256)
        reasons[copy.video_id] = (
            "The same file as the one to keep." if fault is None else f"Not kept: {fault}."
        )
    reasons[kept.video_id] = f"Kept: {'; '.join(dict.fromkeys(merits))}."
    return Choice(kept.video_id, reasons)


def _criteria(settings: DuplicatesSettings) -> list[Criterion]:
    """In order: what must not be lost, what the user prefers, then the rest."""
    usual: dict[str, Criterion] = {
        "sound": by_sound,
        "resolution": by_resolution,
        "fps": by_fps,
        "bits": by_bits,
    }
    named: list[Criterion] = []
    for entry in settings.prefer:
        if entry.endswith("/"):
            named.append(_by_folder(entry))
        elif entry == "smallest":
            named.append(by_smallest)
        else:
            named.append(usual[entry])
    rest = [criterion for name, criterion in usual.items() if name not in settings.prefer]
    # bars cost no pixels that show something, but what has them has more bits
    before_bits = rest.index(by_bits) if by_bits in rest else len(rest)
    rest.insert(before_bits, by_bars)
    return [by_damage, by_length, *named, by_purity, by_mirroring, *rest]


def by_damage(copies: Sequence[Copy]) -> Verdict:
    """A file of which only a part can be read is never kept beside a whole one."""
    faults = {
        copy.video_id: f"only a part of it can be read ({_damage(copy)})"
        for copy in copies
        if _damage(copy)
    }
    if len(faults) == len(copies):
        return Verdict(copies, doubt=ALL_DAMAGED)
    left = [copy for copy in copies if copy.video_id not in faults]
    return Verdict(left, "it can be read whole", faults)


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
    left, faults = list[Copy](), dict[str, str]()
    for copy in copies:
        length_s, declared_s = copy.measured.length_s, copy.measured.declared_s
        if length_s >= enough_s:
            left.append(copy)
            continue
        if declared_s is not None and declared_s >= enough_s:
            doubt = UNSURE_LENGTH.format(copy.video_id, length_s, declared_s)
            return Verdict(copies, doubt=doubt)
        if longest_s > MAX_LENGTH_RATIO * length_s:
            doubt = WRONG_CLOCK.format(longest.video_id, longest_s, copy.video_id, length_s)
            return Verdict(copies, doubt=doubt)
        faults[copy.video_id] = f"it is shorter, {length_s:.1f} s against {longest_s:.1f} s"
    return Verdict(left, f"it is the longest ({longest_s:.1f} s)", faults)


def _by_folder(folder: str) -> Criterion:
    def criterion(copies: Sequence[Copy]) -> Verdict:
        left = [copy for copy in copies if is_inside(copy.video_id, folder)]
        if not left:
            return Verdict(copies)
        faults = {
            copy.video_id: f"another one is in {folder}, which is preferred"
            for copy in copies
            if copy not in left
        }
        return Verdict(left, f"it is in {folder}, which is preferred", faults)

    return criterion


def by_smallest(copies: Sequence[Copy]) -> Verdict:
    """Only where the user asks for it."""
    least = min(copy.metadata.num_bytes for copy in copies)
    left = [copy for copy in copies if copy.metadata.num_bytes == least]
    faults = {
        copy.video_id: f"its file is larger, {_megabytes(copy.metadata.num_bytes)}"
        for copy in copies
        if copy not in left
    }
    return Verdict(left, f"its file is the smallest ({_megabytes(least)})", faults)


def by_purity(copies: Sequence[Copy]) -> Verdict:
    """What shows more than the copies have in common comes last."""
    left = [copy for copy in copies if not copy.spoilt]
    if not left:
        return Verdict(copies)
    faults = {copy.video_id: copy.spoilt for copy in copies if copy.spoilt}
    return Verdict(left, "it shows only what the copies have in common", faults)


def by_mirroring(copies: Sequence[Copy]) -> Verdict:
    """The fewer ones of those whose left and right are exchanged come last."""
    first = _mean_picture(copies[0])
    turned = [copy for copy in copies if is_mirrored(_mean_picture(copy), first)]
    others = [copy for copy in copies if copy not in turned]
    if not turned:
        return Verdict(copies)
    if len(turned) == len(others):
        return Verdict(copies, doubt=WHICH_IS_MIRRORED)
    left, mirrored = (others, turned) if len(others) > len(turned) else (turned, others)
    faults = {copy.video_id: "it is mirrored" for copy in mirrored}
    return Verdict(left, "it is not mirrored", faults)


def _mean_picture(copy: Copy) -> NDArray[np.uint8] | None:
    stored = copy.metadata.mean_picture
    side = round(sqrt(len(stored)))
    return np.frombuffer(stored, np.uint8).reshape(side, side) if stored else None


def is_mirrored(one: NDArray[np.uint8] | None, other: NDArray[np.uint8] | None) -> bool:
    """Whether the mean picture [N, N] of a copy is that of the other one with left and right
    exchanged; False where either is not known or nearly symmetric."""
    if one is None or other is None or min(one.std(), other.std()) < 1:
        return False
    plain = np.corrcoef(one.ravel(), other.ravel())[0, 1]
    turned = np.corrcoef(one[:, ::-1].ravel(), other.ravel())[0, 1]
    return bool(turned > plain + MIRRORED_MARGIN)


def by_sound(copies: Sequence[Copy]) -> Verdict:
    """Sound is kept where another copy has none."""
    left = [copy for copy in copies if copy.measured.sound]
    silent = [copy for copy in copies if not copy.measured.sound]
    if not left or not silent:
        return Verdict(copies)
    largest = max(silent, key=lambda copy: copy.num_pixels)
    if largest.num_pixels > MORE_PIXELS * max(copy.num_pixels for copy in left):
        return Verdict(copies, doubt=LARGER_IS_SILENT.format(largest.video_id))
    faults = {copy.video_id: "it has no sound" for copy in silent}
    return Verdict(left, "it has sound", faults)


def by_resolution(copies: Sequence[Copy]) -> Verdict:
    """More pixels without black bars win where they show more detail."""
    most = max(copy.num_pixels for copy in copies)
    large = [copy for copy in copies if MORE_PIXELS * copy.num_pixels > most]
    small = [copy for copy in copies if copy not in large]
    if not small:
        return Verdict(copies)
    reference = max(small, key=lambda copy: copy.num_pixels)
    left = [copy for copy in large if shows_more(copy, reference)]
    if not left:
        return Verdict(copies, doubt=MAY_BE_ENLARGED.format(large[0].video_id))
    if all(copy.has_bars for copy in left) and not all(copy.has_bars for copy in small):
        return Verdict(copies, doubt=LARGER_HAS_BARS.format(left[0].video_id))
    faults = {copy.video_id: f"it has fewer pixels, {_size(copy)}" for copy in small}
    for copy in large:
        if copy not in left:
            faults[copy.video_id] = "it shows less detail: it may have been enlarged"
    return Verdict(left, f"it has the most pixels without black bars ({_size(left[0])})", faults)


def shows_more(large: Copy, small: Copy) -> bool:
    """Whether a copy surely has detail that the smaller one has no pixels for."""
    of_large, of_small = large.measured.detail, small.measured.detail
    if not of_large or not of_small:
        return False
    ratio = sqrt(small.num_pixels / large.num_pixels)
    # what is lost at a larger scale is lost at the ratio of the two, too
    place = next((place for place, scale in enumerate(DETAIL_SCALES) if scale >= ratio), None)
    if place is None:
        return False
    return of_large[place] >= SAME_DETAIL[DETAIL_SCALES[place]] * of_small[place]


def by_fps(copies: Sequence[Copy]) -> Verdict:
    """More pictures per second win."""
    most = max(copy.measured.fps for copy in copies)
    if not all(copy.measured.fps for copy in copies):
        return Verdict(copies)
    left = [copy for copy in copies if MORE_FPS * copy.measured.fps > most]
    faults = {
        copy.video_id: f"it has fewer pictures per second, {copy.measured.fps:.3g}"
        for copy in copies
        if copy not in left
    }
    return Verdict(left, f"it has the most pictures per second ({most:.3g})", faults)


def by_bars(copies: Sequence[Copy]) -> Verdict:
    """Of those that are equally large, black bars come last."""
    left = [copy for copy in copies if not copy.has_bars]
    if not left:
        return Verdict(copies)
    faults = {copy.video_id: "it has black bars" for copy in copies if copy.has_bars}
    return Verdict(left, "it has no black bars", faults)


def by_bits(copies: Sequence[Copy]) -> Verdict:
    """More bits of the video stream win, as much as they are worth in their codec."""
    best = max(copies, key=lambda copy: copy.picture_bits)
    left, faults = list[Copy](), dict[str, str]()
    for copy in copies:
        same = copy.metadata.codec == best.metadata.codec
        enough = MORE_BITS if same else MORE_BITS_OF_OTHER_CODECS
        if enough * copy.picture_bits >= best.picture_bits:
            left.append(copy)
        else:
            faults[copy.video_id] = f"it has less picture data, {_data(copy)}"
    return Verdict(left, f"it has the most picture data ({_data(best)})", faults)


def _size(copy: Copy) -> str:
    width, height = copy.metadata.content_px
    return f"{width} x {height}"


def _data(copy: Copy) -> str:
    return f"{_megabytes(copy.measured.video_bytes)} of {copy.metadata.codec}"


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.3g} MB"
