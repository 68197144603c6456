"""Pairs of videos that share footage, what kind of pair they are, and groups of copies, also as
rows of tables.

Groups are stars: every member is a copy of its group's medoid, so that no chain of look-alikes ties
strangers together.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from heapq import heapify, heappop, heappush
from math import inf
from statistics import median
from types import MappingProxyType
from typing import Literal, get_args

import pyarrow as pa

from hapvr.scorer.calibration import Verdict
from hapvr.search.collection import VideoMetadata
from hapvr.search.copies import DIFFERENT, EDITED, MIXED, SHORT, UNSURE, Copy, Doubt
from hapvr.search.keep import Choice, choose, is_protected, one_of_each_content
from hapvr.search.looks import surely_look_alike
from hapvr.search.match import verdict_of
from hapvr.settings import DuplicatesSettings
from hapvr.video.facts import FileFacts

Kind = Literal["copy", "contained", "overlap", "same_incident"]
KINDS: tuple[str, ...] = get_args(Kind)
COVERED = 0.8
"""Part of a video that must be covered for it to count as shown whole by the other."""
MORE = 0.005
"""Mean frame similarity that a video lacks against its copies the one way, not the other, from
which on it shows more than they do: captions, or a picture in its picture."""
SYMMETRIC = 1e-4
"""What is less than this lacks nothing either way: one vector a frame does not tell which of two
videos shows more."""
ALIKE = 0.85
"""Mean similarity of aligned frames below which pictures differ in more than their quality. 15
clips, SSCD: 0.92 or more where they are rescaled, halved, mirrored or have a logo, 0.84 or more for
nine of ten crops; 0.83 or less with captions, and 0.81 or less as a picture in a picture."""
LEAST_S = 4.0
"""Length from which on copies are told from what follows in the same scene. Pieces of 36 clips that
have no moment in common: of 180 pieces of 2 s, 5 would be moved as copies, of 108 of 3 s one."""
NOISY = 2.5
"""Grey levels of noise, of 255: clips as people share them have at most 1, and visible noise begins
at 4."""

NO_PREFERENCE = DuplicatesSettings()
GROUPS_PLACE = "duplicate_groups/groups.parquet"
GROUP_SCHEMA = pa.schema(
    [
        ("group", pa.string()),
        ("video_id", pa.string()),
        ("path", pa.string()),
        ("sha256", pa.string()),
        ("codec", pa.string()),
        ("reason", pa.string()),
        ("medoid", pa.bool_()),
        ("keep", pa.bool_()),
        ("probability", pa.float64()),
        ("duration_s", pa.float64()),
        ("num_bytes", pa.int64()),
        ("width_px", pa.int32()),
        ("height_px", pa.int32()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class DuplicatePair:
    """Two videos of the collection, first < second."""

    first: str
    second: str
    first_sha256: str
    """of the contents when they were compared"""
    second_sha256: str
    similarity: float
    probability: float
    first_covered: float
    """part of the first that the second shows, in [0, 1]"""
    second_covered: float
    first_start_s: float = 0.0
    """where the longest and surest common part begins"""
    second_start_s: float = 0.0
    frame_similarity: float
    """mean over the aligned frames of that part, in [-1, 1], where they have the same course; 0 of
    look-alikes"""
    asymmetry: float = 0.0
    """how much less of the first is in the second than the other way round, negative where the
    first shows more"""
    mark: str = ""
    """verdict of a person, "" if there is none"""

    @property
    def kind(self) -> Kind:
        """What the two are to each other, by the parts of them that the other one shows."""
        less, more = sorted((self.first_covered, self.second_covered))
        if more == 0 or (self.frame_similarity <= 0 and self.mark != "match"):
            return "same_incident"
        if less >= COVERED:
            return "copy"
        return "contained" if more >= COVERED else "overlap"

    @property
    def same_file(self) -> bool:
        return self.first_sha256 == self.second_sha256

    @property
    def verdict(self) -> Verdict | None:
        return verdict_of(self.probability, mark=self.mark, same_file=self.same_file)


PAIR_SCHEMA = pa.schema(
    [
        (field.name, pa.string() if field.type is str else pa.float64())
        for field in fields(DuplicatePair)
    ]
    + [("kind", pa.string())]
)


@dataclass(frozen=True, kw_only=True)
class GroupMember:
    """A video of a group of copies."""

    group: str
    """stable name, from the smallest digest of the members' contents"""
    video_id: str
    medoid: bool
    """whether all others were compared with it"""
    verdict: Verdict | None = None
    """of the pair with the medoid, None for the medoid"""
    keep: bool
    """whether it is the copy to keep, which comes first, or protected"""
    reason: str
    """why it is kept, or why not, in a sentence"""
    probability: float
    """that it matches the medoid"""
    metadata: VideoMetadata
    same_file_as: str = ""
    """where no copy is named to keep: the member of the same bytes to which a link may take the
    place of this one; "" for that one itself, and for protected ones"""
    stays: bool = False
    """whether it may be no worse than the copy to keep, so that a plan leaves it where it is"""


