"""Which of several copies is kept, and why, in words.

One criterion after the other excludes the copies that are clearly worse than the best of those that
are left. Where a criterion cannot tell, where two speak against each other, and where none
distinguishes the last ones, no copy is named: to keep the worse one is worse than to ask. Files of
which it is not sure that they are copies like the others take no part: they stay.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hapvr.search.copies import Copy, Criterion
from hapvr.search.criteria import (
    MAX_LENGTH_RATIO,
    by_bars,
    by_bits,
    by_damage,
    by_folder,
    by_fps,
    by_length,
    by_purity,
    by_smallest,
    by_sound,
    what_may_be_missing,
)
from hapvr.search.looks import by_looks, by_mirroring
from hapvr.search.sharpness import by_detail, by_resolution
from hapvr.settings import DuplicatesSettings
from hapvr.video.sources import is_inside

UNMEASURED = "the file of {} could not be measured"
TOO_CLOSE = "{} and {} are too much alike to say which is better"
OTHER_LENGTH = "its length, {:.1f} s, differs too much from the {:.1f} s of most others"


@dataclass(frozen=True)
class Choice:
    """Which copy is kept."""

    named: str | None
    """id of the copy to keep, None where none is named"""
    reasons: Mapping[str, str]
    """id -> why it is kept or not, in a sentence"""
    staying: Collection[str] = ()
    """ids of copies that stay, as they may be no worse than the one to keep"""


def choose(copies: Sequence[Copy], settings: DuplicatesSettings) -> Choice:
    """The copy to keep of a group, whose medoid comes first."""
    doubtful = {copy.video_id: copy.doubt for copy in copies if copy.doubt is not None}
    sure = [copy for copy in copies if copy.video_id not in doubtful]
    if len(sure) == 1 and doubtful:
        return _undecided(copies, next(iter(doubtful.values())).of_group)

    staying = {video_id: doubt.of_copy for video_id, doubt in doubtful.items()}
    staying |= _other_lengths(sure)
    compared = [copy for copy in sure if copy.video_id not in staying]
    choice = _choose_of(compared, settings)
    if choice.named is None:
        doubt = choice.reasons[compared[0].video_id]
        return Choice(None, {copy.video_id: doubt for copy in copies})

    return _with_staying(choice, staying)


def _with_staying(choice: Choice, staying: Mapping[str, str]) -> Choice:
    """The choice, beside which copies stay.

    staying: id -> why a copy may be no worse than the one to keep
    """
    reasons = {video_id: f"It stays: {doubt}." for video_id, doubt in staying.items()}
    stay = frozenset({*choice.staying, *staying})
    return Choice(choice.named, {**choice.reasons, **reasons}, stay)


def _other_lengths(copies: Sequence[Copy]) -> dict[str, str]:
    """Id -> why a copy whose length differs too much from those of most others is not compared with
    them; nothing where fewer than two would be left."""
    lengths_s = {copy.video_id: copy.facts.length_s for copy in copies if copy.facts is not None}
    if len(lengths_s) < len(copies):
        return {}

    usual_s = median(lengths_s.values())
    odd = {}
    for video_id, length_s in lengths_s.items():
        if max(length_s, usual_s) > MAX_LENGTH_RATIO * min(length_s, usual_s):
            odd[video_id] = OTHER_LENGTH.format(length_s, usual_s)

    return odd if len(copies) - len(odd) > 1 else {}


def _choose_of(copies: Sequence[Copy], settings: DuplicatesSettings) -> Choice:
    """The copy to keep of those that can be compared."""
    contents = one_of_each_content(copies, settings)
    if len(contents) == 1:
        return _choice_of_equals(copies, contents[0])
    unmeasured = [copy.video_id for copy in contents if copy.facts is None]
    if unmeasured:
        return _undecided(copies, UNMEASURED.format(min(unmeasured)))

    left: Sequence[Copy] = contents
    merits = list[str]()
    faults = dict[str, str]()
    staying = dict[str, str]()
    for criterion in _criteria(settings):
        verdict = criterion(left)
        if verdict.doubt:
            return _undecided(copies, verdict.doubt)
        if verdict.faults:
            merits.append(verdict.merit)
            faults |= verdict.faults

        staying |= verdict.staying
        left = verdict.left
        if len(left) == 1:
            doubt = what_may_be_missing(left[0], contents)
            if doubt:
                return _undecided(copies, doubt)
            choice = _decided(copies, left[0], merits, faults)
            return _with_staying(choice, _of_each_file(staying, copies))

    first, second = sorted(copy.video_id for copy in left)[:2]
    return _undecided(copies, TOO_CLOSE.format(first, second))


def one_of_each_content(copies: Sequence[Copy], settings: DuplicatesSettings) -> list[Copy]:
    """Of files of the same bytes the one in a preferred or protected folder, then of the first
    path; in the order of the copies."""
    chosen = dict[str, Copy]()
    for copy in copies:
        sha256 = copy.metadata.sha256
        equals = (chosen.get(sha256, copy), copy)
        chosen[sha256] = min(equals, key=lambda equal: _order_of_equals(equal, settings))

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


def _of_each_file(values: Mapping[str, str], copies: Sequence[Copy]) -> dict[str, str]:
    """What is said of one file of a content, of all files of its bytes. values: by id"""
    of_content = {
        copy.metadata.sha256: values[copy.video_id] for copy in copies if copy.video_id in values
    }
    return {
        copy.video_id: of_content[copy.metadata.sha256]
        for copy in copies
        if copy.metadata.sha256 in of_content
    }


def _undecided(copies: Sequence[Copy], doubt: str) -> Choice:
    return Choice(None, {copy.video_id: not_named(doubt) for copy in copies})


def not_named(doubt: str) -> str:
    """The sentence of a group in which no copy is named."""
    return f"No copy is named to keep: {doubt}."


def _decided(
    copies: Sequence[Copy], kept: Copy, merits: Sequence[str], faults: Mapping[str, str]
) -> Choice:
    fault_of = _of_each_file(faults, copies)
    reasons = {}
    for copy in copies:
        fault = fault_of.get(copy.video_id)
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
            named.append(by_folder(entry))
        elif entry == "smallest":
            named.append(by_smallest)
        else:
            named.append(usual[entry])

    rest = [criterion for name, criterion in usual.items() if name not in settings.prefer]
    # bars cost no pixels that show something, but what has them has more bits
    before_bits = rest.index(by_bits) if by_bits in rest else len(rest)
    rest.insert(before_bits, by_bars)
    order = [by_damage, by_length, *named, by_purity, by_mirroring, by_looks, *rest]
    order.insert(order.index(by_resolution) + 1, by_detail)
    return order
