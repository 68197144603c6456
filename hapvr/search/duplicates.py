"""Pairs of videos that share footage, what kind of pair they are, and groups of copies, also as
Parquet files; what could be done about groups, as a plan for people to review.

Groups are stars: every member is a copy of its group's medoid, so that no chain of look-alikes ties
strangers together.
"""

import shlex
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from heapq import heapify, heappop, heappush
from pathlib import Path
from statistics import median
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hapvr.data.filesystem import DataRoot, read_schema_metadata
from hapvr.errors import DamagedError
from hapvr.files import write_atomic
from hapvr.scorer.calibration import Verdict
from hapvr.search.collection import VideoMetadata
from hapvr.search.match import verdict_of
from hapvr.tables import export_table, read_table, write_table

Kind = Literal["copy", "contained", "overlap", "same_incident"]
KINDS: tuple[str, ...] = get_args(Kind)
COVERED = 0.8
"""Part of a video that must be covered for it to count as shown whole by the other."""
MIN_AGREEMENT = 0.6
"""Correlation from which on two videos have the same course, not only the same look, see
`same_course`."""
MIN_COURSE_FRAMES = 4
"""Fewer frames have no course; then the same picture is asked for, NEAR_IDENTICAL."""
NEAR_IDENTICAL = 0.85
MORE = 0.005
"""Mean frame similarity that a video lacks against its copies the one way, not the other, from
which on it shows more than they do: captions, or a picture in its picture."""
NOISY = 2.5
"""Grey levels of noise, of 255: clips as people share them have at most 1, and visible noise begins
at 4."""

GROUPS_PLACE = "duplicate_groups/groups.parquet"
_TEXTS = ("group", "video_id", "path", "sha256", "codec", "reason")
GROUP_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in _TEXTS),
        *((name, pa.bool_()) for name in ("medoid", "keep")),
        *((name, pa.float64()) for name in ("probability", "duration_s")),
        ("num_bytes", pa.int64()),
        *((name, pa.int32()) for name in ("width_px", "height_px")),
    ]
)


@dataclass(frozen=True, kw_only=True)
class DuplicatePair:
    """Two videos of the collection, first < second. sha256: of their contents when they were
    compared. covered: parts of each that the other shows, in [0, 1]. starts_s: where the longest
    and surest common part begins in each. frame_similarity: mean over the aligned frames of that
    part, in [-1, 1], where they have the same course; 0 of look-alikes. asymmetry: how much less of
    the first is in the second than the other way round, negative where the first shows more. mark:
    what somebody said of them, "" if nothing."""

    first: str
    second: str
    first_sha256: str
    second_sha256: str
    similarity: float
    probability: float
    first_covered: float
    second_covered: float
    first_start_s: float = 0.0
    second_start_s: float = 0.0
    frame_similarity: float
    asymmetry: float = 0.0
    mark: str = ""

    @property
    def kind(self) -> Kind:
        """What the two are to each other, by the parts of them that the other one shows."""
        less, more = sorted((self.first_covered, self.second_covered))
        if more == 0 or (self.frame_similarity <= 0 and self.mark != "match"):
            return "same_incident"
        return "copy" if less >= COVERED else "contained" if more >= COVERED else "overlap"

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
    """A video of a group of copies. group: stable name, from the smallest digest of the members'
    contents. medoid: whether all others were compared with it. keep: whether it is the copy to
    keep, and reason: why, or why not, in a sentence. probability: that it matches the medoid;
    verdict: of that pair, None for the medoid."""

    group: str
    video_id: str
    medoid: bool
    verdict: Verdict | None = None
    keep: bool
    reason: str
    probability: float
    metadata: VideoMetadata


def same_course(cross: NDArray[np.float64], own: NDArray[np.float64]) -> bool:
    """Whether aligned frames are of the same footage, by their similarities [N, N] with each other
    and, on average, among themselves, whose correlation is Mantel's (1967) between two distance
    matrices.

    A copy, whatever was done to its pictures, is like its original where that is like itself; two
    takes of one scene always look alike."""
    diagonal = float(np.diag(cross).mean())
    if (
        len(cross) < MIN_COURSE_FRAMES
        or diagonal >= NEAR_IDENTICAL
        or min(cross.std(), own.std()) < 1e-6
    ):
        return diagonal >= NEAR_IDENTICAL
    return float(np.corrcoef(cross.ravel(), own.ravel())[0, 1]) >= MIN_AGREEMENT


def best_of_each(pairs: Iterable[DuplicatePair]) -> list[DuplicatePair]:
    """Each pair once, where it is likeliest, in order of the ids."""
    best: dict[tuple[str, str], DuplicatePair] = {}
    for pair in sorted(pairs, key=lambda pair: (-pair.probability, -pair.similarity)):
        best.setdefault((pair.first, pair.second), pair)
    return [best[key] for key in sorted(best)]


