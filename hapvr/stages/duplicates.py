"""Stages 13 and 14: pairs of videos that share footage, shard by shard, and groups of copies.

duplicate_pairs/<shard>/rows.parquet     pairs of the shard's videos with all others (asset `duplicate_pairs`)
duplicate_groups/marked.parquet          pairs that people marked as a match and that no search found
duplicate_groups/groups.parquet          groups of copies over all pairs (asset `duplicate_groups`)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product

import pyarrow as pa

from hapvr.errors import DamagedError, DataError
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance
from hapvr.search.current import CURRENT, CurrentIndex, current_index
from hapvr.search.duplicate_tables import (
    StoredPairs,
    groups_fingerprint,
    pair_rows,
    read_pairs,
    write_groups,
    write_pairs,
)
from hapvr.search.duplicates import DuplicatePair, GroupMember, best_of_each, group_copies
from hapvr.search.engine import Found
from hapvr.search.fine import FORMAT as SCORES_FORMAT
from hapvr.search.marks import Marks, read_marks
from hapvr.search.match import coverage
from hapvr.stages.project import Project
from hapvr.stages.searcher import Searcher
from hapvr.storage.features import STAGE as FEATURES_STAGE
from hapvr.storage.filesystem import DataRoot

PAIRS_STAGE = "duplicate_pairs"
MARKED_PLACE = "duplicate_groups/marked.parquet"
GROUPS_PLACE = "duplicate_groups/groups.parquet"
LEAST_PROBABILITY = 0.5
"""Pairs below it are not stored, so a threshold above it can be changed without searching again."""

UNCALIBRATED = "the model has no calibration, so it does not say how sure it is"


@dataclass(frozen=True)
class ShardPairs:
    """pairs: of one shard's videos with all others. place: of their file. done: False if they were there already."""

    key: str
    pairs: tuple[DuplicatePair, ...]
    place: str
    done: bool


@dataclass(frozen=True)
class OutdatedDuplicates:
    """What is to be done after a change of the collection, the model, the settings or the marks.

    uncompared: shards of the index whose videos have to be searched for, each with a digest of what asks for it, which is
    another one if a champion comes back. groups: a digest of what they have to be made from, if those that are there were
    made from something else; else "".
    """

    uncompared: dict[str, str]
    groups: str


def make_duplicate_pairs(
    project: Project, searcher: Searcher, key: str, *, progress: Progress = no_progress
) -> ShardPairs:
    """Look for every video of a shard in the whole collection; a shard that is unchanged is left alone.

    A pair of two shards is found by the one that is searched later, so new shards need no other one to be searched again,
    and a shard that was made again is searched alone. Raises DataError for a shard that is not in the index, and for a
    model without calibration.
    """
    calibration = searcher.scorer.calibration
    if calibration is None:
        raise DataError(f"duplicates: {UNCALIBRATED}; register one that was evaluated on a validation benchmark")
    if key not in searcher.indexed:
        raise DataError(f"duplicates: shard {key} is not in the index; run `hapvr index update` first")
    wanted = _fingerprint(project, searcher.current, key, searcher.indexed[key])
    place, video_ids = _place(key), searcher.videos_of(key)
    if finished := _finished(project.root, key, wanted):  # a data root that is only read has no locks
        return finished
    with project.root.lock(f"{PAIRS_STAGE}/{key}"):
        if finished := _finished(project.root, key, wanted):  # another process has made them meanwhile
            return finished
        pairs: list[DuplicatePair] = []
        for number, video_id in enumerate(video_ids):
            progress(number, len(video_ids))
            for one in searcher.find_copies(video_id, least_probability=LEAST_PROBABILITY):
                pairs.append(_pair(video_id, one, calibration.probability(one.score.similarity), searcher))
        progress(len(video_ids), len(video_ids))
        made = StoredPairs(tuple(best_of_each(pairs)), wanted, searcher.current.digest)
        write_pairs(project.root, place, made)
    return ShardPairs(key, made.pairs, place, done=True)


def duplicate_pairs(
    project: Project, searcher: Searcher, *, min_probability: float, rejected: bool = False
) -> list[DuplicatePair]:
    """All stored pairs of the model that answers searches, and files of the same bytes; marks of people come first.

    Left out are videos that the index has no more or whose file is another one now. A pair that is marked as no match is
    left out, or with `rejected` kept with its mark. One that is marked as a match stays, whatever its probability; where no
    search found it, `make_duplicate_groups` adds it.
    """
    marks = read_marks(project.root)
    contents = _contents(searcher)
    stored: list[DuplicatePair] = []
    for place in (*map(_place, project.root.list_folders(PAIRS_STAGE)), MARKED_PLACE):
        found = read_pairs(project.root, place)
        if found is not None and found.network == searcher.current.digest:
            stored += found.pairs
    known = [pair for pair in stored if _is_current(pair, contents)]
    marked = _marked(best_of_each([*known, *_equal_files(contents)]), marks)
    marked = [pair for pair in marked if rejected or pair.mark != "not_a_match"]
    return [pair for pair in marked if pair.mark == "match" or pair.probability >= min_probability]