def best_of_each(pairs: Iterable[DuplicatePair]) -> list[DuplicatePair]:
    """Each pair once, where it is likeliest, in order of the ids."""
    best: dict[tuple[str, str], DuplicatePair] = {}
    for pair in sorted(pairs, key=lambda pair: (-pair.probability, -pair.similarity)):
        best.setdefault((pair.first, pair.second), pair)
    return [best[key] for key in sorted(best)]


@dataclass(frozen=True)
class _Links:
    """What pairs say of the videos."""

    near: Mapping[str, Mapping[str, DuplicatePair]]
    """of each video, the pairs that make others copies of it"""
    contained: Mapping[str, Collection[str]]
    """of each video, those that it holds whole"""
    edited: Collection[str]
    """videos that are noisy, or show more than their copies do"""

    def nearest(self, video_id: str) -> float:
        """The frame similarity of a video with the copy that is most similar to it."""
        return max(pair.frame_similarity for pair in self.near[video_id].values())


def group_copies(
    pairs: Sequence[DuplicatePair],
    metadata: Mapping[str, VideoMetadata],
    *,
    facts: Mapping[str, FileFacts] = MappingProxyType({}),
    settings: DuplicatesSettings = NO_PREFERENCE,
    apart: Callable[[str, str], bool] = lambda one, other: False,
) -> list[GroupMember]:
    """Groups of two or more videos, the largest first; pairs that are not copies are passed over.

    facts: SHA-256 -> what the file holds
    settings: by which `hapvr.search.keep` chooses the copy to keep
    apart: whether two videos must not come into one group, even if both are copies of its medoid

    Medoids are chosen greedily, edited videos last: the video that is a copy of most others that
    have no group yet, then the one of highest frame similarities, then of the smallest content
    digest. So the same pairs give the same groups in whatever order they come.
    """
    links = _links(pairs, metadata)
    free = set(links.near)
    members: list[GroupMember] = []

    def order(name: str) -> tuple[bool, int, float, str, str]:
        left = [pair.frame_similarity for copy, pair in links.near[name].items() if copy in free]
        return name in links.edited, -len(left), -sum(left), metadata[name].sha256, name

    waiting = [order(name) for name in free]
    heapify(waiting)
    while waiting:
        first = heappop(waiting)
        medoid = first[-1]
        if medoid not in free:
            continue
        now = order(medoid)
        if now != first:  # as others have left, it comes later
            heappush(waiting, now)
            continue

        copies = _copies_of(medoid, links, metadata, free, apart)
        free -= {medoid, *copies}
        if copies:
            with_medoid = {copy: links.near[medoid][copy] for copy in copies}
            members += _group(medoid, with_medoid, metadata, links, facts, settings)

    return members


def _links(pairs: Sequence[DuplicatePair], metadata: Mapping[str, VideoMetadata]) -> _Links:
    """What the pairs say of each video."""
    near: dict[str, dict[str, DuplicatePair]] = defaultdict(dict)
    contained: dict[str, set[str]] = defaultdict(set)
    for pair in pairs:
        if pair.kind == "copy":
            near[pair.first][pair.second] = pair
            near[pair.second][pair.first] = pair
        elif pair.kind == "contained" and pair.first_covered >= COVERED:
            contained[pair.second].add(pair.first)
        elif pair.kind == "contained":
            contained[pair.first].add(pair.second)

    edited = {
        name
        for name, copies in near.items()
        if metadata[name].noise >= NOISY or _shows_more(name, copies.values()) >= MORE
    }
    return _Links(near, contained, edited)


def _shows_more(name: str, pairs: Iterable[DuplicatePair]) -> float:
    """How much more a video shows than its copies, in the median."""
    return median(-pair.asymmetry if name == pair.first else pair.asymmetry for pair in pairs)


def _copies_of(
    medoid: str,
    links: _Links,
    metadata: Mapping[str, VideoMetadata],
    free: Collection[str],
    apart: Callable[[str, str], bool],
) -> list[str]:
    """The free videos that join the group of a medoid, the most similar ones first.

    One that is more similar to another video than to the medoid, and a copy of none of the group's,
    belongs to that one: a picture in a picture does not tie the copies of both together."""
    like = {name: pair.frame_similarity for name, pair in links.near[medoid].items()}
    candidates = [name for name in like if name in free]
    candidates.sort(key=lambda name: (-like[name], metadata[name].sha256, name))
    copies: list[str] = []
    for name in candidates:
        is_copy_of_group = not copies or not links.near[name].keys().isdisjoint(copies)
        belongs_elsewhere = not is_copy_of_group and links.nearest(name) > like[name]
        if not belongs_elsewhere and not any(apart(name, copy) for copy in copies):
            copies.append(name)

    return copies


