"""Pairs of videos that share footage, what kind of pair they are, and groups of copies.

Groups are stars: every member is a copy of its group's medoid, so that no chain of look-alikes ties strangers together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from hapvr.search.facts import VideoFacts

Kind = Literal["copy", "contained", "overlap", "same_incident"]
KINDS: tuple[str, ...] = get_args(Kind)
COVERED = 0.8
"""Part of a video that must be covered for it to count as shown whole by the other."""

GROUP_DIGITS = 12
EFFICIENCY = {"hevc": 1.6, "h265": 1.6, "vp9": 1.5, "av1": 2.0}
"""Bits of H.264 that a bit of the codec is worth, roughly; others count as H.264."""


@dataclass(frozen=True, kw_only=True)
class DuplicatePair:
    """Two videos of the collection, first < second. sha256: of their contents when they were compared. covered: parts of
    each that the other shows, in [0, 1]. starts_s: where the longest and surest common part begins in each. mark: what
    somebody said of them, "" if nothing."""

    first: str
    second: str
    first_sha256: str
    second_sha256: str
    similarity: float
    probability: float
    first_covered: float
    second_covered: float
    first_start_s: float
    second_start_s: float
    mark: str = ""

    @property
    def kind(self) -> Kind:
        return kind_of(self.first_covered, self.second_covered)


@dataclass(frozen=True, kw_only=True)
class GroupMember:
    """A video of a group of copies. group: stable name, from the smallest digest of the members' contents. medoid: whether
    all others were compared with it. keep: whether it is the copy to keep, and reason: why, or what the kept one has more."""

    group: str
    video_id: str
    medoid: bool
    keep: bool
    reason: str
    similarity: float
    facts: VideoFacts


def kind_of(first_covered: float, second_covered: float) -> Kind:
    """What two videos are to each other, by the parts of them that the other one shows."""
    if min(first_covered, second_covered) >= COVERED:
        return "copy"
    if max(first_covered, second_covered) >= COVERED:
        return "contained"
    return "overlap" if max(first_covered, second_covered) > 0 else "same_incident"


def best_of_each(pairs: Iterable[DuplicatePair]) -> list[DuplicatePair]:
    """Each pair once, with its highest similarity, in order of the ids."""
    best: dict[tuple[str, str], DuplicatePair] = {}
    for pair in pairs:
        key = (pair.first, pair.second)
        if key not in best or pair.similarity > best[key].similarity:
            best[key] = pair
    return [best[key] for key in sorted(best)]


def group_copies(
    pairs: Sequence[DuplicatePair], facts: Mapping[str, VideoFacts], *, apart: Callable[[str, str], bool] | None = None
) -> list[GroupMember]:
    """Groups of two or more videos, the largest first; pairs that are no copies are passed over.

    apart: whether two videos must not come into one group, even if both are copies of its medoid.

    Medoids are chosen greedily: the video that is a copy of most others that have no group yet, then the one of highest
    similarities, then of the smallest content digest. So the same pairs give the same groups in whatever order they come.
    """
    near: dict[str, dict[str, float]] = defaultdict(dict)
    for pair in pairs:
        if pair.kind == "copy":
            near[pair.first][pair.second] = near[pair.second][pair.first] = pair.similarity
    free = set(near)
    members: list[GroupMember] = []
    while free:
        medoid = min(free, key=lambda one: _medoid_order(one, near[one], free, facts[one]))
        copies = _together([other for other in near[medoid] if other in free], near[medoid], facts, apart)
        free -= {medoid, *copies}
        if copies:
            members += _group(medoid, copies, near[medoid], facts)
    return members


def _together(
    copies: Sequence[str],
    similarities: Mapping[str, float],
    facts: Mapping[str, VideoFacts],
    apart: Callable[[str, str], bool] | None,
) -> list[str]:
    """Those copies of a medoid that may stand in one group, sorted; of two that may not, the more similar one."""
    if apart is None:
        return sorted(copies)
    chosen: list[str] = []
    for one in sorted(copies, key=lambda one: (-similarities[one], facts[one].sha256, one)):
        if not any(apart(one, other) for other in chosen):
            chosen.append(one)
    return sorted(chosen)


def _medoid_order(
    one: str, near: Mapping[str, float], free: set[str], facts: VideoFacts
) -> tuple[int, float, str, str]:
    left = [similarity for other, similarity in near.items() if other in free]
    return -len(left), -sum(left), facts.sha256, one


def _group(
    medoid: str, copies: Sequence[str], similarities: Mapping[str, float], facts: Mapping[str, VideoFacts]
) -> list[GroupMember]:
    ids = [medoid, *copies]
    name = min(facts[one].sha256 for one in ids)[:GROUP_DIGITS]
    ranked = sorted(ids, key=lambda one: (*(-value for value in quality(facts[one])), one))
    best = facts[ranked[0]]
    return [
        GroupMember(
            group=name,
            video_id=one,
            medoid=one == medoid,
            keep=place == 0,
            reason=_why_kept(best, facts[ranked[1]])
            if place == 0
            else f"the kept one has {_advantage(best, facts[one])}",
            similarity=similarities.get(one, 1.0),
            facts=facts[one],
        )
        for place, one in enumerate(ranked)
    ]


def quality(facts: VideoFacts) -> tuple[float, float, float]:
    """Pixels, bits per second in terms of H.264, and seconds: by these the copy to keep is chosen, in this order."""
    seconds = facts.duration_s or 0.0
    rate = 8 * facts.num_bytes / seconds if seconds > 0 else 0.0
    return facts.width_px * facts.height_px, rate * EFFICIENCY.get(facts.codec, 1.0), seconds


def _why_kept(best: VideoFacts, next_best: VideoFacts) -> str:
    return f"it has {_advantage(best, next_best)}"


def _advantage(best: VideoFacts, other: VideoFacts) -> str:
    """What speaks for one file and against another."""
    (pixels, rate, seconds), (other_pixels, other_rate, other_seconds) = quality(best), quality(other)
    if pixels > other_pixels:
        return f"more pixels ({best.width_px} x {best.height_px} against {other.width_px} x {other.height_px})"
    if rate > other_rate:
        codecs = "" if best.codec == other.codec else f", {best.codec} against {other.codec}"
        return f"a higher bit rate ({rate / 1000:.0f} against {other_rate / 1000:.0f} kbit/s in terms of H.264{codecs})"
    if seconds > other_seconds:
        return f"more seconds ({seconds:.1f} against {other_seconds:.1f})"
    return "the same quality and the first name"
