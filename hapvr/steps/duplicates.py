"""Steps 13 and 14: pairs of videos that share footage, shard by shard, and groups of copies.

duplicate_pairs/<shard>/rows.parquet     pairs of the shard's videos with all others
duplicate_groups/pictures.parquet        what is measured of the pictures and files of copies
duplicate_groups/groups.parquet          groups of copies over all pairs
"""

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hapvr.data.filesystem import DataRoot
from hapvr.data.frames import STAGE as FRAMES_STAGE
from hapvr.data.manifest import (
    PLANNED,
    name_digest,
    planned_moves,
    read_manifest_shard,
    shard_keys,
)
from hapvr.errors import DataError, VideoError
from hapvr.files import digest_of
from hapvr.progress import Progress, no_progress
from hapvr.scorer.segments import Segment
from hapvr.search import duplicates as store
from hapvr.search.collection import (
    CHANGED,
    CURRENT,
    CollectionMetadata,
    CurrentIndex,
    VideoMetadata,
    current_index,
)
from hapvr.search.duplicates import DuplicatePair, GroupMember, read_rows, stamp, write_rows
from hapvr.search.keep import not_named
from hapvr.search.marks import Marks, read_marks
from hapvr.search.match import coverage, thin
from hapvr.search.plan import moved_paths
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher, search_fingerprint
from hapvr.steps.videos import open_frames
from hapvr.video.facts import MEASURE_VERSION, FileFacts
from hapvr.video.frames import content_area, mean_picture, noise_level
from hapvr.video.measure import measure_files
from hapvr.video.pool import RETRYABLE
from hapvr.video.sources import path_of_text

PAIRS_STAGE = "duplicate_pairs"
PICTURES_PLACE = "duplicate_groups/pictures.parquet"
PICTURES_SCHEMA = pa.schema(
    [
        ("sha256", pa.string()),
        *((name, pa.float64()) for name in ("width_share", "height_share", "noise")),
        ("mean_picture", pa.binary()),
        ("video_bytes", pa.int64()),
        *((name, pa.float64()) for name in ("length_s", "declared_s", "fps")),
        ("sound", pa.bool_()),
        ("damage", pa.string()),
        ("detail", pa.list_(pa.field("element", pa.float64()))),  # as Parquet calls it
    ]
)
"""A row per content. What is of the file is null where the file could not be measured."""
PAIRS_VERSION = 4
"""Changes with what is said of a pair."""
KEEP_VERSION = 7
"""Changes with the rule that chooses the copy to keep."""
RANDOM_WEIGHTS = not_named("the model has random weights")
AWAY = not_named("the file of the best copy is not there")
UNSURE = not_named("it is not sure that these are copies")
LEAST_PROBABILITY = 0.5
"""Pairs below it are not stored, so a threshold above it can be changed without searching again."""


def make_duplicate_pairs(
    project: Project, searcher: Searcher, key: str, *, progress: Progress = no_progress
) -> bool:
    """Look for every video of a shard in the whole collection; returns whether the shard had
    changed: else it is left alone. A pair of two shards is found by the one that is searched later,
    so new shards need no other one to be searched again, and a shard that was made again is
    searched alone. Raises DataError for a shard that is not in the index, and for a model without
    calibration.
    """
    root, place = project.root, rows_place(PAIRS_STAGE, key)
    wanted = searcher.fingerprint(PAIRS_STAGE, key, pairs=PAIRS_VERSION)
    # before the lock, which a data root that is only read has not
    if stamp(read_rows(root, place, store.PAIR_SCHEMA, damaged=True)) == wanted:
        return False
    with root.lock(f"{PAIRS_STAGE}/{key}"):
        pairs: list[DuplicatePair] = []
        video_ids = searcher.collection.video_ids(key)
        for number, video_id in enumerate(video_ids):
            progress(number, len(video_ids))
            pairs += _pairs(video_id, searcher)
        progress(len(video_ids), len(video_ids))
        table = store.pair_table(store.best_of_each(pairs))
        write_rows(root, place, table, fingerprint=wanted, network=searcher.current.digest)
    return True