def _group(
    medoid: str,
    pairs: Mapping[str, DuplicatePair],
    metadata: Mapping[str, VideoMetadata],
    links: _Links,
    facts: Mapping[str, FileFacts],
    settings: DuplicatesSettings,
) -> list[GroupMember]:
    """The members of a group, of its medoid and each copy's pair with it; the copy to keep comes
    first, then protected ones."""
    ids = [medoid, *pairs]
    longest_s = _longest_s([facts.get(metadata[video_id].sha256) for video_id in ids])
    copies: list[Copy] = []
    for video_id in ids:
        file = metadata[video_id]
        copy = Copy(
            video_id=video_id,
            metadata=file,
            facts=facts.get(file.sha256),
            spoilt=_fault_of(video_id, ids, links),
        )
        if video_id in pairs:
            copy = replace(copy, doubt=_doubt_of(pairs[video_id], longest_s, copies[0], copy))
        copies.append(copy)

    choice = choose(copies, settings)
    same_file_as = _stand_ins(copies, settings)
    group = min(metadata[video_id].sha256 for video_id in ids)[:12]
    members = []
    for video_id in ids:
        pair = pairs.get(video_id)
        is_kept, reason = _decision_on(video_id, choice, settings)
        members.append(
            GroupMember(
                group=group,
                video_id=video_id,
                medoid=pair is None,
                verdict=None if pair is None else pair.verdict,
                keep=is_kept,
                reason=reason,
                probability=1.0 if pair is None else pair.probability,
                metadata=metadata[video_id],
                same_file_as=same_file_as.get(video_id, ""),
                stays=video_id in choice.staying and not is_kept,
            )
        )

    members.sort(key=lambda copy: (copy.video_id != choice.named, not copy.keep, copy.video_id))
    return members


def _decision_on(video_id: str, choice: Choice, settings: DuplicatesSettings) -> tuple[bool, str]:
    """Whether a member is kept, and why."""
    reason = choice.reasons[video_id]
    if choice.named is None:
        return False, reason
    if video_id == choice.named:
        return True, reason
    if is_protected(video_id, settings):
        return True, f"Kept: it is protected. {reason}"
    return False, reason


def _fault_of(video_id: str, group: Collection[str], links: _Links) -> str:
    """What a member of a group shows more than the others: MIXED, EDITED or "" for nothing."""
    if not set(links.contained.get(video_id, ())).isdisjoint(group):
        return MIXED
    return EDITED if video_id in links.edited else ""


def _longest_s(facts: Sequence[FileFacts | None]) -> float:
    """The length of the longest of some files; infinite where one was not measured."""
    return max(inf if file is None else file.length_s for file in facts)


def _doubt_of(pair: DuplicatePair, longest_s: float, medoid: Copy, copy: Copy) -> Doubt | None:
    """Why a member of a group may be no worse than others, by its pair with the medoid; None where
    it is like that, where it is known which of the two shows more, and where people have marked
    them as a match.

    longest_s: length of the longest member
    """
    if pair.verdict != "match":
        return UNSURE
    if longest_s < LEAST_S and not pair.same_file and not pair.mark:
        return SHORT
    is_like_medoid = pair.same_file or pair.frame_similarity >= ALIKE
    if is_like_medoid or pair.mark or abs(pair.asymmetry) >= SYMMETRIC:
        return None
    # a network takes a very poor copy for another picture, too
    return None if surely_look_alike(medoid, copy) else DIFFERENT


def _stand_ins(copies: Sequence[Copy], settings: DuplicatesSettings) -> dict[str, str]:
    """Id -> the member of the same bytes to which a link may take its place."""
    contents = one_of_each_content(copies, settings)
    first_of = {copy.metadata.sha256: copy.video_id for copy in contents}
    stand_ins = {}
    for copy in copies:
        first = first_of[copy.metadata.sha256]
        if first != copy.video_id and not is_protected(copy.video_id, settings):
            stand_ins[copy.video_id] = first

    return stand_ins


def pair_table(pairs: Iterable[DuplicatePair]) -> pa.Table:
    """A row per pair, with its kind."""
    return pa.Table.from_pylist(
        [asdict(pair) | {"kind": pair.kind} for pair in pairs], schema=PAIR_SCHEMA
    )


def group_rows(members: Iterable[GroupMember]) -> pa.Table:
    """A row per member, with the metadata of its file."""
    rows = [vars(one) | vars(one.metadata) | {"path": one.metadata.path_text} for one in members]
    return pa.Table.from_pylist(rows, schema=GROUP_SCHEMA)