def make_duplicate_groups(project: Project, searcher: Searcher, *, min_probability: float) -> list[GroupMember]:
    """Groups of copies over all pairs, written to `duplicate_groups/groups.parquet`. No file is touched.

    Pairs that people marked as a match and that no search found are compared first. Two videos that are marked as no match
    come into no group together.
    """
    root = project.root
    wanted = _groups_fingerprint(project, searcher.current, searcher.indexed, min_probability)
    if _stored_groups(root) == wanted and _marked_are_compared(project, searcher):
        return _groups(project, searcher, min_probability)
    with root.lock("duplicate_groups"):
        wanted = _groups_fingerprint(project, searcher.current, searcher.indexed, min_probability)
        _compare_marked(project, searcher)
        members = _groups(project, searcher, min_probability)
        write_groups(root, GROUPS_PLACE, members, fingerprint=wanted)
    return members


def outdated_duplicates(project: Project) -> OutdatedDuplicates:
    """Compare pairs and groups with the index, without opening the model. Nothing is outdated where there is no index."""
    root = project.root
    if not root.exists(CURRENT):
        return OutdatedDuplicates({}, "")
    current = current_index(root)
    shards = current.open(root, project.config.search).status().shards
    indexed = {key: entry.digest for key, entry in shards.items()}
    wanted = {key: _fingerprint(project, current, key, digest) for key, digest in indexed.items()}
    uncompared = {
        key: _digest([one, current.since]) for key, one in wanted.items() if _known_fingerprint(root, key) != one
    }
    groups = _groups_fingerprint(project, current, indexed, project.config.search.duplicates.min_probability)
    return OutdatedDuplicates(uncompared, "" if _stored_groups(root) == groups else groups)


def pair_table(pairs: Iterable[DuplicatePair]) -> pa.Table:
    """A row per pair, with its kind."""
    pairs = list(pairs)
    return pair_rows(pairs).append_column("kind", pa.array([pair.kind for pair in pairs], pa.string()))


def _groups(project: Project, searcher: Searcher, min_probability: float) -> list[GroupMember]:
    """The groups over the pairs that are stored."""
    pairs = duplicate_pairs(project, searcher, min_probability=min_probability)
    facts = {video_id: searcher.facts.of(video_id) for pair in pairs for video_id in (pair.first, pair.second)}
    marks = read_marks(project.root)
    return group_copies(
        pairs,
        facts,
        apart=lambda one, other: marks.verdict(facts[one].sha256, facts[other].sha256) == "not_a_match",
    )


def _finished(root: DataRoot, key: str, fingerprint: str) -> ShardPairs | None:
    """The stored pairs of a shard if they are what is wanted."""
    stored = _undamaged(root, _place(key))
    if stored is None or stored.fingerprint != fingerprint:
        return None
    return ShardPairs(key, stored.pairs, _place(key), done=False)


def _place(key: str) -> str:
    return f"{PAIRS_STAGE}/{key}/rows.parquet"


def _undamaged(root: DataRoot, place: str) -> StoredPairs | None:
    try:
        return read_pairs(root, place)
    except DamagedError:  # for the stage that makes it, as if it were not there
        return None


def _known_fingerprint(root: DataRoot, key: str) -> str:
    stored = _undamaged(root, _place(key))
    return "" if stored is None else stored.fingerprint


def _fingerprint(project: Project, current: CurrentIndex, key: str, indexed: str) -> str:
    """Changes where the pairs of a shard may change: model, features, descriptors, settings and way of searches.

    Not with the other shards: what they have in common with this one is found when they are searched.
    """
    left_out = {"index", "keep_models", "duplicates"}
    settings = project.config.search.model_dump(mode="json", exclude=left_out)
    inputs = {"features": project.shard(FEATURES_STAGE, key).digest(), "descriptors": indexed}
    model = {"network": current.digest, "model": current.model, "scores": SCORES_FORMAT}
    return Provenance(PAIRS_STAGE, {**model, **settings}, inputs).fingerprint