def duplicate_pairs(
    project: Project, searcher: Searcher, *, min_probability: float
) -> list[DuplicatePair]:
    """All stored pairs of the model that answers searches, and files of the same bytes; marks of
    people come first. Left out are videos that the index has no more or whose file is another one
    now, and pairs that are marked as no match. One that is marked as a match stays, whatever its
    probability, which is 0 where no search found it."""
    marks, metadata, video_ids = (
        read_marks(project.root),
        searcher.collection.metadata,
        searcher.collection.video_ids(),
    )
    if changed := set(
        filter(metadata.has_changed, video_ids)
    ):  # they would be named for what they were
        warnings.warn(
            f"duplicates: {len(changed)} videos are left out; {CHANGED.format(min(changed))}"
        )
    contents = {
        video_id: metadata.of(video_id).sha256 for video_id in video_ids if video_id not in changed
    }
    places = (rows_place(PAIRS_STAGE, key) for key in project.root.list_folders(PAIRS_STAGE))
    known = [
        pair
        for table in (read_rows(project.root, place, store.PAIR_SCHEMA) for place in places)
        if stamp(table, "network") == searcher.current.digest
        for pair in (DuplicatePair(**row) for row in table.drop_columns(["kind"]).to_pylist())
        if contents.get(pair.first) == pair.first_sha256
        and contents.get(pair.second) == pair.second_sha256
    ]
    said = [
        replace(pair, mark=marks.verdict(pair.first_sha256, pair.second_sha256) or "")
        for pair in store.best_of_each([*known, *_not_compared(marks, contents)])
    ]
    return [
        pair
        for pair in said
        if pair.mark == "match" or (pair.probability >= min_probability and not pair.mark)
    ]


def make_duplicate_groups(
    project: Project, searcher: Searcher, *, progress: Progress = no_progress
) -> list[GroupMember]:
    """Groups of copies over all pairs that are likely enough, written to
    `duplicate_groups/groups.parquet`. No file is touched. Two videos that are marked as no match
    come into no group together."""
    root = project.root
    wanted = _groups_fingerprint(project, searcher.current, searcher.indexed)
    pairs = duplicate_pairs(project, searcher, min_probability=LEAST_PROBABILITY)
    least = project.config.search.min_duplicate_probability
    likely = [pair for pair in pairs if pair.mark or pair.probability >= least]
    stored = read_rows(root, store.GROUPS_PLACE, store.GROUP_SCHEMA, damaged=True)
    if stamp(stored) == wanted and not _unmeasured(searcher, likely):
        return copy_groups(searcher, likely)
    if not root.is_writable():
        warnings.warn(f"duplicates: the groups are not kept, as {root.url} may only be read")
        return copy_groups(searcher, likely)
    with root.lock("duplicate_groups"):
        _measure_copies(project, searcher, pairs, progress)
        members = copy_groups(searcher, likely)
        copies = 2 * sum(pair.probability for pair in pairs) / max(searcher.num_videos, 1)
        table = store.group_rows(members)
        write_rows(root, store.GROUPS_PLACE, table, fingerprint=wanted, copies=str(copies))
    return members


def remember_plan(project: Project, members: Sequence[GroupMember]) -> None:
    """Remember which files a plan moves, as digests of their paths, so that nobody is told that
    they are missing afterwards. A data root that cannot be written to gets a warning."""
    known = planned_moves(project.root)
    planned = known | {name_digest(path) for path in moved_paths(members)}
    if planned == known:
        return
    try:
        project.root.write_json(PLANNED, {"moved": sorted(planned)})
    except (DataError, OSError) as error:
        warnings.warn(f"{error}. `hapvr index add` will miss the files that this plan moves")


def set_aside(project: Project, video_ids: Iterable[str]) -> set[str]:
    """Those of some videos whose file a plan has moved."""
    planned = planned_moves(project.root)
    if not planned:
        return set()
    keys = shard_keys(project.root)
    wanted = set(video_ids)
    rows = [row for key in keys for row in read_manifest_shard(project.root, key)]
    return {
        row.video_id
        for row in rows
        if row.video_id in wanted
        and name_digest(row.uri) in planned
        and not os.path.lexists(path_of_text(row.uri))
    }


def outdated_groups(project: Project) -> str:
    """Digest of what the groups have to be made from; "" if they were, and where there is no
    index."""
    root = project.root
    if not root.exists(CURRENT):
        return ""
    current = current_index(root)
    wanted = _groups_fingerprint(project, current, current.shards(root))
    return (
        ""
        if stamp(read_rows(root, store.GROUPS_PLACE, store.GROUP_SCHEMA, damaged=True)) == wanted
        else wanted
    )


