"""Steps 13 and 14: pairs of videos that share footage, shard by shard, and groups of copies.

duplicate_pairs/<shard>/rows.parquet     pairs of the shard's videos with all others (asset `duplicate_pairs`)
duplicate_groups/pictures.parquet        what black bars leave of the pictures of copies
duplicate_groups/groups.parquet          groups of copies over all pairs (asset `duplicate_groups`)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby, product
from typing import Any

import numpy as np
import pyarrow as pa

from hapvr.data.filesystem import DataRoot
from hapvr.errors import DataError
from hapvr.progress import Progress, no_progress
from hapvr.scorer.calibration import Verdict
from hapvr.scorer.segments import Segment
from hapvr.search.collection import CURRENT, CurrentIndex, VideoMetadata, current_index
from hapvr.search.duplicates import (
    GROUP_SCHEMA,
    GROUPS_PLACE,
    PAIR_SCHEMA,
    DuplicatePair,
    GroupMember,
    StoredPairs,
    best_of_each,
    group_copies,
    group_rows,
    read_pairs,
    read_rows,
    same_course,
    stamp,
    write_pairs,
    write_rows,
)
from hapvr.search.engine import ScoredCandidate
from hapvr.search.index import digest_of
from hapvr.search.marks import Marks, read_marks
from hapvr.search.match import coverage, thin, verdict_of
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher, search_fingerprint
from hapvr.video.frames import content_area, noise_level

PAIRS_STAGE = "duplicate_pairs"
PICTURES_PLACE = "duplicate_groups/pictures.parquet"
PICTURES_SCHEMA = pa.schema(
    [("sha256", pa.string()), *((name, pa.float64()) for name in ("width_share", "height_share", "noise"))]
)
PAIRS_VERSION = 3
"""Changes with what is said of a pair."""
ALIGNED_FRAMES = 64
"""Frames of a common part, evenly apart, whose course is compared."""
KEEP_VERSION = 6
"""Changes with the rule that chooses the copy to keep."""
RANDOM_WEIGHTS = "the model has random weights, so no copy is named to keep"
UNSURE = "it is not sure that these are copies, so no copy is named to keep"
LEAST_PROBABILITY = 0.5
"""Pairs below it are not stored, so a threshold above it can be changed without searching again."""


def make_duplicate_pairs(
    project: Project, searcher: Searcher, key: str, *, progress: Progress = no_progress
) -> StoredPairs:
    """Look for every video of a shard in the whole collection; a shard that is unchanged is left alone.

    A pair of two shards is found by the one that is searched later, so new shards need no other one to be searched again,
    and a shard that was made again is searched alone. Raises DataError for a shard that is not in the index, and for a
    model without calibration.
    """
    root, place = project.root, rows_place(PAIRS_STAGE, key)
    wanted = searcher.fingerprint(PAIRS_STAGE, key, pairs=PAIRS_VERSION)
    made = read_pairs(root, place, damaged=True)
    if made.fingerprint == wanted:  # a data root that is only read has no locks
        return made
    with root.lock(f"{PAIRS_STAGE}/{key}"):
        pairs: list[DuplicatePair] = []
        video_ids = searcher.collection.video_ids(key)
        for number, video_id in enumerate(video_ids):
            progress(number, len(video_ids))
            found = searcher.find_copies(video_id, least_probability=LEAST_PROBABILITY)
            pairs += [_pair(video_id, candidate, segments, searcher) for candidate, segments in found]
        progress(len(video_ids), len(video_ids))
        made = StoredPairs(tuple(best_of_each(pairs)), wanted, searcher.current.digest, done=True)
        write_pairs(root, place, made)
    return made


def duplicate_pairs(project: Project, searcher: Searcher, *, min_probability: float) -> list[DuplicatePair]:
    """All stored pairs of the model that answers searches, and files of the same bytes; marks of people come first.

    Left out are videos that the index has no more or whose file is another one now, and pairs that are marked as no match.
    One that is marked as a match stays, whatever its probability, which is 0 where no search found it.
    """
    marks = read_marks(project.root)
    metadata = searcher.collection.metadata
    contents = {video_id: metadata.of(video_id).sha256 for video_id in searcher.collection.video_ids()}
    known: list[DuplicatePair] = []
    for key in project.root.list_folders(PAIRS_STAGE):
        found = read_pairs(project.root, rows_place(PAIRS_STAGE, key))
        if found.network == searcher.current.digest:
            known += [
                pair
                for pair in found.pairs
                if contents.get(pair.first) == pair.first_sha256 and contents.get(pair.second) == pair.second_sha256
            ]
    said = [
        replace(pair, mark=marks.verdict(pair.first_sha256, pair.second_sha256) or "")
        for pair in best_of_each([*known, *_not_compared(marks, contents)])
    ]
    return [pair for pair in said if pair.mark == "match" or (pair.probability >= min_probability and not pair.mark)]


def make_duplicate_groups(
    project: Project, searcher: Searcher, *, progress: Progress = no_progress
) -> list[GroupMember]:
    """Groups of copies over all pairs that are likely enough, written to `duplicate_groups/groups.parquet`. No file is touched.

    Two videos that are marked as no match come into no group together.
    """
    root, wanted = project.root, _groups_fingerprint(project, searcher.current, searcher.indexed)
    if _stored_groups(root) == wanted:
        return _groups(project, searcher)
    with root.lock("duplicate_groups"):
        _measure_pictures(project, searcher)
        members = _groups(project, searcher)
        pairs = duplicate_pairs(project, searcher, min_probability=LEAST_PROBABILITY)
        copies = 2 * sum(pair.probability for pair in pairs) / max(searcher.num_videos, 1)
        write_rows(root, GROUPS_PLACE, group_rows(members), fingerprint=wanted, copies=str(copies))
    return members


def outdated_groups(project: Project) -> str:
    """Digest of what the groups have to be made from; "" if they were, and where there is no index."""
    root = project.root
    if not root.exists(CURRENT):
        return ""
    current = current_index(root)
    wanted = _groups_fingerprint(project, current, current.shards(root))
    return "" if _stored_groups(root) == wanted else wanted


def outdated_pairs(project: Project) -> dict[str, str]:
    """As `outdated_shards`, of the pairs."""
    return outdated_shards(project, PAIRS_STAGE, PAIR_SCHEMA, pairs=PAIRS_VERSION)


def outdated_shards(project: Project, stage: str, schema: pa.Schema, **asked: object) -> dict[str, str]:
    """Shards of the index whose rows a step has to make, as the model, the settings or what it asks for are others; each with
    a digest that is another one if a champion comes back. Nothing is outdated where there is no index."""
    root = project.root
    if not root.exists(CURRENT):
        return {}
    current, found = current_index(root), {}
    for key, indexed in sorted(current.shards(root).items()):
        wanted = search_fingerprint(stage, project, current, key, indexed, **asked)
        if stamp(read_rows(root, rows_place(stage, key), schema, damaged=True)) != wanted:
            found[key] = digest_of([wanted, current.since])
    return found


def rows_place(stage: str, key: str) -> str:
    """Where a step keeps what a search gave of a shard."""
    return f"{stage}/{key}/rows.parquet"


def _named_copies(members: Sequence[GroupMember], searcher: Searcher) -> list[GroupMember]:
    """The members; no copy is named to keep in a group that is not sure, and by a model with random weights, except among
    files of the same bytes."""
    random, verdicts = bool(searcher.scorer.warning), member_verdicts(searcher, members)
    sha256 = {member.group: member.metadata.sha256 for member in members if member.medoid}
    doubted = {
        one.group
        for one, verdict in zip(members, verdicts, strict=True)
        if not one.medoid and (verdict != "match" or (random and one.metadata.sha256 != sha256[one.group]))
    }
    reason = RANDOM_WEIGHTS if random else UNSURE
    return [replace(one, keep=False, reason=reason) if one.group in doubted else one for one in members]


def member_verdicts(searcher: Searcher, members: Sequence[GroupMember]) -> list[Verdict | None]:
    """What is said of each member and the medoid of its group; None for the medoid itself."""
    medoids = {member.group: member.metadata.sha256 for member in members if member.medoid}
    marks = read_marks(searcher.project.root)
    verdicts: list[Verdict | None] = []
    for one in members:
        sha256, medoid = one.metadata.sha256, medoids[one.group]
        mark = marks.verdict(sha256, medoid) or ""
        said = verdict_of(one.probability, mark=mark, same_file=sha256 == medoid)
        verdicts.append(None if one.medoid else said)
    return verdicts


def _groups(project: Project, searcher: Searcher) -> list[GroupMember]:
    """The groups over the pairs that are stored and likely enough."""
    least = project.config.search.min_duplicate_probability
    return copy_groups(searcher, duplicate_pairs(project, searcher, min_probability=least))


def copy_groups(searcher: Searcher, pairs: Sequence[DuplicatePair]) -> list[GroupMember]:
    """Groups of copies over some pairs."""
    metadata = _metadata_of_pairs(searcher, pairs)
    marks = read_marks(searcher.project.root)

    def apart(one: str, other: str) -> bool:
        return marks.verdict(metadata[one].sha256, metadata[other].sha256) == "not_a_match"

    return _named_copies(group_copies(pairs, metadata, apart=apart), searcher)


def _metadata_of_pairs(searcher: Searcher, pairs: Iterable[DuplicatePair]) -> dict[str, VideoMetadata]:
    """Metadata of the videos of some pairs, with what black bars leave of their pictures, as far as that was measured."""
    pictures, of = _pictures(searcher.project.root), searcher.collection.metadata.of
    found = {one: of(one) for pair in pairs for one in (pair.first, pair.second)}
    for one, file in found.items():
        if file.sha256 in pictures:
            row = pictures[file.sha256]
            found[one] = replace(file, content=(row["width_share"], row["height_share"]), noise=row["noise"])
    return found


def _pictures(root: DataRoot) -> dict[str, dict[str, Any]]:
    """SHA-256 -> the row of PICTURES_SCHEMA, of all videos that were measured."""
    table = read_rows(root, PICTURES_PLACE, PICTURES_SCHEMA, damaged=True)
    return {row["sha256"]: row for row in table.to_pylist()}


def _measure_pictures(project: Project, searcher: Searcher) -> None:
    """Find the black bars and the noise of all copies whose frames are stored and were not looked at yet."""
    shard_of, measured = searcher.collection.shard_of, _pictures(project.root)
    pairs = duplicate_pairs(project, searcher, min_probability=LEAST_PROBABILITY)
    copies = _metadata_of_pairs(searcher, (pair for pair in pairs if pair.kind == "copy"))
    new = sorted((shard_of[one], one, file.sha256) for one, file in copies.items() if file.sha256 not in measured)
    for key, videos in groupby(new, key=lambda one: one[0]):
        with suppress(DataError):  # imported features have no frames
            frames = open_frames(project, key)
            for _, video_id, sha256 in videos:
                jpegs = frames.read(video_id).jpegs
                values = (sha256, *content_area(jpegs), noise_level(jpegs))
                measured[sha256] = dict(zip(PICTURES_SCHEMA.names, values, strict=True))
    if new:
        rows = [measured[sha256] for sha256 in sorted(measured)]
        write_rows(project.root, PICTURES_PLACE, pa.Table.from_pylist(rows, schema=PICTURES_SCHEMA))


def _groups_fingerprint(project: Project, current: CurrentIndex, indexed: Mapping[str, str]) -> str:
    """Changes where groups may change: pairs, marks, the threshold, the shards of the index."""
    root, least = project.root, project.config.search.min_duplicate_probability
    places = {key: rows_place(PAIRS_STAGE, key) for key in root.list_folders(PAIRS_STAGE)}
    pairs = {key: stamp(read_rows(root, place, PAIR_SCHEMA, damaged=True)) for key, place in places.items()}
    return digest_of([KEEP_VERSION, current.digest, dict(indexed), pairs, read_marks(root).verdicts(), least])


def _stored_groups(root: DataRoot) -> str:
    return stamp(read_rows(root, GROUPS_PLACE, GROUP_SCHEMA, damaged=True))


def _pair(query: str, found: ScoredCandidate, segments: tuple[Segment, ...], searcher: Searcher) -> DuplicatePair:
    seconds = searcher.collection.times(query)[-1] + 1 / searcher.scorer.sampling.fps
    covered = coverage(segments, query_s=seconds, reference_s=found.seconds)
    starts = (segments[0].query_start_s, segments[0].reference_start_s) if segments else (0.0, 0.0)
    there, back = _aligned(query, found.video_id, segments, searcher)
    if found.video_id < query:
        covered, starts, (there, back) = covered[::-1], starts[::-1], (back, there)
    first, second = sorted((query, found.video_id))
    metadata = searcher.collection.metadata
    return DuplicatePair(
        first=first,
        second=second,
        first_sha256=metadata.of(first).sha256,
        second_sha256=metadata.of(second).sha256,
        similarity=found.similarity,
        probability=searcher.probability(found) or 0.0,
        first_covered=covered[0],
        second_covered=covered[1],
        first_start_s=starts[0],
        second_start_s=starts[1],
        frame_similarity=(there + back) / 2,
        asymmetry=there - back,
    )


def _aligned(query: str, other: str, segments: Sequence[Segment], searcher: Searcher) -> tuple[float, float]:
    """Mean similarity of the aligned frames of the first part with the other video's, and the other way round; 0 where they
    have not the same course."""
    if not segments:
        return 0.0, 0.0
    part, scorer, videos = segments[0], searcher.scorer, searcher.collection
    spans = {query: (part.query_start_s, part.query_end_s), other: (part.reference_start_s, part.reference_end_s)}
    rows = {name: np.searchsorted(videos.times(name), span).tolist() for name, span in spans.items()}
    count = max(min(ALIGNED_FRAMES, *(last - first for first, last in rows.values())), 1)
    one, another = (
        scorer.embed(thin(videos.read(name, videos.times(name), first, max(last, first + 1)), count))
        for name, (first, last) in rows.items()
    )
    cross, back = scorer.relative_similarity(one, another), scorer.relative_similarity(another, one)
    own = (scorer.relative_similarity(one, one) + scorer.relative_similarity(another, another)) / 2
    if not same_course((cross + back.T) / 2, own):
        return 0.0, 0.0
    return float(np.diag(cross).mean()), float(np.diag(back).mean())


def _not_compared(marks: Marks, contents: Mapping[str, str]) -> Iterator[DuplicatePair]:
    """Files of the same bytes, which need no model, and videos that somebody says match, as if no search had found them."""
    ids: dict[str, list[str]] = {}
    for video_id, sha256 in contents.items():
        ids.setdefault(sha256, []).append(video_id)
    known = [(sha256, sha256, 1.0) for sha256 in ids]
    known += [(mark.first, mark.second, 0.0) for mark in marks.rows() if mark.verdict == "match"]
    for one, other, value in known:
        for first, second in {(min(pair), max(pair)) for pair in product(ids.get(one, ()), ids.get(other, ()))}:
            if first != second:
                yield DuplicatePair(
                    first=first,
                    second=second,
                    first_sha256=contents[first],
                    second_sha256=contents[second],
                    similarity=value,
                    probability=value,
                    first_covered=value,
                    second_covered=value,
                    frame_similarity=value,
                )