def _groups_fingerprint(
    project: Project, current: CurrentIndex, indexed: Mapping[str, str], min_probability: float
) -> str:
    """Changes where groups may change: pairs, marks, the threshold, the shards of the index."""
    root = project.root
    keys = {key: _known_fingerprint(root, key) for key in root.list_folders(PAIRS_STAGE)}
    marks = [[mark.first, mark.second, mark.verdict] for mark in read_marks(root).rows()]
    state = [current.digest, dict(indexed), keys, sorted(marks), min_probability]
    return _digest(state)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _stored_groups(root: DataRoot) -> str:
    try:
        return groups_fingerprint(root, GROUPS_PLACE)
    except DamagedError:  # they are made again
        return ""


def _compare_marked(project: Project, searcher: Searcher) -> None:
    """Compare the pairs that are marked as a match and in no shard's pairs; what was compared before is kept."""
    calibration = searcher.scorer.calibration
    if calibration is None:
        return
    before = _undamaged(project.root, MARKED_PLACE)
    if before is None:
        project.root.delete(MARKED_PLACE)
    contents, network = _contents(searcher), searcher.current.digest
    known = {(pair.first, pair.second): pair for pair in before.pairs} if before and before.network == network else {}
    found = {
        (pair.first, pair.second) for pair in duplicate_pairs(project, searcher, min_probability=LEAST_PROBABILITY)
    }
    made = []
    for first, second in _marked_ids(read_marks(project.root), contents):
        if (first, second) in known and _is_current(known[first, second], contents):
            made.append(known[first, second])
        elif (first, second) not in found:
            one = searcher.compare(first, second)
            made.append(_pair(first, one, calibration.probability(one.score.similarity), searcher))
    if made or before is not None:
        write_pairs(project.root, MARKED_PLACE, StoredPairs(tuple(made), "", network))


def _marked_are_compared(project: Project, searcher: Searcher) -> bool:
    """Whether every pair that is marked as a match is stored, by its shards or by `_compare_marked`."""
    try:
        pairs = duplicate_pairs(project, searcher, min_probability=LEAST_PROBABILITY)
    except DamagedError:
        return False
    stored = {(pair.first, pair.second) for pair in pairs}
    return all(ids in stored for ids in _marked_ids(read_marks(project.root), _contents(searcher)))


def _marked_ids(marks: Marks, contents: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Pairs of ids, in order, of the contents that are marked as a match."""
    ids = _ids_of(contents)
    for mark in marks.rows():
        if mark.verdict == "match":
            for one, other in product(ids.get(mark.first, ()), ids.get(mark.second, ())):
                yield min(one, other), max(one, other)


def _contents(searcher: Searcher) -> dict[str, str]:
    """Video id -> SHA-256, of all that can be found."""
    return {video_id: searcher.facts.of(video_id).sha256 for video_id in searcher.video_ids()}


def _ids_of(contents: Mapping[str, str]) -> dict[str, list[str]]:
    """SHA-256 -> the videos of that content."""
    found: dict[str, list[str]] = {}
    for video_id, sha256 in contents.items():
        found.setdefault(sha256, []).append(video_id)
    return found


def _is_current(pair: DuplicatePair, contents: Mapping[str, str]) -> bool:
    """Whether both videos are there, with the files that were compared."""
    return contents.get(pair.first) == pair.first_sha256 and contents.get(pair.second) == pair.second_sha256


def _pair(query: str, found: Found, probability: float, searcher: Searcher) -> DuplicatePair:
    segments = found.segments or ()
    covered = coverage(segments, query_s=searcher.seconds_of(query), reference_s=found.score.seconds)
    starts = (segments[0].query_start_s, segments[0].reference_start_s) if segments else (0.0, 0.0)
    other = found.score.video_id
    if other < query:
        covered, starts = covered[::-1], starts[::-1]
    first, second = min(query, other), max(query, other)
    return DuplicatePair(
        first=first,
        second=second,
        first_sha256=searcher.facts.of(first).sha256,
        second_sha256=searcher.facts.of(second).sha256,
        similarity=found.score.similarity,
        probability=probability,
        first_covered=covered[0],
        second_covered=covered[1],
        first_start_s=starts[0],
        second_start_s=starts[1],
    )


def _equal_files(contents: Mapping[str, str]) -> Iterator[DuplicatePair]:
    """Files of the same bytes, which need no model."""
    for sha256, ids in _ids_of(contents).items():
        for first, second in combinations(sorted(ids), 2):
            yield DuplicatePair(
                first=first,
                second=second,
                first_sha256=sha256,
                second_sha256=sha256,
                similarity=1.0,
                probability=1.0,
                first_covered=1.0,
                second_covered=1.0,
                first_start_s=0.0,
                second_start_s=0.0,
            )


def _marked(pairs: Iterable[DuplicatePair], marks: Marks) -> list[DuplicatePair]:
    said = [(pair, marks.verdict(pair.first_sha256, pair.second_sha256)) for pair in pairs]
    return [pair if verdict is None else replace(pair, mark=verdict) for pair, verdict in said]