def outdated_pairs(project: Project, metadata: CollectionMetadata | None = None) -> dict[str, str]:
    """As `outdated_shards`, of the pairs. metadata: of the collection, where somebody has it."""
    return outdated_shards(project, PAIRS_STAGE, store.PAIR_SCHEMA, metadata, pairs=PAIRS_VERSION)


def outdated_shards(
    project: Project,
    stage: str,
    schema: pa.Schema,
    metadata: CollectionMetadata | None = None,
    **asked: object,
) -> dict[str, str]:
    """Shards of the index whose rows a step has to make, as the model, the settings or what it asks
    for are others; each with a digest that is another one if a champion comes back. Nothing is
    outdated where there is no index."""
    root = project.root
    if not root.exists(CURRENT):
        return {}
    current, metadata, found = current_index(root), metadata or CollectionMetadata(root, {}), {}
    for key, indexed in sorted(current.shards(root).items()):
        wanted = search_fingerprint(
            stage, project, current, key, indexed, metadata.contents(key), **asked
        )
        if stamp(read_rows(root, rows_place(stage, key), schema, damaged=True)) != wanted:
            found[key] = digest_of([wanted, current.since])
    return found


def rows_place(stage: str, key: str) -> str:
    """Where a step keeps what a search gave of a shard."""
    return f"{stage}/{key}/rows.parquet"


def copy_groups(searcher: Searcher, pairs: Sequence[DuplicatePair]) -> list[GroupMember]:
    """Groups of copies over some pairs. No copy is named to keep where the best is away, in a group
    that is not sure, and by a model with random weights, except among files of the same bytes."""
    root = searcher.project.root
    marks, measured = read_marks(root), _measured(root)
    metadata = dict[str, VideoMetadata]()
    for one in {video_id for pair in pairs for video_id in (pair.first, pair.second)}:
        file = searcher.collection.metadata.of(one)
        metadata[one] = _with_pictures(file, measured.get(file.sha256))
    facts = {sha256: _facts_of(row) for sha256, row in measured.items() if _has_facts(row)}

    def apart(one: str, other: str) -> bool:
        return marks.verdict(metadata[one].sha256, metadata[other].sha256) == "not_a_match"

    settings = searcher.project.config.duplicates
    members = store.group_copies(pairs, metadata, facts=facts, settings=settings, apart=apart)
    reasons = _doubts(members, has_random_weights=bool(searcher.scorer.warning))
    return [
        replace(one, keep=False, reason=reasons[one.group]) if one.group in reasons else one
        for one in members
    ]


def _doubts(members: Sequence[GroupMember], *, has_random_weights: bool) -> dict[str, str]:
    """Group -> why none of its copies is named to keep, whatever its files are like."""
    doubts = dict[str, str]()
    contents = {one.group: one.metadata.sha256 for one in members if one.medoid}
    for group, inside in groupby(members, key=lambda one: one.group):
        best = next(inside)
        path = best.metadata.path
        if best.keep and path is not None and not os.path.exists(path):
            doubts[group] = AWAY
    for one in members:
        is_other = one.metadata.sha256 != contents[one.group]
        if one.verdict not in ("match", None) or (has_random_weights and is_other):
            doubts[one.group] = RANDOM_WEIGHTS if has_random_weights else UNSURE
    return doubts


def _with_pictures(file: VideoMetadata, row: Mapping[str, Any] | None) -> VideoMetadata:
    """The metadata of a video with what was measured of its frames. row: of PICTURES_SCHEMA."""
    if row is None or row["width_share"] is None:
        return file
    content = (row["width_share"], row["height_share"])
    return replace(file, content=content, noise=row["noise"], mean_picture=row["mean_picture"])


_FACTS = tuple(field.name for field in fields(FileFacts))


def _has_facts(row: Mapping[str, Any]) -> bool:
    return row["video_bytes"] is not None


def _facts_of(row: Mapping[str, Any]) -> FileFacts:
    values = {name: row[name] for name in _FACTS}
    return FileFacts(**values | {"detail": tuple(row["detail"])})


def _measured(root: DataRoot) -> dict[str, dict[str, Any]]:
    """SHA-256 -> the row of PICTURES_SCHEMA, of all videos that were measured."""
    table = read_rows(root, PICTURES_PLACE, PICTURES_SCHEMA, damaged=True)
    if stamp(table, "measured") != str(MEASURE_VERSION):
        return {}
    return {row["sha256"]: row for row in table.to_pylist()}