def group_copies(
    pairs: Sequence[DuplicatePair],
    metadata: Mapping[str, VideoMetadata],
    *,
    apart: Callable[[str, str], bool] = lambda one, other: False,
) -> list[GroupMember]:
    """Groups of two or more videos, the largest first; pairs that are not copies are passed over.

    apart: whether two videos must not come into one group, even if both are copies of its medoid.
    The copy to keep is the one of the most pixels without black bars, then of the highest bit rate,
    then of the first path; one that is edited (it is noisy, or shows more than its copies), or
    contains another member, is not kept while there is one that is not.

    Medoids are chosen greedily, edited videos last: the video that is a copy of most others that
    have no group yet, then the one of highest frame similarities, then of the smallest content
    digest. So the same pairs give the same groups in whatever order they come.
    """
    near: dict[str, dict[str, DuplicatePair]] = defaultdict(dict)
    contained: dict[str, set[str]] = defaultdict(set)
    for pair in pairs:
        if pair.kind == "copy":
            near[pair.first][pair.second] = near[pair.second][pair.first] = pair
        elif pair.kind == "contained":
            inside, around = (
                (pair.first, pair.second)
                if pair.first_covered >= COVERED
                else (pair.second, pair.first)
            )
            contained[around].add(inside)

    more = {
        one: median(
            -pair.asymmetry if one == pair.first else pair.asymmetry for pair in near[one].values()
        )
        for one in near
    }
    edited = {one for one in near if metadata[one].noise >= NOISY or more[one] >= MORE}
    free, members = set(near), list[GroupMember]()

    def order(one: str) -> tuple[bool, int, float, str, str]:
        left = [pair.frame_similarity for other, pair in near[one].items() if other in free]
        return one in edited, -len(left), -sum(left), metadata[one].sha256, one

    waiting = [order(one) for one in free]
    heapify(waiting)
    while waiting:
        first = heappop(waiting)
        medoid = first[-1]
        if (
            medoid in free and (now := order(medoid)) != first
        ):  # as others have left, it comes later
            heappush(waiting, now)
        if medoid not in free or now != first:
            continue
        like = {other: pair.frame_similarity for other, pair in near[medoid].items()}
        copies: list[str] = []
        for one in sorted(
            like.keys() & free, key=lambda one: (-like[one], metadata[one].sha256, one)
        ):
            # One that is more similar to another video than to the medoid, and a copy of none of
            # the group's, belongs to that one: a picture in a picture does not tie the copies of
            # both together.
            nearest = max(pair.frame_similarity for pair in near[one].values())
            elsewhere = copies and near[one].keys().isdisjoint(copies) and nearest > like[one]
            if not elsewhere and not any(apart(one, other) for other in copies):
                copies.append(one)
        free -= {medoid, *copies}
        if copies:
            members += _group(
                medoid, {one: near[medoid][one] for one in copies}, metadata, contained, edited
            )
    return members


def _group(
    medoid: str,
    pairs: Mapping[str, DuplicatePair],
    metadata: Mapping[str, VideoMetadata],
    contained: Mapping[str, set[str]],
    edited: Collection[str],
) -> list[GroupMember]:
    """The members of a group, of its medoid and each copy's pair with it; the copy to keep comes
    first."""
    ids = {medoid, *pairs}
    name = min(metadata[one].sha256 for one in ids)[:12]
    spoilt = {one: EDITED if one in edited else "" for one in ids}
    spoilt |= {one: MIXED for one in ids if not contained.get(one, set()).isdisjoint(ids)}
    best, *others = sorted(ids, key=lambda one: (spoilt[one] != "", *_quality(metadata[one]), one))
    better, worse = (
        _facts(metadata[best]),
        {one: "" if spoilt[best] else spoilt[one] for one in others},
    )
    reasons = {
        one: why or LATER.format(_facts(metadata[one]), better) for one, why in worse.items()
    }
    reasons[best] = PURE if worse[others[0]] else FIRST.format(better)
    return [
        GroupMember(
            group=name,
            video_id=one,
            medoid=one == medoid,
            verdict=None if one == medoid else pairs[one].verdict,
            keep=one == best,
            reason=reasons[one],
            probability=1.0 if one == medoid else pairs[one].probability,
            metadata=metadata[one],
        )
        for one in (best, *others)
    ]


MIXED = "It shows more than the copies have in common: another one is contained in it."
EDITED = (
    "It is noisy, or shows more than the copies have in common, such as text or a "
    "picture in the picture."
)
PURE = "It shows only what the copies have in common."
FIRST = "It comes first by pixels without black bars, then bit rate, then path: {}."
LATER = (
    "It comes after the copy to keep by pixels without black bars, then bit rate, then "
    "path: {} against {}."
)


