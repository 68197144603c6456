"""Step 14: groups of copies over all pairs, and which copy to keep (asset `duplicate_groups`).

duplicate_groups/groups.parquet          a row per member
"""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from hapvr.data.stamped import read_rows, stamp, write_rows
from hapvr.files import digest_of
from hapvr.progress import Progress, no_progress
from hapvr.search.collection import VideoMetadata
from hapvr.search.current import CURRENT, CurrentIndex, current_index
from hapvr.search.duplicates import (
    GROUP_SCHEMA,
    GROUPS_PLACE,
    PAIR_SCHEMA,
    DuplicatePair,
    GroupMember,
    group_copies,
    group_rows,
)
from hapvr.search.keep import not_named
from hapvr.search.marks import read_marks
from hapvr.steps.copy_measures import (
    facts_by_content,
    has_unmeasured_copies,
    measure_copies,
    read_measures,
    with_pictures,
)
from hapvr.steps.duplicate_pairs import PAIRS_STAGE, duplicate_pairs, without_forgotten
from hapvr.steps.pair_search import LEAST_PROBABILITY
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher
from hapvr.steps.shard_rows import rows_place
from hapvr.video.facts import MEASURE_VERSION

KEEP_VERSION = 15
"""Changes with the rule that chooses the copy to keep."""
GROUPS_LOCK = "duplicate_groups"
"""Held by whoever writes groups, or what was measured of copies."""
RANDOM_WEIGHTS = not_named("the model has random weights")
AWAY = not_named("the file of the best copy is not there")


def make_duplicate_groups(
    project: Project, searcher: Searcher, *, progress: Progress = no_progress
) -> list[GroupMember]:
    """Groups of copies over all pairs that are likely enough, written to
    `duplicate_groups/groups.parquet`. No file is touched. Two videos that are marked as no match
    come into no group together."""
    root = project.root
    fingerprint = _groups_fingerprint(project, searcher.current, searcher.indexed)
    pairs = duplicate_pairs(project, searcher, min_probability=LEAST_PROBABILITY)
    least = project.config.search.min_duplicate_probability
    likely = [pair for pair in pairs if pair.mark or pair.probability >= least]

    stored = read_rows(root, GROUPS_PLACE, GROUP_SCHEMA, damaged=True)
    if stamp(stored) == fingerprint and not has_unmeasured_copies(searcher, likely):
        return copy_groups(searcher, likely)
    if not root.is_writable():
        warnings.warn(f"duplicates: the groups are not kept, as {root.url} may only be read")
        return copy_groups(searcher, likely)

    with root.lock(GROUPS_LOCK):
        pairs = without_forgotten(searcher, pairs)
        likely = without_forgotten(searcher, likely)
        measure_copies(project, searcher, pairs, progress)
        members = copy_groups(searcher, likely)
        copies = 2 * sum(pair.probability for pair in pairs) / max(searcher.num_videos, 1)
        table = group_rows(members)
        write_rows(root, GROUPS_PLACE, table, fingerprint=fingerprint, copies=str(copies))

    return members


def outdated_groups(project: Project) -> str:
    """Digest of what the groups have to be made from; "" if they were, and where there is no
    index."""
    root = project.root
    if not root.exists(CURRENT):
        return ""
    current = current_index(root)
    fingerprint = _groups_fingerprint(project, current, current.shards(root))
    stored = read_rows(root, GROUPS_PLACE, GROUP_SCHEMA, damaged=True)
    return "" if stamp(stored) == fingerprint else fingerprint


def copy_groups(searcher: Searcher, pairs: Sequence[DuplicatePair]) -> list[GroupMember]:
    """Groups of copies over some pairs. No copy is named to keep where the best is offline, nor by
    a model with random weights, except among files of the same bytes."""
    root = searcher.project.root
    marks = read_marks(root)
    measures = read_measures(root)
    metadata: dict[str, VideoMetadata] = {}
    for pair in pairs:
        for video_id in (pair.first, pair.second):
            file = searcher.collection.metadata.of(video_id)
            metadata[video_id] = with_pictures(file, measures.get(file.sha256))

    def apart(first: str, second: str) -> bool:
        verdict = marks.verdict(metadata[first].sha256, metadata[second].sha256)
        return verdict == "not_a_match"

    members = group_copies(
        pairs,
        metadata,
        facts=facts_by_content(measures),
        settings=searcher.project.config.duplicates,
        apart=apart,
    )
    doubts = _doubts(members, has_random_weights=bool(searcher.scorer.warning))
    return [_with_doubt(member, doubts.get(member.group, "")) for member in members]


def _with_doubt(member: GroupMember, doubt: str) -> GroupMember:
    """A member of a group of which no copy is named to keep; "": there is no doubt."""
    if not doubt:
        return member
    return replace(member, keep=False, stays=False, reason=doubt)


def _doubts(members: Sequence[GroupMember], *, has_random_weights: bool) -> dict[str, str]:
    """Group -> why none of its copies is named to keep, whatever its files are like."""
    doubts: dict[str, str] = {}
    for group, in_group in groupby(members, key=lambda member: member.group):
        copies = list(in_group)
        if _is_best_away(copies[0]):
            doubts[group] = AWAY
        if has_random_weights and _has_several_contents(copies):
            doubts[group] = RANDOM_WEIGHTS

    return doubts


def _is_best_away(best: GroupMember) -> bool:
    """Whether the file of the copy to keep is not there."""
    path = best.metadata.path
    return best.keep and path is not None and not os.path.exists(path)


def _has_several_contents(copies: Sequence[GroupMember]) -> bool:
    return len({copy.metadata.sha256 for copy in copies}) > 1


def _groups_fingerprint(project: Project, current: CurrentIndex, indexed: Mapping[str, str]) -> str:
    """Changes where groups may change: pairs, marks, settings, the shards of the index."""
    root = project.root
    pairs: dict[str, str] = {}
    for key in root.list_folders(PAIRS_STAGE):
        place = rows_place(PAIRS_STAGE, key)
        pairs[key] = stamp(read_rows(root, place, PAIR_SCHEMA, damaged=True))

    settings = [
        project.config.search.min_duplicate_probability,
        project.config.duplicates.model_dump(mode="json"),
    ]
    verdicts = read_marks(root).verdicts()
    return digest_of(
        [KEEP_VERSION, MEASURE_VERSION, current.digest, dict(indexed), pairs, verdicts, settings]
    )