def _unmeasured(searcher: Searcher, pairs: Iterable[DuplicatePair]) -> bool:
    """Whether a copy has a file that was away when its group was made, and is there now."""
    measured = _measured(searcher.project.root)
    for pair in pairs:
        for video_id in (pair.first, pair.second) if pair.kind == "copy" else ():
            file = searcher.collection.metadata.of(video_id)
            row = measured.get(file.sha256)
            is_lacking = row is None or not _has_facts(row)
            may_be_measured = row is None or row["damage"] is None
            if not is_lacking or not may_be_measured or file.path is None:
                continue
            if os.path.exists(file.path):
                return True
    return False


def _measure_copies(
    project: Project, searcher: Searcher, pairs: Iterable[DuplicatePair], progress: Progress
) -> None:
    """Measure the pictures and files of all copies that were not measured yet. A file that is away,
    or for which there was no time, is measured at the next call."""
    before = _measured(project.root)
    rows = dict(before)
    copies = [pair for pair in pairs if pair.kind == "copy"]
    contents = {pair.first: pair.first_sha256 for pair in copies}
    contents |= {pair.second: pair.second_sha256 for pair in copies}
    _measure_pictures(project, searcher, contents, rows, progress)
    _measure_files(project, searcher, contents, rows)
    if rows != before:
        table = pa.Table.from_pylist(
            [rows[sha256] for sha256 in sorted(rows)], schema=PICTURES_SCHEMA
        )
        write_rows(project.root, PICTURES_PLACE, table, measured=str(MEASURE_VERSION))


def _measure_pictures(
    project: Project,
    searcher: Searcher,
    contents: Mapping[str, str],
    rows: dict[str, dict[str, Any]],
    progress: Progress,
) -> None:
    """Find bars, noise and the mean picture of copies whose frames are stored. contents: id ->
    SHA-256. rows: get what is new."""
    shard_of = searcher.collection.shard_of
    new = sorted((shard_of[one], one) for one, sha256 in contents.items() if sha256 not in rows)
    for key, videos in groupby(new, key=lambda one: one[0]):
        if not project.root.exists(project.shard(FRAMES_STAGE, key).index_name):
            continue  # imported features have no frames
        frames = open_frames(project, key)
        for _, video_id in videos:
            progress(len(rows), len(rows) + len(new))
            jpegs = frames.read(video_id).jpegs
            width_share, height_share = content_area(jpegs)
            rows[contents[video_id]] = dict.fromkeys(PICTURES_SCHEMA.names) | {
                "sha256": contents[video_id],
                "width_share": width_share,
                "height_share": height_share,
                "noise": noise_level(jpegs),
                "mean_picture": mean_picture(jpegs),
            }


def _measure_files(
    project: Project,
    searcher: Searcher,
    contents: Mapping[str, str],
    rows: dict[str, dict[str, Any]],
) -> None:
    """Add to the rows what the files hold that are there, one of each content."""
    places = dict[Path, str]()
    for video_id, sha256 in contents.items():
        file = searcher.collection.metadata.of(video_id)
        row = rows.get(sha256)
        is_known = row is not None and (_has_facts(row) or row["damage"] is not None)
        if is_known or file.path is None or sha256 in places.values():
            continue
        if _num_bytes(file.path) == file.num_bytes:
            places[file.path] = sha256
    for path, found in measure_files(places, config=project.config.sampling):
        empty = dict.fromkeys(PICTURES_SCHEMA.names) | {"sha256": places[path]}
        row = rows.get(places[path], empty)
        if isinstance(found, FileFacts):
            rows[places[path]] = row | asdict(found)
        elif found.reason not in RETRYABLE:
            rows[places[path]] = row | {"damage": str(found)}