def _quality(metadata: VideoMetadata) -> tuple[int, float, str]:
    """Lowest for the copy to keep: by most pixels without black bars, highest bit rate (bytes where
    the duration is not known), path."""
    width, height = metadata.content_px
    rate = metadata.num_bytes / (metadata.duration_s or 1)
    return -width * height, -rate, metadata.path_text or ""


def _facts(file: VideoMetadata) -> str:
    width, height = file.content_px
    return f"{width} x {height} pixels, {8e-3 * file.num_bytes / (file.duration_s or 1):.0f} kbit/s"


def pair_table(pairs: Iterable[DuplicatePair]) -> pa.Table:
    """A row per pair, with its kind."""
    return pa.Table.from_pylist(
        [asdict(pair) | {"kind": pair.kind} for pair in pairs], schema=PAIR_SCHEMA
    )


def group_rows(members: Iterable[GroupMember]) -> pa.Table:
    """A row per member, with the metadata of its file."""
    rows = [vars(one) | vars(one.metadata) | {"path": one.metadata.path_text} for one in members]
    return pa.Table.from_pylist(rows, schema=GROUP_SCHEMA)


def write_rows(root: DataRoot, place: str, table: pa.Table, **stamps: str) -> None:
    """Replace the file at `place`, whole. stamps: what to keep with the rows. Raises DataError
    where it cannot be written."""
    with root.write(place) as stream:
        write_table(
            table.replace_schema_metadata({f"hapvr.{name}": text for name, text in stamps.items()}),
            stream,
        )


def read_rows(root: DataRoot, place: str, schema: pa.Schema, *, damaged: bool = False) -> pa.Table:
    """The columns of `schema` that `write_rows` wrote; no rows and no stamps where nothing is.
    damaged: a file that cannot be read is as if it were not there, for the step that makes it; else
    it raises DamagedError."""
    if not root.exists(place):
        return schema.empty_table()
    hint = f"`hapvr run {place.partition('/')[0]}` makes it again"
    try:
        with root.open(place) as file, root.corruption_errors(place, hint=hint):
            table = read_table(pa.BufferReader(file.read()))
            return table.select(schema.names).cast(schema.with_metadata(table.schema.metadata))
    except DamagedError:
        if damaged:
            return schema.empty_table()
        raise


def stamp(table: pa.Table, name: str = "fingerprint") -> str:
    """What `write_rows` kept with the rows; empty where it kept nothing."""
    return read_schema_metadata(table.schema, f"hapvr.{name}".encode())


PLAN_SUFFIXES = (".json", ".csv", ".sh")
PLAN_TEXTS = ("group", "action", "video_id", "path", "sha256", "keep_path", "keep_sha256", "reason")
PLAN_SCHEMA = pa.schema([*((name, pa.string()) for name in PLAN_TEXTS), ("num_bytes", pa.int64())])
SCRIPT = Path(__file__).with_name("plan.sh")
"""Beginning of a plan as a script, before its calls of `link` and `move`."""


def write_plan(place: Path, members: Sequence[GroupMember]) -> None:
    """Write the plan of these groups, whole. place: ends in one of PLAN_SUFFIXES. A row per member
    that has a file. action: keep; link, for a file of the same bytes; move, for another copy; look,
    in groups in which none is named to keep."""
    kept = {
        member.group: member.metadata
        for member in members
        if member.keep and member.metadata.path is not None
    }
    rows, lines = [], [SCRIPT.read_text(encoding="utf-8")]
    for member in members:
        file, best = member.metadata, kept.get(member.group)
        if file.path is None:
            continue
        action = (
            "look"
            if best is None
            else "keep"
            if member.keep
            else "link"
            if file.sha256 == best.sha256
            else "move"
        )
        if best is not None and action in ("link", "move"):
            both = [
                str(part) for one in (best, file) for part in (one.path, one.num_bytes, one.sha256)
            ]
            lines.append(f"{action} {shlex.join(both)}\n")
        row = vars(member) | vars(file) | {"action": action, "path": file.path_text}
        rows.append(
            row | ({"keep_path": best.path_text, "keep_sha256": best.sha256} if best else {})
        )
    with write_atomic(place) as part:
        if place.suffix.lower() == ".sh":
            part.write_text(
                "".join([*lines, "exit $failed\n"]), encoding="utf-8", errors="surrogateescape"
            )
        else:
            export_table(pa.Table.from_pylist(rows, schema=PLAN_SCHEMA), part, place.suffix.lower())