def _num_bytes(path: Path) -> int:
    """Of the file; -1 where it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _groups_fingerprint(project: Project, current: CurrentIndex, indexed: Mapping[str, str]) -> str:
    """Changes where groups may change: pairs, marks, settings, the shards of the index."""
    root = project.root
    pairs = dict[str, str]()
    for key in root.list_folders(PAIRS_STAGE):
        place = rows_place(PAIRS_STAGE, key)
        pairs[key] = stamp(read_rows(root, place, store.PAIR_SCHEMA, damaged=True))
    settings = [
        project.config.search.min_duplicate_probability,
        project.config.duplicates.model_dump(mode="json"),
    ]
    verdicts = read_marks(root).verdicts()
    return digest_of(
        [KEEP_VERSION, MEASURE_VERSION, current.digest, dict(indexed), pairs, verdicts, settings]
    )


def _pairs(query: str, searcher: Searcher) -> Iterator[DuplicatePair]:
    """Other videos that share footage with one of the collection, the likeliest first; none for one
    that shows nothing."""
    videos, metadata = searcher.collection, searcher.collection.metadata
    embedded = searcher.scorer.embed(videos.whole(query))
    try:
        candidates, lost = searcher.score(
            embedded, searcher.shortlist(embedded, allowed=lambda one: one != query)
        )
    except VideoError:
        return
    if lost:
        raise DataError(
            f"{next(iter(lost.values()))}; no pairs of the shard of {query} were stored"
        )
    sampling = searcher.scorer.sampling
    seconds = embedded.clock.length_s(sampling.fps, sampling.max_frames)
    for found in candidates:
        probability = searcher.probability(found) or 0.0
        if probability < LEAST_PROBABILITY:
            continue
        segments = searcher.segments(embedded, found)
        covered = coverage(segments, query_s=seconds, reference_s=found.seconds)
        starts = (
            (segments[0].query_start_s, segments[0].reference_start_s) if segments else (0.0, 0.0)
        )
        likeness = _aligned(query, found.video_id, segments, searcher)
        sides = sorted(zip((query, found.video_id), covered, starts, likeness, strict=True))
        (
            (first, first_covered, first_start_s, there),
            (second, second_covered, second_start_s, back),
        ) = sides
        yield DuplicatePair(
            first=first,
            second=second,
            first_sha256=metadata.of(first).sha256,
            second_sha256=metadata.of(second).sha256,
            similarity=found.similarity,
            probability=probability,
            first_covered=first_covered,
            second_covered=second_covered,
            first_start_s=first_start_s,
            second_start_s=second_start_s,
            frame_similarity=(there + back) / 2,
            asymmetry=there - back,
        )


def _aligned(
    query: str, other: str, segments: Sequence[Segment], searcher: Searcher
) -> tuple[float, float]:
    """Mean similarity of the aligned frames of the first part, at most 64 evenly apart, with the
    other video's, and the other way round; 0 where they have not the same course."""
    if not segments:
        return 0.0, 0.0
    part, scorer, videos = segments[0], searcher.scorer, searcher.collection
    spans = {
        query: (part.query_start_s, part.query_end_s),
        other: (part.reference_start_s, part.reference_end_s),
    }
    rows = {
        name: np.searchsorted(videos.times(name), span).tolist() for name, span in spans.items()
    }
    count = max(min(64, *(last - first for first, last in rows.values())), 1)
    one, another = (
        scorer.embed(
            thin(videos.read(name, videos.times(name), first, max(last, first + 1)), count)
        )
        for name, (first, last) in rows.items()
    )
    cross, back = scorer.relative_similarity(one, another), scorer.relative_similarity(another, one)
    own = (scorer.relative_similarity(one, one) + scorer.relative_similarity(another, another)) / 2
    if not store.same_course((cross + back.T) / 2, own):
        return 0.0, 0.0
    return float(np.diag(cross).mean()), float(np.diag(back).mean())


def _not_compared(marks: Marks, contents: Mapping[str, str]) -> Iterator[DuplicatePair]:
    """Files of the same bytes, which need no model, and videos that somebody says match, as if no
    search had found them."""
    ids: dict[str, list[str]] = {}
    for video_id, sha256 in contents.items():
        ids.setdefault(sha256, []).append(video_id)
    known = [(sha256, sha256, 1.0) for sha256 in ids]
    known += [(mark.first, mark.second, 0.0) for mark in marks.rows() if mark.verdict == "match"]
    names = ("similarity", "probability", "first_covered", "second_covered", "frame_similarity")
    for one, other, value in known:
        values: dict[str, Any] = dict.fromkeys(names, value)
        for first, second in {
            (min(pair), max(pair)) for pair in product(ids.get(one, ()), ids.get(other, ()))
        }:
            if first != second:
                yield DuplicatePair(
                    first=first,
                    second=second,
                    first_sha256=contents[first],
                    second_sha256=contents[second],
                    **values,
                )
